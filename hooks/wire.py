"""What Metacontroller and the hooks say to each other (hook version v2), checked on the way in.

https://metacontroller.github.io/metacontroller/api/compositecontroller.html#hooks. A request that is not
exactly what Metacontroller sends is an error: an answer to half of a request would delete what it left out.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from cli_mcp import names

Manifest = dict[str, Any]
"""A Kubernetes object as decoded JSON."""


@dataclass(frozen=True, slots=True)
class ChildKind:
    """A kind of child, its plural and how Metacontroller updates what exists.

    `InPlace` writes the difference with the observed resourceVersion, so that a foreign change in between
    wins; nothing is ever deleted to be changed.
    """

    api_version: str
    kind: str
    resource: str
    update_strategy: str = "InPlace"

    @property
    def key(self) -> str:
        """The key in `children` and `related` of a request."""
        return f"{self.kind}.{self.api_version}"

    @property
    def group(self) -> str:
        return self.api_version.rpartition("/")[0]


CONFIG_MAP = ChildKind("v1", "ConfigMap", "configmaps")
PERSISTENT_VOLUME_CLAIM = ChildKind("v1", "PersistentVolumeClaim", "persistentvolumeclaims")
POD = ChildKind("v1", "Pod", "pods")
SECRET = ChildKind("v1", "Secret", "secrets")
SERVICE = ChildKind("v1", "Service", "services")
SERVICE_ACCOUNT = ChildKind("v1", "ServiceAccount", "serviceaccounts")
DEPLOYMENT = ChildKind("apps/v1", "Deployment", "deployments")
NETWORK_POLICY = ChildKind("networking.k8s.io/v1", "NetworkPolicy", "networkpolicies")
POD_DISRUPTION_BUDGET = ChildKind("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets")
ROLE = ChildKind("rbac.authorization.k8s.io/v1", "Role", "roles")
ROLE_BINDING = ChildKind("rbac.authorization.k8s.io/v1", "RoleBinding", "rolebindings")
CHILD_KINDS = (
    CONFIG_MAP,
    PERSISTENT_VOLUME_CLAIM,
    POD,
    SECRET,
    SERVICE,
    SERVICE_ACCOUNT,
    DEPLOYMENT,
    NETWORK_POLICY,
    POD_DISRUPTION_BUDGET,
    ROLE,
    ROLE_BINDING,
)
ENDPOINT_SLICE = ChildKind("discovery.k8s.io/v1", "EndpointSlice", "endpointslices")
KINDS_BY_KEY = {kind.key: kind for kind in CHILD_KINDS}


class MalformedRequest(ValueError):
    """The request is not one that Metacontroller sends for this CompositeController."""


@dataclass(frozen=True, slots=True)
class Parent:
    """The instance as it is stored; `spec` is not checked here."""

    manifest: Manifest
    name: str
    namespace: str
    uid: str
    generation: int

    @property
    def names(self) -> names.InstanceNames:
        return names.InstanceNames(self.name)

    @property
    def annotations(self) -> Mapping[str, str]:
        return self.manifest["metadata"].get("annotations") or {}

    @property
    def status(self) -> Mapping[str, Any]:
        return self.manifest.get("status") or {}


Objects = Mapping[str, Mapping[str, Manifest]]
"""By kind key, then by name (children) or `namespace/name` (related)."""


@dataclass(frozen=True, slots=True)
class HookRequest:
    """A sync or finalize request."""

    parent: Parent
    children: Objects
    related: Objects

    def child(self, kind: ChildKind, name: str) -> Manifest | None:
        """The child, unless it is on its way out."""
        manifest = self.children[kind.key].get(name)
        return None if manifest is None or is_terminating(manifest) else manifest

    def related_object(self, kind: ChildKind, name: str, namespace: str | None = None) -> Manifest | None:
        """An object that is no child of this instance, by default of the instance's namespace."""
        objects = self.related.get(kind.key) or {}
        return objects.get(f"{namespace or self.parent.namespace}/{name}")

    def related_objects(self, kind: ChildKind) -> Iterable[Manifest]:
        return (self.related.get(kind.key) or {}).values()


def is_terminating(manifest: Manifest) -> bool:
    return bool(manifest["metadata"].get("deletionTimestamp"))


def parse_request(body: Any) -> HookRequest:
    """A sync or finalize request. Raises MalformedRequest."""
    request = _mapping(body, "the request")
    parent = parse_parent(request.get("parent"))
    children = _children(request.get("children"), parent.namespace)
    missing = [kind.key for kind in CHILD_KINDS if kind.key not in children]
    if missing:
        raise MalformedRequest(
            f"children lacks {', '.join(missing)}: the CompositeController does not name all kinds"
        )
    return HookRequest(parent, children, _objects(request.get("related"), "related"))


def parse_parent(value: Any) -> Parent:
    """Raises MalformedRequest."""
    manifest = _mapping(value, "parent")
    if (manifest.get("apiVersion"), manifest.get("kind")) != (names.API_VERSION, names.KIND):
        raise MalformedRequest(f"parent is no {names.KIND} of {names.API_VERSION}")
    metadata = _mapping(manifest.get("metadata"), "parent.metadata")
    return Parent(
        manifest,
        _text(metadata, "name", "parent"),
        _text(metadata, "namespace", "parent"),
        _text(metadata, "uid", "parent"),
        generation=metadata.get("generation") or 0,
    )


def _children(value: Any, namespace: str) -> Objects:
    prefix = f"{namespace}/"
    return {
        kind: {_name(key, prefix, kind): manifest for key, manifest in objects.items()}
        for kind, objects in _objects(value, "children").items()
    }


def _name(key: str, prefix: str, kind: str) -> str:
    if not key.startswith(prefix):
        raise MalformedRequest(f"children[{kind}] has {key}, which is not in the instance's namespace")
    return key.removeprefix(prefix)


def _objects(value: Any, where: str) -> Objects:
    return {
        kind: {
            key: _object(manifest, key, f"{where}[{kind}]")
            for key, manifest in _mapping(objects, f"{where}[{kind}]").items()
        }
        for kind, objects in _mapping(value, where).items()
    }


def _object(value: Any, key: str, where: str) -> Manifest:
    manifest = _mapping(value, f"{where}[{key}]")
    metadata = _mapping(manifest.get("metadata"), f"{where}[{key}].metadata")
    if f"{_text(metadata, 'namespace', key)}/{_text(metadata, 'name', key)}" != key:
        raise MalformedRequest(f"{where}[{key}] is another object")
    return manifest


def _mapping(value: Any, where: str) -> Manifest:
    if not isinstance(value, dict):
        raise MalformedRequest(f"{where} is no object")
    return value


def _text(mapping: Mapping[str, Any], key: str, where: str) -> str:
    value = mapping.get(key)
    if not isinstance(value, str) or not value:
        raise MalformedRequest(f"{where}.{key} is no text")
    return value
