"""An existing child returned so that Metacontroller writes nothing: its own last-applied configuration.

Metacontroller merges (observed, last applied, desired) and writes when the merge differs from what it
observed, or when the annotation that holds the last applied configuration would change. Returning the
content of that annotation again changes neither. Labels and annotations that others changed or removed since
are returned as they are *now*, so that a foreign change is not reverted either.
"""

import re
from typing import Any

import orjson

from cli_mcp import names
from hooks.values import flapping_value
from hooks.wire import Manifest

# Every float in a JSON text, and hardly anything else.
_FLOAT = re.compile(r"[:,\[]\s*-?\d+(?:\.\d+(?:[eE][+-]?\d+)?|[eE][+-]?\d+)\s*[,}\]]")


class UnreadableLastApplied(ValueError):
    """The annotation is no configuration of the object that carries it."""


def last_applied_echo(observed: Manifest) -> Manifest:
    """What to return for `observed` to leave it as it is; a new object.

    An object without the annotation was not made by Metacontroller: a stub suffices, and is all that may be
    claimed of it. Raises UnreadableLastApplied; a stub in its place would strip the object's spec.
    """
    metadata = observed["metadata"]
    annotation = (metadata.get("annotations") or {}).get(names.ANNOTATION_LAST_APPLIED)
    if annotation is None:
        return stub(observed)
    applied = _parsed(annotation)
    if _identity(applied) != _identity(observed):
        raise UnreadableLastApplied(
            f"the last applied configuration of {metadata['name']} names another object"
        )
    applied_metadata = applied["metadata"]
    for field in ("labels", "annotations"):
        if field in applied_metadata:
            applied_metadata[field] = _current(applied_metadata[field], metadata.get(field) or {})
    return applied


def stub(observed: Manifest) -> Manifest:
    """Nothing but the identity of `observed`."""
    metadata = observed["metadata"]
    return {
        "apiVersion": observed["apiVersion"],
        "kind": observed["kind"],
        "metadata": {"name": metadata["name"], "namespace": metadata["namespace"]},
    }


def with_label(child: Manifest, label: str, value: str) -> Manifest:
    """`child` with one label more; the original stays as it is."""
    metadata = child["metadata"]
    labels = {**metadata.get("labels", {}), label: value}
    return {**child, "metadata": {**metadata, "labels": labels}}


def _parsed(annotation: str) -> Manifest:
    try:
        applied = orjson.loads(annotation)
    except orjson.JSONDecodeError as error:
        raise UnreadableLastApplied("the last applied configuration is no JSON") from error
    if not isinstance(applied, dict) or not isinstance(applied.get("metadata"), dict):
        raise UnreadableLastApplied("the last applied configuration is no Kubernetes object")
    # Whoever may patch the object may write anything here; our own answers have neither of these.
    if "generateName" in applied["metadata"] or _flaps(annotation, applied):
        raise UnreadableLastApplied("the last applied configuration has what the hooks never return")
    return applied


def _flaps(annotation: str, applied: Manifest) -> bool:
    # Searching text costs a thousandth of walking the object, and nearly always suffices.
    suspicious = "null" in annotation or _FLOAT.search(annotation) is not None
    return suspicious and flapping_value((applied,)) is not None


def _identity(manifest: Manifest) -> tuple[Any, ...]:
    metadata = manifest["metadata"]
    return manifest.get("apiVersion"), manifest.get("kind"), metadata.get("namespace"), metadata.get("name")


def _current(applied: Any, observed: dict[str, str]) -> dict[str, str]:
    if not isinstance(applied, dict):
        raise UnreadableLastApplied("labels or annotations of the last applied configuration are no mapping")
    # Metacontroller keeps its own annotation itself; nested in itself it would grow at every sync.
    return {key: observed[key] for key in applied if key in observed and key != names.ANNOTATION_LAST_APPLIED}


def kept(observed: Manifest) -> Manifest | None:
    """What to return for a child that stays as it is, of whatever kind; None for a Secret without data.

    The data of a Secret is returned as it is now: what an admin put there by hand is not turned back.
    """
    try:
        echo = last_applied_echo(observed)
    except UnreadableLastApplied:
        echo = _whole(observed)
    if observed["kind"] == "Secret":
        if not observed.get("data"):
            return None
        echo["data"] = observed["data"]
    return echo


def _whole(observed: Manifest) -> Manifest:
    """All of an object but what the API server writes: changes its annotation once, and nothing else."""
    metadata = {
        field: _current(observed["metadata"][field], observed["metadata"][field])
        for field in ("labels", "annotations")
        if observed["metadata"].get(field)
    }
    identity = stub(observed)
    content = {key: value for key, value in observed.items() if key not in (*identity, "status")}
    whole: Manifest = _without_nulls({**content, **identity, "metadata": identity["metadata"] | metadata})
    return whole


def _without_nulls(value: Any) -> Any:
    """Some API servers show `creationTimestamp: null` in the templates of pods."""
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_nulls(item) for item in value if item is not None]
    return value
