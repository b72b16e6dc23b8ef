"""How a built-in object looks after it went through the API server's Go types.

Empty values of fields that Go omits disappear, quantities become canonical, and defaults are filled in. A
template that differs from its normal form makes Metacontroller write it again on every sync, so this decides
which templates are at rest. Defaults: k8s.io/kubernetes/pkg/apis/*/v1/defaults.go.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

from tests.kube.objects import copy_json
from tests.kube.quantity import canonical

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.kube.objects import Object

# Pointers to structs, and structs without omitempty: an empty object stays.
KEPT_EMPTY_OBJECTS = frozenset(
    (
        "emptyDir",
        "securityContext",
        "podSelector",
        "namespaceSelector",
        "resources",
        "selector",
        "status",
        "spec",
    )
)
# Plain Go booleans and numbers with omitempty: false and 0 disappear. Others are pointers, which keep them.
OMITTED_FALSE = frozenset(
    (
        "hostNetwork",
        "hostPID",
        "hostIPC",
        "readOnly",
        "stdin",
        "stdinOnce",
        "tty",
        "paused",
        "publishNotReadyAddresses",
    )
)
OMITTED_ZERO = frozenset(("initialDelaySeconds", "minReadySeconds", "nodePort", "hostPort"))
# No omitempty: an empty or missing list is stored as null.
NULL_LISTS = {"Role": ("rules",), "ClusterRole": ("rules",), "EndpointSlice": ("endpoints", "ports")}
QUANTITY_MAPS = frozenset(("limits", "requests"))
QUANTITIES = frozenset(("sizeLimit",))
FREE_MAPS = frozenset(
    ("data", "stringData", "binaryData", "labels", "annotations", "matchLabels", "nodeSelector")
)


def normalise(obj: Object) -> Object:
    """The object as the API server would store it; custom resources are not for here."""
    normal: Object = _without_empty(obj, "")
    normal.setdefault("metadata", {})
    for field in NULL_LISTS.get(obj.get("kind", ""), ()):
        normal.setdefault(field, None)
    default = _DEFAULTS.get(obj.get("kind", ""))
    if default:
        default(normal)
    return normal


def _without_empty(value: Any, field: str) -> Any:
    if isinstance(value, list):
        return [_without_empty(item, "") for item in value]
    if not isinstance(value, dict):
        return canonical(value) if field in QUANTITIES else value
    if field in QUANTITY_MAPS and all(isinstance(item, str | int | float) for item in value.values()):
        return {key: canonical(item) for key, item in value.items()}
    if field in FREE_MAPS:
        return {key: "" if item is None else item for key, item in value.items()}
    kept = {key: _without_empty(item, key) for key, item in value.items()}
    return {key: item for key, item in kept.items() if not _is_omitted(key, item)}


def _is_omitted(field: str, value: Any) -> bool:
    if value is False:
        return field in OMITTED_FALSE
    if value == 0 and isinstance(value, int):
        return field in OMITTED_ZERO
    if value == {}:
        return field not in KEPT_EMPTY_OBJECTS
    return value is None or value in ("", [])


def default_pod_spec(spec: Object) -> None:
    """Fills a PodSpec in place: of a Pod, or of the template in a Deployment."""
    _fill(
        spec,
        dnsPolicy="ClusterFirst",
        restartPolicy="Always",
        schedulerName="default-scheduler",
        securityContext={},
        terminationGracePeriodSeconds=30,
    )
    if name := spec.get("serviceAccountName"):
        spec["serviceAccount"] = name  # the deprecated alias is always written
    for container in (*spec.get("initContainers", ()), *spec.get("containers", ())):
        _default_container(container)
    for volume in spec.get("volumes", ()):
        _default_volume(volume)


def _default_container(container: Object) -> None:
    image = container.get("image", "")
    tag = image.rpartition("/")[2].partition(":")[2]
    always = not tag or tag == "latest"
    _fill(
        container,
        imagePullPolicy="Always" if always and "@" not in image else "IfNotPresent",
        resources={},
        terminationMessagePath="/dev/termination-log",
        terminationMessagePolicy="File",
    )
    for port in container.get("ports", ()):
        _fill(port, protocol="TCP")
    for probe in ("livenessProbe", "readinessProbe", "startupProbe"):
        if probe in container:
            _default_probe(container[probe])
    for hook in container.get("lifecycle", {}).values():
        _default_http_get(hook)
    for item in container.get("env", ()):
        _default_field_ref(item.get("valueFrom", {}))
    limits = container["resources"].get("limits", {})
    if limits:
        container["resources"]["requests"] = {**limits, **container["resources"].get("requests", {})}


def _default_probe(probe: Object) -> None:
    _fill(probe, timeoutSeconds=1, periodSeconds=10, successThreshold=1, failureThreshold=3)
    _default_http_get(probe)
    if "grpc" in probe:
        _fill(probe["grpc"], service="")


def _default_http_get(action: Object) -> None:
    if "httpGet" in action:
        _fill(action["httpGet"], path="/", scheme="HTTP")


def _default_field_ref(source: Object) -> None:
    if "fieldRef" in source:
        _fill(source["fieldRef"], apiVersion="v1")
    if "resourceFieldRef" in source:
        _fill(source["resourceFieldRef"], divisor="0")


def _default_volume(volume: Object) -> None:
    for kind in ("secret", "configMap", "projected", "downwardAPI"):
        if kind in volume:
            _fill(volume[kind], defaultMode=0o644)
    for item in volume.get("downwardAPI", {}).get("items", ()):
        _default_field_ref(item)
    for source in volume.get("projected", {}).get("sources", ()):
        if "serviceAccountToken" in source:
            _fill(source["serviceAccountToken"], expirationSeconds=3600)
        for item in source.get("downwardAPI", {}).get("items", ()):
            _default_field_ref(item)
    if "hostPath" in volume:
        _fill(volume["hostPath"], type="")


def _pod(obj: Object) -> None:
    spec = obj.setdefault("spec", {})
    default_pod_spec(spec)
    _fill(spec, enableServiceLinks=True)


def _deployment(obj: Object) -> None:
    spec = obj.setdefault("spec", {})
    _fill(spec, replicas=1, strategy={}, revisionHistoryLimit=10, progressDeadlineSeconds=600)
    _fill(spec["strategy"], type="RollingUpdate")
    if spec["strategy"]["type"] == "RollingUpdate":
        _fill(spec["strategy"], rollingUpdate={})
        _fill(spec["strategy"]["rollingUpdate"], maxSurge="25%", maxUnavailable="25%")
    default_pod_spec(spec.setdefault("template", {}).setdefault("spec", {}))


def _service(obj: Object) -> None:
    spec = obj.setdefault("spec", {})
    _fill(spec, type="ClusterIP", sessionAffinity="None", internalTrafficPolicy="Cluster")
    if spec["type"] in ("NodePort", "LoadBalancer"):
        _fill(spec, externalTrafficPolicy="Cluster")
    for port in spec.get("ports", ()):
        _fill(port, protocol="TCP", targetPort=port.get("port"))


def _network_policy(obj: Object) -> None:
    spec = obj.setdefault("spec", {})
    _fill(spec, policyTypes=["Ingress", "Egress"] if spec.get("egress") else ["Ingress"])
    for rule in (*spec.get("ingress", ()), *spec.get("egress", ())):
        for port in rule.get("ports", ()):
            _fill(port, protocol="TCP")


def _secret(obj: Object) -> None:
    _fill(obj, type="Opaque")
    written = obj.pop("stringData", None)
    if written:
        encoded = {key: base64.b64encode(text.encode()).decode() for key, text in written.items()}
        obj["data"] = {**obj.get("data", {}), **encoded}


def _role_binding(obj: Object) -> None:
    group = "rbac.authorization.k8s.io"
    _fill(obj.setdefault("roleRef", {}), apiGroup=group)
    for subject in obj.get("subjects", ()):
        if subject.get("kind") in ("User", "Group"):
            _fill(subject, apiGroup=group)


def _claim(obj: Object) -> None:
    _fill(obj.setdefault("spec", {}), volumeMode="Filesystem")
    _fill(obj["spec"], resources={})


_DEFAULTS: dict[str, Callable[[Object], None]] = {
    "Pod": _pod,
    "Deployment": _deployment,
    "Service": _service,
    "NetworkPolicy": _network_policy,
    "Secret": _secret,
    "RoleBinding": _role_binding,
    "ClusterRoleBinding": _role_binding,
    "PersistentVolumeClaim": _claim,
}


def _fill(target: Object, **defaults: Any) -> None:
    for key, value in defaults.items():
        if key not in target:
            target[key] = copy_json(value)
