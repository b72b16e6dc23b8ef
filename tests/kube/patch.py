"""The four ways to PATCH: merge patch (RFC 7386), JSON patch (RFC 6902), strategic merge, server-side apply.

Pure: an object and a patch in, a new object out. Strategic merge knows the list keys that this project meets.
Server-side apply is approximate: it merges like a strategic merge patch and never finds a conflict of owners.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.kube import errors
from tests.kube.objects import copy_json, same_json

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.kube.objects import Object
    from tests.kube.resources import Resource

MERGE = "application/merge-patch+json"
JSON = "application/json-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
APPLY = "application/apply-patch+yaml"

# x-kubernetes-patch-merge-key of the lists that are merged by key; every other list is replaced whole.
LIST_KEYS = {
    "containers": "name",
    "initContainers": "name",
    "env": "name",
    "volumes": "name",
    "volumeMounts": "mountPath",
    "imagePullSecrets": "name",
    "hostAliases": "ip",
    "conditions": "type",
    "ownerReferences": "uid",
}
# `ports` is keyed differently in containers and in Services.
PORT_KEYS = ("containerPort", "port")


def apply_patch(resource: Resource, name: str, current: Object, patch: Any, content_type: str) -> Object:
    """The patched object; `current` stays as it is.

    Raises:
        ApiError: 415 for an unknown type, 400 for a patch of the wrong form, 422 if it cannot be applied.
    """
    if content_type == JSON:
        return _checked(json_patch(resource, name, current, patch))
    if content_type not in _MERGES or (content_type == STRATEGIC and resource.is_custom):
        raise errors.unsupported_media_type(content_type)
    if not isinstance(patch, dict):
        raise errors.bad_request("the patch is not a JSON object")
    return _checked(_MERGES[content_type](current, patch))


def _checked(obj: Any) -> Object:
    if not isinstance(obj, dict) or not isinstance(obj.get("metadata"), dict):
        raise errors.bad_request("the patched object has no metadata")
    return obj


def merge_patch(target: Any, patch: Any) -> Any:
    """RFC 7386: null removes a key, everything that is not an object is replaced."""
    if not isinstance(patch, dict):
        return copy_json(patch)
    merged = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge_patch(merged.get(key), value)
    return merged


def strategic_merge_patch(target: Any, patch: Any, field: str = "") -> Any:
    """A merge patch that merges lists with a merge key item by item; `$patch: delete` removes an item."""
    if isinstance(patch, list):
        key = _list_key(field, patch)
        return _merge_list(target or [], patch, key) if key else copy_json(patch)
    if not isinstance(patch, dict):
        return copy_json(patch)
    if patch.get("$patch") == "replace":
        return {key: copy_json(value) for key, value in patch.items() if key != "$patch"}
    merged = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = strategic_merge_patch(merged.get(key), value, key)
    return merged


def _list_key(field: str, patch: list[Any]) -> str | None:
    if not all(isinstance(item, dict) for item in patch):
        return None
    if field == "ports":
        return next((key for key in PORT_KEYS if all(key in item for item in patch)), None)
    return LIST_KEYS.get(field)


def _merge_list(target: list[Any], patch: list[Any], key: str) -> list[Any]:
    items = {item.get(key): item for item in target}
    for change in patch:
        if change.get("$patch") == "delete":
            items.pop(change.get(key), None)
        else:
            items[change.get(key)] = strategic_merge_patch(items.get(change.get(key)), change)
    return list(items.values())


_MERGES: dict[str, Callable[[Any, Any], Any]] = {
    MERGE: merge_patch,
    STRATEGIC: strategic_merge_patch,
    APPLY: strategic_merge_patch,
}


def json_patch(resource: Resource, name: str, target: Object, operations: Any) -> Any:
    """RFC 6902: all operations or none.

    Raises:
        ApiError: 400 when it is not a list of operations, 422 when a path is missing or a test fails.
    """
    if not isinstance(operations, list):
        raise errors.bad_request("a JSON patch is a list of operations")
    document: Any = copy_json(target)
    for operation in operations:
        if not isinstance(operation, dict) or operation.get("op") not in _OPERATIONS:
            raise errors.bad_request(f"not a JSON patch operation: {operation!r}")
        try:
            document = _OPERATIONS[operation["op"]](document, operation)
        except (KeyError, IndexError, ValueError, TypeError) as error:
            raise errors.invalid(
                resource, name, [("patch", f"the operation {operation!r} cannot be applied: {error}")]
            ) from error
    return document


def _pointer(path: str) -> list[str]:
    """RFC 6901: `/a~1b/0` is `["a/b", "0"]`."""
    if path and not path.startswith("/"):
        raise ValueError(f"{path!r} is not a JSON pointer")
    return [part.replace("~1", "/").replace("~0", "~") for part in path.split("/")[1:]]


def _find(document: Any, path: str) -> Any:
    for part in _pointer(path):
        document = document[int(part)] if isinstance(document, list) else document[part]
    return document


def _parent(document: Any, path: str) -> tuple[Any, str]:
    *parents, last = _pointer(path)
    for part in parents:
        document = document[int(part)] if isinstance(document, list) else document[part]
    return document, last


def _put(document: Any, path: str, value: Any) -> Any:
    if not path:
        return value
    container, last = _parent(document, path)
    if not isinstance(container, list):
        container[last] = value
    elif last == "-":
        container.append(value)
    else:
        if not 0 <= int(last) <= len(container):
            raise IndexError(f"{path} is out of range")
        container.insert(int(last), value)
    return document


def _take(document: Any, path: str) -> Any:
    container, last = _parent(document, path)
    if isinstance(container, list):
        return container.pop(int(last))
    return container.pop(last)


def _add(document: Any, operation: Object) -> Any:
    return _put(document, operation["path"], copy_json(operation["value"]))


def _remove(document: Any, operation: Object) -> Any:
    _take(document, operation["path"])
    return document


def _replace(document: Any, operation: Object) -> Any:
    if not operation["path"]:
        return copy_json(operation["value"])
    _take(document, operation["path"])
    return _add(document, operation)


def _move(document: Any, operation: Object) -> Any:
    return _put(document, operation["path"], _take(document, operation["from"]))


def _copy(document: Any, operation: Object) -> Any:
    return _put(document, operation["path"], copy_json(_find(document, operation["from"])))


def _test(document: Any, operation: Object) -> Any:
    if not same_json(_find(document, operation["path"]), operation["value"]):
        raise ValueError(f"testing value {operation['path']} failed")
    return document


_OPERATIONS: dict[str, Callable[[Any, Object], Any]] = {
    "add": _add,
    "remove": _remove,
    "replace": _replace,
    "move": _move,
    "copy": _copy,
    "test": _test,
}
