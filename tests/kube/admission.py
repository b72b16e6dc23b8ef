"""What the API server's admission adds to a new object, and what it refuses because of others.

Pods: ServiceAccount, Priority, DefaultTolerationSeconds. Services: addresses and ports. Namespaces: the
life cycle. The default ServiceAccount and kube-root-ca.crt, which controllers make in every namespace, are
there at once.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from tests.kube.objects import Object, copy_json, is_terminating, name_of, namespace_of

if TYPE_CHECKING:
    from collections.abc import Callable

# k8s.io/kubernetes/plugin/pkg/admission/defaulttolerationseconds
_TOLERATIONS = [
    {
        "effect": "NoExecute",
        "key": f"node.kubernetes.io/{condition}",
        "operator": "Exists",
        "tolerationSeconds": 300,
    }
    for condition in ("not-ready", "unreachable")
]
_TOKEN_MOUNT_PATH = "/var/run/secrets/kubernetes.io/serviceaccount"
_NODE_PORTS = range(30000, 32768)
NAMESPACE_DEFAULTS = (("serviceaccounts", "default"), ("configmaps", "kube-root-ca.crt"))


class Refused(Exception):
    """403: the object is fine in itself, but not here and now."""


def admit_pod(pod: Object, find: Callable[[str, str, str], Object | None]) -> None:
    """Completes a new pod in place; `find(kind, namespace, name)` looks other objects up.

    Raises:
        Refused: when its ServiceAccount does not exist.
    """
    spec = pod["spec"]
    name = spec.setdefault("serviceAccountName", "default")
    account = find("serviceaccounts", namespace_of(pod), name)
    if account is None:
        raise Refused(
            f'error looking up service account {namespace_of(pod)}/{name}: serviceaccount "{name}" not found'
        )
    spec["serviceAccount"] = name
    if spec.get("automountServiceAccountToken", account.get("automountServiceAccountToken", True)):
        _mount_token(pod)
    if "priorityClassName" not in spec:
        spec.setdefault("priority", 0)
    spec.setdefault("preemptionPolicy", "PreemptLowerPriority")
    add_tolerations(spec)


def add_tolerations(spec: Object) -> None:
    """DefaultTolerationSeconds, which acts on every write of a pod."""
    tolerations = spec.setdefault("tolerations", [])
    tolerations += [copy_json(it) for it in _TOLERATIONS if not any(_covers(own, it) for own in tolerations)]


def _covers(toleration: Object, added: Object) -> bool:
    same_key = toleration.get("key") == added["key"] or (
        not toleration.get("key") and toleration.get("operator") == "Exists"
    )
    return same_key and toleration.get("effect") in (None, "", added["effect"])


def _mount_token(pod: Object) -> None:
    """The projected token volume; its name ends in five characters that are random on a real server."""
    spec = pod["spec"]
    containers = [*spec.get("initContainers", ()), *spec.get("containers", ())]
    without = [
        it
        for it in containers
        if not any(m["mountPath"] == _TOKEN_MOUNT_PATH for m in it.get("volumeMounts", ()))
    ]
    if not without:
        return
    suffix = hashlib.sha256(f"{namespace_of(pod)}/{name_of(pod)}".encode()).hexdigest()[:5]
    volume = f"kube-api-access-{suffix}"
    for container in without:
        mount = {"name": volume, "mountPath": _TOKEN_MOUNT_PATH, "readOnly": True}
        container["volumeMounts"] = [*container.get("volumeMounts", ()), mount]
    namespace = {"fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}, "path": "namespace"}
    sources = [
        {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
        {"configMap": {"items": [{"key": "ca.crt", "path": "ca.crt"}], "name": "kube-root-ca.crt"}},
        {"downwardAPI": {"items": [namespace]}},
    ]
    projected = {"defaultMode": 0o644, "sources": sources}
    spec["volumes"] = [*spec.get("volumes", ()), {"name": volume, "projected": projected}]


def admit_service(service: Object, number: int, taken_node_ports: set[int]) -> None:
    """Gives a Service its addresses; `number` counts Services."""
    spec = service["spec"]
    if spec["type"] == "ExternalName":
        return
    address = spec.setdefault("clusterIP", f"10.96.{number // 250}.{number % 250 + 1}")
    spec.setdefault("clusterIPs", [address])
    dual = address == "None" and not spec.get(
        "selector"
    )  # whoever writes the endpoints may want either family
    spec.setdefault("ipFamilies", ["IPv4", "IPv6"] if dual else ["IPv4"])
    spec.setdefault("ipFamilyPolicy", "RequireDualStack" if dual else "SingleStack")
    if spec["type"] == "ClusterIP":
        return
    for port in spec.get("ports", ()):
        if not port.get("nodePort"):
            port["nodePort"] = next(it for it in _NODE_PORTS if it not in taken_node_ports)
            taken_node_ports.add(port["nodePort"])


def keep_allocated(before: Object, after: Object) -> None:
    """An update that leaves out what was allocated to a Service keeps it."""
    old, new = before["spec"], after["spec"]
    for field in ("clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"):
        if field in old:
            new.setdefault(field, copy_json(old[field]))
    ports = {(port["port"], port["protocol"]): port for port in old.get("ports", ())}
    for port in new.get("ports", ()):
        former = ports.get((port.get("port"), port.get("protocol")), {})
        if new["type"] != "ClusterIP" and former.get("nodePort"):
            port.setdefault("nodePort", former["nodePort"])


def admit_into(namespace: Object | None, name: str) -> None:
    """Nothing is created in a namespace that is being deleted.

    Raises:
        Refused: when it terminates.
    """
    if namespace is not None and is_terminating(namespace):
        raise Refused(f"unable to create new content in namespace {name} because it is being terminated")


def new_status(kind: str, obj: Object) -> Object | None:
    """The status that an object is born with; what the creator sent is dropped."""
    match kind:
        case "Pod":
            return {"phase": "Pending", "qosClass": _quality_of_service(obj["spec"])}
        case "Namespace":
            return {"phase": "Active"}
        case "PersistentVolumeClaim":
            return {"phase": "Pending"}
        case "Service":
            return {"loadBalancer": {}}
        case "Deployment":
            return {}
    return None


def _quality_of_service(spec: Object) -> str:
    """Kubernetes' QoS classes: Guaranteed when the limits of both resources equal the requests everywhere."""
    resources = [
        it.get("resources", {}) for it in (*spec.get("containers", ()), *spec.get("initContainers", ()))
    ]
    if not any(it.get("limits") or it.get("requests") for it in resources):
        return "BestEffort"
    both = {"cpu", "memory"}
    guaranteed = all(
        both <= it.get("limits", {}).keys() and it.get("requests", {}) == it.get("limits", {})
        for it in resources
    )
    return "Guaranteed" if guaranteed else "Burstable"
