"""The fields of a Kubernetes pod that an instance may set: resources, environment, placement."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from cli_mcp.api import quantity
from cli_mcp.api.model import ATOMIC_LIST, MAP_BY_NAME, ApiModel, Check, Items, Rule, unique_names
from cli_mcp.api.scalars import DataKey, EnvName, EnvValue, LabelName, ObjectName, Quantity

PullPolicy = Literal["Always", "IfNotPresent", "Never"]

# https://kubernetes.io/docs/concepts/configuration/manage-resources-containers/
_NATIVE_RESOURCES = ("cpu", "memory", "ephemeral-storage")


def _are_resources(resources: Mapping[str, str]) -> bool:
    return all(
        name in _NATIVE_RESOURCES or name.startswith("hugepages-") or "/" in name for name in resources
    )


ResourceList = Annotated[
    dict[str, Quantity],
    Field(max_length=16),
    Check(
        f"self.all(name, name in {list(_NATIVE_RESOURCES)} "
        "|| name.startsWith('hugepages-') || name.contains('/'))",
        _are_resources,
        "has a resource that Kubernetes does not know; "
        "use cpu, memory, ephemeral-storage, hugepages-<size> or <domain>/<resource>",
    ),
]
Labels = Annotated[dict[str, Annotated[str, Field(max_length=63)]], Field(max_length=32)]

# A server-side apply replaces such an object as a whole.
_ATOMIC = ConfigDict(json_schema_extra={"x-kubernetes-map-type": "atomic"})


@dataclass(frozen=True, slots=True)
class Limits:
    """What a sandbox may use at most; always bounded."""

    cpu_millicores: int
    memory_bytes: int
    ephemeral_storage_bytes: int


def _requests_fit(resources: "Resources") -> bool:
    limits = resources.limits
    return all(
        quantity.parse(request) <= quantity.parse(limits[name])
        for name, request in resources.requests.items()
        if name in limits
    )


# The API server evaluates rules also where a value's pattern has failed already, and quantity() takes minutes
# for 1e999999999: such values never reach it.
_INSANE = "string({0}).matches('[eE][+-]?[0-9]{{3}}')".format
_QUANTITY = "quantity(string({0}))".format


class Resources(ApiModel):
    """CPU, memory and other resources, as in a Kubernetes container."""

    rules = (
        Rule(
            "!has(self.limits) || !has(self.requests) || self.requests.all(name, !(name in self.limits) "
            f"|| {_INSANE('self.requests[name]')} || {_INSANE('self.limits[name]')} || "
            f"{_QUANTITY('self.requests[name]')}.compareTo({_QUANTITY('self.limits[name]')}) <= 0)",
            _requests_fit,
            "a request is larger than its limit; lower the request or raise the limit",
            field="requests",
        ),
        Rule(
            f"!has(self.limits) || self.limits.all(name, {_INSANE('self.limits[name]')} "
            f"|| {_QUANTITY('self.limits[name]')}.isGreaterThan(quantity('0')))",
            lambda resources: all(quantity.parse(limit) > 0 for limit in resources.limits.values()),
            "a limit of 0 leaves nothing to run with; raise it, or leave it out for the default",
            field="limits",
        ),
    )

    requests: ResourceList = Field(default_factory=dict)
    """What is reserved on the node, by resource name."""
    limits: ResourceList = Field(default_factory=dict)
    """What may be used at most, by resource name."""

    def with_defaults(self, defaults: "Resources") -> "Resources":
        """Each default where nothing is given, adjusted so that no request exceeds its limit."""
        limits = _filled(self.limits, defaults.limits, self.requests, at_least=True)
        requests = _filled(self.requests, defaults.requests, limits, at_least=False)
        return Resources(requests=requests, limits=limits)


def _filled(
    given: Mapping[str, str], defaults: Mapping[str, str], bounds: Mapping[str, str], *, at_least: bool
) -> dict[str, str]:
    choose = max if at_least else min
    return dict(given) | {
        name: choose(default, bounds.get(name, default), key=quantity.parse)
        for name, default in defaults.items()
        if name not in given
    }


class SecretKeySelector(ApiModel):
    """One key of a Secret of the same namespace."""

    model_config = _ATOMIC

    name: ObjectName
    """Name of the Secret."""
    key: DataKey
    """Key in the Secret's data."""
    optional: bool = False
    """Whether the variable may be left out when Secret or key do not exist."""


class ConfigMapKeySelector(ApiModel):
    """One key of a ConfigMap of the same namespace."""

    model_config = _ATOMIC

    name: ObjectName
    """Name of the ConfigMap."""
    key: DataKey
    """Key in the ConfigMap's data."""
    optional: bool = False
    """Whether the variable may be left out when ConfigMap or key do not exist."""


