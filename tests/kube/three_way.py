"""Metacontroller's dynamic apply: a three-way merge of what is observed, was applied last, and is desired.

Pure. Source: pkg/dynamic/apply/apply.go, and ApplyUpdate in pkg/controller/common/manage_children.go,
v4.17.2.
"""

from __future__ import annotations

import json
import re
from typing import Any

from tests.kube.objects import Object, annotations_of, copy_json, through_go

LAST_APPLIED = "metacontroller.k8s.io/last-applied-configuration"

# A list whose items all have one of these keys is merged by the first such key, whatever it means there.
GUESSED_KEYS = ("containerPort", "port", "mountPath", "name", "uid", "ip", "path")

# How floats without a fraction end in Python, as in 1.0 and 1e+16. Strings that look so only cost time; JSON
# in a string, which goes on with an escaped quotation mark, does not look so.
_WHOLE_FLOATS = (re.compile(r"\.0([]}]|,[^\\]|$)"), re.compile(r"e\+\d"))

_SYSTEM_METADATA = (
    "selfLink",
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "managedFields",
)


class MergeError(Exception):
    """The last-applied annotation cannot be read."""


def go_json(value: Any) -> str:
    """Go's json.Marshal: sorted keys, no spaces, `<`, `>` and `&` escaped, whole floats as integers."""
    text = _sorted_json(value)
    if any(ending.search(text) for ending in _WHOLE_FLOATS):
        text = _sorted_json(through_go(value))
    for char in "<>&\u2028\u2029":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return text


def _sorted_json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def last_applied(obj: Object) -> Object | None:
    """The content of the annotation, None without one.

    Raises:
        MergeError: when it is not JSON.
    """
    text = annotations_of(obj).get(LAST_APPLIED)
    if not text:
        return None
    try:
        content: Object = json.loads(text)
    except ValueError as error:
        raise MergeError(f"can't unmarshal {LAST_APPLIED!r} annotation: {error}") from error
    return content


def with_last_applied(obj: Object, applied: Object) -> Object:
    """The object with `applied` written into its annotation."""
    annotations = {**annotations_of(obj), LAST_APPLIED: go_json(applied)}
    return {**obj, "metadata": {**obj["metadata"], "annotations": annotations}}


def without_last_applied(desired: Object) -> Object:
    """The annotation never nests: a desired object that carries it loses it (an empty map stays)."""
    if LAST_APPLIED not in annotations_of(desired):
        return desired
    annotations = {key: value for key, value in annotations_of(desired).items() if key != LAST_APPLIED}
    return {**desired, "metadata": {**desired["metadata"], "annotations": annotations}}


def apply_update(observed: Object, desired: Object) -> Object:
    """The object that Metacontroller would PUT; `same_json` as `observed` when there is nothing to do.

    Raises:
        MergeError: when the annotation of `observed` is not JSON.
    """
    wanted = without_last_applied(desired)
    merged: Object = merge(copy_json(observed), last_applied(observed) or {}, copy_json(wanted))
    meta = dict(merged.get("metadata") or {})
    for field in _SYSTEM_METADATA:
        _revert(meta, observed["metadata"], field)
    merged["metadata"] = meta
    _revert(merged, observed, "status")
    return with_last_applied(merged, wanted)


def _revert(target: Object, original: Object, field: str) -> None:
    if field in original:
        target[field] = original[field]
    else:
        target.pop(field, None)


def merge(observed: Any, applied: Any, desired: Any) -> Any:
    """`observed` with the difference from `applied` to `desired` applied to it.

    What was applied and is no longer desired goes; what was never applied stays. Where `observed` is an
    object or a list, a value of any other type counts as an empty one.
    """
    if isinstance(observed, dict):
        return _merge_objects(observed, _as(dict, applied), _as(dict, desired))
    if isinstance(observed, list):
        return _merge_lists(observed, _as(list, applied), _as(list, desired))
    return desired


def _as(kind: type, value: Any) -> Any:
    return value if isinstance(value, kind) else kind()


def _merge_objects(observed: Object, applied: Object, desired: Object) -> Object:
    merged = {key: value for key, value in observed.items() if key not in applied or key in desired}
    for key, value in desired.items():
        merged[key] = merge(merged.get(key), applied.get(key), value)
    return merged


def _merge_lists(observed: list[Any], applied: list[Any], desired: list[Any]) -> list[Any]:
    key = guess_key(observed, applied, desired)
    if key is None:
        return desired
    items = [{str(item[key]): item for item in side} for side in (observed, applied, desired)]
    merged = _merge_objects(*items)
    # Items keep the observed order, and an item that was there twice comes back twice.
    kept = [str(item[key]) for item in observed if str(item[key]) in merged]
    added = dict.fromkeys(str(item[key]) for item in desired if str(item[key]) not in kept)
    return [merged[name] for name in (*kept, *added)]


def guess_key(*lists: list[Any]) -> str | None:
    """The key by which lists are merged; None when they are replaced whole."""
    items = [item for side in lists for item in side]
    if not items or not all(isinstance(item, dict) for item in items):
        return None
    return next((key for key in GUESSED_KEYS if all(key in item for item in items)), None)
