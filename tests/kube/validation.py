"""Which built-in objects the API server refuses, and which of their fields can never change.

Only the rules that this project can run into; k8s.io/kubernetes/pkg/apis/*/validation has all of them.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from tests.kube.objects import annotations_of, copy_json, labels_of, name_of, same_json

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.kube.objects import Object
    from tests.kube.schema import Cause

# RFC 1123: most names are subdomains, names of Services (RFC 1035) and containers are labels.
_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
DNS_LABEL = re.compile(_LABEL)
DNS_SUBDOMAIN = re.compile(rf"{_LABEL}(\.{_LABEL})*")
SERVICE_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
PATH_SEGMENT = re.compile(r"[^/%]+")  # names of RBAC objects
LABEL_KEY = re.compile(r"([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
DATA_KEY = re.compile(r"[-._a-zA-Z0-9]{1,253}")
LABEL_MAX_CHARS = 63
SUBDOMAIN_MAX_CHARS = 253
ANNOTATIONS_MAX_BYTES = 256 * 1024

_RBAC_KINDS = frozenset(("Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"))

# Field paths that an update may not change.
IMMUTABLE: dict[str, tuple[tuple[str, ...], ...]] = {
    "Deployment": (("spec", "selector"),),
    "RoleBinding": (("roleRef",),),
    "ClusterRoleBinding": (("roleRef",),),
    "Secret": (("type",),),
    "Service": (("spec", "clusterIP"),),
    "PersistentVolumeClaim": (("spec", "accessModes"), ("spec", "storageClassName"), ("spec", "volumeMode")),
}
_POD_REFUSAL = (
    "Forbidden: pod updates may not change fields other than `spec.containers[*].image`,"
    "`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,"
    "`spec.tolerations` (only additions to existing tolerations),"
    "`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"
)


def validate_metadata(obj: Object) -> list[Cause]:
    """Names, labels and annotations, for every kind."""
    causes: list[Cause] = []
    name, kind = name_of(obj), str(obj.get("kind"))
    form, limit = _name_form(kind)
    if not form.fullmatch(name) or len(name) > limit:
        causes.append(
            ("metadata.name", f'Invalid value: "{name}": must be a valid name, at most {limit} characters')
        )
    for key, value in labels_of(obj).items():
        if not LABEL_KEY.fullmatch(key):
            causes.append(("metadata.labels", f'Invalid value: "{key}": not a label key'))
        if not isinstance(value, str) or not LABEL_VALUE.fullmatch(value):
            causes.append(("metadata.labels", f'Invalid value: "{value}": not a label value'))
    annotations = annotations_of(obj)
    if sum(len(f"{key}{value}".encode()) for key, value in annotations.items()) > ANNOTATIONS_MAX_BYTES:
        causes.append(
            ("metadata.annotations", f"Too long: may not be more than {ANNOTATIONS_MAX_BYTES} bytes")
        )
    return causes


def _name_form(kind: str) -> tuple[re.Pattern[str], int]:
    if kind in _RBAC_KINDS:
        return PATH_SEGMENT, SUBDOMAIN_MAX_CHARS
    if kind == "Service":
        return SERVICE_NAME, LABEL_MAX_CHARS
    if kind == "Namespace":
        return DNS_LABEL, LABEL_MAX_CHARS
    return DNS_SUBDOMAIN, SUBDOMAIN_MAX_CHARS


def validate_object(obj: Object) -> list[Cause]:
    """The content of a built-in object, after defaulting."""
    check = _CHECKS.get(str(obj.get("kind")))
    return check(obj) if check else []


def _pod(obj: Object) -> list[Cause]:
    return _pod_spec(obj.get("spec", {}), "spec")


def _pod_spec(spec: Object, path: str) -> list[Cause]:
    causes: list[Cause] = []
    if not spec.get("containers"):
        causes.append((f"{path}.containers", "Required value"))
    volumes = {volume.get("name") for volume in spec.get("volumes", ())}
    seen: set[str] = set()
    for field in ("initContainers", "containers"):
        for index, container in enumerate(spec.get(field, ())):
            where = f"{path}.{field}[{index}]"
            name = container.get("name", "")
            if not DNS_LABEL.fullmatch(name) or len(name) > LABEL_MAX_CHARS:
                causes.append((f"{where}.name", f'Invalid value: "{name}": must be an RFC 1123 label'))
            if name in seen:
                causes.append((f"{where}.name", f'Duplicate value: "{name}"'))
            seen.add(name)
            if not container.get("image"):
                causes.append((f"{where}.image", "Required value"))
            causes += [
                (f"{where}.volumeMounts[{at}].name", f'Not found: "{mount.get("name")}"')
                for at, mount in enumerate(container.get("volumeMounts", ()))
                if mount.get("name") not in volumes
            ]
    return causes


def _deployment(obj: Object) -> list[Cause]:
    spec = obj.get("spec", {})
    template = spec.get("template", {})
    wanted = (spec.get("selector") or {}).get("matchLabels") or {}
    causes = _pod_spec(template.get("spec", {}), "spec.template.spec")
    if not wanted:
        causes.append(("spec.selector", "Required value"))
    if any(labels_of(template).get(key) != value for key, value in wanted.items()):
        causes.append(
            ("spec.template.metadata.labels", "Invalid value: `selector` does not match template `labels`")
        )
    return causes


def _service(obj: Object) -> list[Cause]:
    ports = obj.get("spec", {}).get("ports", ())
    identities = [(port.get("port"), port.get("protocol")) for port in ports]
    causes = [
        (f"spec.ports[{at}]", f"Duplicate value: {identity}")
        for at, identity in enumerate(identities)
        if identity in identities[:at]
    ]
    if not ports and obj["spec"].get("clusterIP") != "None" and obj["spec"].get("type") != "ExternalName":
        causes.append(("spec.ports", "Required value"))
    if len(ports) > 1:
        causes += [
            (f"spec.ports[{at}].name", "Required value")
            for at, port in enumerate(ports)
            if not port.get("name")
        ]
    return causes


def _data(obj: Object) -> list[Cause]:
    causes = [
        (
            f"data[{key}]",
            f'Invalid value: "{key}": a valid config key must consist of alphanumerics, "-", "_" or "."',
        )
        for key in obj.get("data") or {}
        if not DATA_KEY.fullmatch(key)
    ]
    return causes + [
        (f"data[{key}]", "must be a string")
        for key, value in (obj.get("data") or {}).items()
        if not isinstance(value, str)
    ]


_CHECKS: dict[str, Callable[[Object], list[Cause]]] = {
    "Pod": _pod,
    "Deployment": _deployment,
    "Service": _service,
    "ConfigMap": _data,
    "Secret": _data,
}


def validate_update(before: Object, after: Object) -> list[Cause]:
    """Changes of fields that can never change."""
    kind = str(after.get("kind"))
    causes = [
        (".".join(path), f"Invalid value: {_at(after, path)!r}: field is immutable")
        for path in IMMUTABLE.get(kind, ())
        if not same_json(_at(before, path), _at(after, path))
    ]
    if kind in ("Secret", "ConfigMap") and before.get("immutable"):
        causes += [
            (field, "Forbidden: field is immutable when `immutable` is set")
            for field in ("data", "binaryData", "immutable")
            if not same_json(before.get(field), after.get(field))
        ]
    return causes + (_pod_update(before, after) if kind == "Pod" else [])


def _at(obj: Any, path: tuple[str, ...]) -> Any:
    for key in path:
        obj = obj.get(key) if isinstance(obj, dict) else None
    return obj


def _pod_update(before: Object, after: Object) -> list[Cause]:
    old, new = before.get("spec", {}), after.get("spec", {})
    for field in ("containers", "initContainers"):
        if len(old.get(field, ())) != len(new.get(field, ())):
            return [(f"spec.{field}", "Forbidden: pod updates may not add or remove containers")]
    if same_json(_fixed_part(old), _fixed_part(new)) and _only_adds(old, new, "tolerations"):
        return []
    return [("spec", _POD_REFUSAL)]


def _fixed_part(spec: Object) -> Object:
    fixed: Object = copy_json(spec)
    for field in ("activeDeadlineSeconds", "tolerations"):
        fixed.pop(field, None)
    for container in (*fixed.get("containers", ()), *fixed.get("initContainers", ())):
        container.pop("image", None)
    return fixed


def _only_adds(old: Object, new: Object, field: str) -> bool:
    return all(item in new.get(field, ()) for item in old.get(field, ()))