class ObjectFieldSelector(ApiModel):
    """One field of the sandbox pod."""

    model_config = _ATOMIC

    api_version: Annotated[str, Field(max_length=63)] = "v1"
    """Version of the schema that fieldPath is written in."""
    field_path: Annotated[str, Field(min_length=1, max_length=512)]
    """Path of the field, such as metadata.name."""


class ResourceFieldSelector(ApiModel):
    """One request or limit of the sandbox container."""

    model_config = _ATOMIC

    container_name: LabelName | None = None
    """Name of the container; the variable's own when left out."""
    resource: Annotated[str, Field(min_length=1, max_length=253)]
    """Such as limits.memory."""
    divisor: Quantity | None = None
    """Unit of the value; 1 when left out."""


class EnvVarSource(ApiModel):
    """Where a variable's value comes from; exactly one of the fields."""

    rules = (
        Rule(
            "[has(self.configMapKeyRef), has(self.fieldRef), has(self.resourceFieldRef), "
            "has(self.secretKeyRef)].exists_one(given, given)",
            lambda source: len(source.model_fields_set) == 1,
            "must have exactly one of configMapKeyRef, fieldRef, resourceFieldRef and secretKeyRef; "
            "keep the one that is meant",
        ),
    )

    config_map_key_ref: ConfigMapKeySelector | None = None
    """A key of a ConfigMap."""
    field_ref: ObjectFieldSelector | None = None
    """A field of the pod; not in local mode, which has no pods."""
    resource_field_ref: ResourceFieldSelector | None = None
    """A request or limit of the container; not in local mode."""
    secret_key_ref: SecretKeySelector | None = None
    """A key of a Secret. The shell can read what it gets this way: give it nothing that must stay secret."""


class EnvVar(ApiModel):
    """One environment variable of the sandbox."""

    rules = (
        Rule(
            "!has(self.valueFrom) || !has(self.value) || self.value == ''",
            lambda variable: variable.value_from is None or variable.value == "",
            "has both value and valueFrom; remove one of them",
            field="value",
        ),
    )

    name: EnvName
    """Name of the variable. The operator's own names, such as HOME, KUBECONFIG and HTTPS_PROXY, win."""
    value: EnvValue = ""
    """The value itself."""
    value_from: EnvVarSource | None = None
    """Where the value comes from instead."""


class LocalObjectReference(ApiModel):
    """An object of the same namespace."""

    model_config = _ATOMIC

    name: ObjectName
    """Name of the object."""


class Toleration(ApiModel):
    """A node taint that sandbox pods tolerate, as in a Kubernetes pod."""

    rules = (
        Rule(
            "has(self.key) && self.key != '' || (has(self.operator) && self.operator == 'Exists')",
            lambda toleration: toleration.key != "" or toleration.operator == "Exists",
            "without a key operator must be Exists, which tolerates every taint",
            field="operator",
        ),
        Rule(
            "!has(self.operator) || self.operator != 'Exists' || !has(self.value) || self.value == ''",
            lambda toleration: toleration.operator != "Exists" or toleration.value == "",
            "operator Exists takes no value; remove value, or use operator Equal",
            field="value",
        ),
        Rule(
            "!has(self.tolerationSeconds) || (has(self.effect) && self.effect == 'NoExecute')",
            lambda toleration: toleration.toleration_seconds is None or toleration.effect == "NoExecute",
            "tolerationSeconds needs effect NoExecute; set it, or remove tolerationSeconds",
            field="tolerationSeconds",
        ),
    )

    key: Annotated[str, Field(max_length=316)] = ""
    """The taint's key; empty, with operator Exists, means all."""
    operator: Literal["Exists", "Equal"] = "Equal"
    """How value is compared."""
    value: Annotated[str, Field(max_length=63)] = ""
    """The taint's value, for operator Equal."""
    effect: Literal["", "NoSchedule", "PreferNoSchedule", "NoExecute"] = ""
    """The taint's effect; empty means all."""
    toleration_seconds: Annotated[int, Field(ge=-(2**63), le=2**63 - 1)] | None = None
    """How long a NoExecute taint is tolerated; for ever when left out."""


EnvVars = Annotated[Items[EnvVar], Field(max_length=256, json_schema_extra=MAP_BY_NAME), unique_names]
PullSecrets = Annotated[
    Items[LocalObjectReference], Field(max_length=16, json_schema_extra=MAP_BY_NAME), unique_names
]
Tolerations = Annotated[Items[Toleration], Field(max_length=64, json_schema_extra=ATOMIC_LIST)]
