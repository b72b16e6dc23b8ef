"""The state of an object that a write asks for: shaped, with its system metadata, and what is wrong with it.

Pure. A request can only write its own part: metadata that belongs to the server, and on the main resource
the status (on the status subresource everything else), stay what they were.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.kube import admission, schema, validation
from tests.kube.clock import timestamp
from tests.kube.normalise import normalise
from tests.kube.objects import (
    Object,
    annotations_of,
    finalizers_of,
    is_terminating,
    metadata,
    name_of,
    namespace_of,
    revision_of,
    same_json,
)

if TYPE_CHECKING:
    from datetime import datetime

    from tests.kube.resources import Resource

# metadata that only the server writes.
_SYSTEM_METADATA = (
    "uid",
    "creationTimestamp",
    "generation",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
)
# Fields whose change is no change of the object.
_BOOKKEEPING = ("resourceVersion", "managedFields")


def newborn(resource: Resource, obj: Object, namespace: str, name: str, uid: str, now: datetime) -> Object:
    """What is stored for a new object, but for what admission adds and its managedFields."""
    born = shaped(resource, obj)
    meta = {
        key: value for key, value in metadata(born).items() if key not in (*_SYSTEM_METADATA, *_BOOKKEEPING)
    }
    meta.update(name=name, uid=uid, creationTimestamp=timestamp(now))
    if namespace:
        meta["namespace"] = namespace
    if resource.counts_generation:
        meta["generation"] = 1
    born.update(apiVersion=resource.api_version, kind=resource.kind, metadata=meta)
    if resource.has_status:
        born.pop("status", None)
        status = None if resource.is_custom else admission.new_status(resource.kind, born)
        if status is not None:
            born["status"] = status
    return born


def next_state(resource: Resource, current: Object, proposed: Object, subresource: str) -> Object:
    """What is stored when `proposed` replaces `current`, but for its managedFields."""
    if subresource == "status":
        return _with_status(resource, current, proposed)
    new = shaped(resource, proposed)
    written = {key: value for key, value in metadata(new).items() if key not in _SYSTEM_METADATA}
    meta = {key: value for key, value in written.items() if value not in ({}, [], None)}
    meta.update({key: metadata(current)[key] for key in _SYSTEM_METADATA if key in metadata(current)})
    meta.update(name=name_of(current), resourceVersion=revision_of(current))
    if namespace_of(current):
        meta["namespace"] = namespace_of(current)
    new.update(apiVersion=resource.api_version, kind=resource.kind, metadata=meta)
    if resource.has_status:
        new.pop("status", None)
        if "status" in current:
            new["status"] = current["status"]
    match (resource.group, resource.kind):
        case ("", "Service"):
            admission.keep_allocated(current, new)
        case ("", "Pod"):
            admission.add_tolerations(new["spec"])
    if resource.counts_generation and not same_json(_counted(new), _counted(current)):
        meta["generation"] = metadata(current)["generation"] + 1
    return new


def _with_status(resource: Resource, current: Object, proposed: Object) -> Object:
    status = shaped(resource, {**current, "status": proposed.get("status")}).get("status")
    new = {**current, "metadata": dict(current["metadata"])}
    if status is None:
        new.pop("status", None)
    else:
        new["status"] = status
    return new


def _counted(obj: Object) -> Object:
    """What generation counts; for a Deployment that includes the annotations."""
    content = {key: value for key, value in obj.items() if key not in ("metadata", "status")}
    return {**content, "annotations": annotations_of(obj)} if obj["kind"] == "Deployment" else content


def is_same(left: Object, right: Object) -> bool:
    """Whether a write would change nothing; then it gets no new resourceVersion."""
    return same_json(_without_bookkeeping(left), _without_bookkeeping(right))


def _without_bookkeeping(obj: Object) -> Object:
    meta = {key: value for key, value in obj["metadata"].items() if key not in _BOOKKEEPING}
    return {**obj, "metadata": meta}


def shaped(resource: Resource, obj: Object) -> Object:
    """Pruned and defaulted: by the schema of a custom resource, by the Go types of a built-in one."""
    if resource.kind == "CustomResourceDefinition":
        return obj
    if not resource.is_custom:
        return normalise(obj)
    if resource.custom_schema is None:
        return obj
    top: Object = {key: obj[key] for key in ("apiVersion", "kind", "metadata") if key in obj}
    known: Object = resource.custom_schema.get("properties", {})
    fields = {key: value for key, value in known.items() if key not in top}
    pruned: Object = schema.prune_and_default(obj, {**resource.custom_schema, "properties": fields})
    return {**top, **{key: value for key, value in pruned.items() if key not in top}}


def forgeries(proposed: Object, current: Object) -> list[schema.Cause]:
    """Metadata of the server that a write sets to something else, instead of leaving it out or alone."""
    return [
        (f"metadata.{field}", f"Invalid value: {metadata(proposed)[field]!r}: field is immutable")
        for field in ("uid", "deletionTimestamp")
        if metadata(proposed).get(field) and metadata(proposed)[field] != metadata(current).get(field)
    ]


def problems(resource: Resource, new: Object, old: Object | None) -> list[schema.Cause]:
    """What is wrong with a new object, or with an update of `old`."""
    causes = validation.validate_metadata(new)
    if resource.is_custom:
        causes += schema.validate(new, resource.custom_schema or {})
    else:
        causes += validation.validate_object(new)
        causes += validation.validate_update(old, new) if old else []
    if old and is_terminating(old) and not set(finalizers_of(new)) <= set(finalizers_of(old)):
        why = "Forbidden: no new finalizers can be added if the object is being deleted"
        causes.append(("metadata.finalizers", why))
    return causes
