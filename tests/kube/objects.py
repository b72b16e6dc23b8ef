"""Kubernetes objects as plain JSON: copying, comparing and the paths that everything reads.

Stored objects are never changed in place; whoever changes one copies it first.
"""

from __future__ import annotations

from typing import Any, TypeAlias, TypeVar

Object: TypeAlias = dict[str, Any]
Json = TypeVar("Json")


def copy_json(value: Json) -> Json:
    """A deep copy of JSON data; several times faster than copy.deepcopy."""
    return _copy(value)  # type: ignore[no-any-return]


def _copy(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copy(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_copy(item) for item in value]
    return value


def through_go(value: Any) -> Any:
    """A deep copy as Go's JSON encoder would pass it on: a float without a fraction becomes an integer."""
    if isinstance(value, dict):
        return {key: through_go(item) for key, item in value.items()}
    if isinstance(value, list):
        return [through_go(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def same_json(left: Any, right: Any) -> bool:
    """Go's reflect.DeepEqual on decoded JSON: unlike Python, 1 is neither 1.0 nor True."""
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(same_json(left[key], right[key]) for key in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(same_json, left, right))
    return type(left) is type(right) and bool(left == right)


def metadata(obj: Object) -> Object:
    """The object's metadata, `{}` when it has none or an explicit null."""
    return obj.get("metadata") or {}


def name_of(obj: Object) -> str:
    return str(metadata(obj).get("name") or "")


def namespace_of(obj: Object) -> str:
    """`""` for cluster-scoped objects."""
    return str(metadata(obj).get("namespace") or "")


def uid_of(obj: Object) -> str:
    return str(metadata(obj).get("uid") or "")


def revision_of(obj: Object) -> str:
    return str(metadata(obj).get("resourceVersion") or "")


def labels_of(obj: Object) -> dict[str, str]:
    return metadata(obj).get("labels") or {}


def annotations_of(obj: Object) -> dict[str, str]:
    return metadata(obj).get("annotations") or {}


def finalizers_of(obj: Object) -> list[str]:
    return metadata(obj).get("finalizers") or []


def owners_of(obj: Object) -> list[Object]:
    return metadata(obj).get("ownerReferences") or []


def controller_of(obj: Object) -> Object | None:
    """The one owner reference that says `controller: true`."""
    return next((owner for owner in owners_of(obj) if owner.get("controller")), None)


def is_terminating(obj: Object) -> bool:
    return bool(metadata(obj).get("deletionTimestamp"))
