"""What a DELETE does to an object: remove it, or mark it as terminating and wait for someone.

Pure. Source: rest.BeforeDelete and registry/generic/registry/store.go in k8s.io/apiserver; the pod strategy.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Literal

from tests.kube import errors
from tests.kube.clock import timestamp
from tests.kube.objects import (
    finalizers_of,
    is_terminating,
    metadata,
    name_of,
    revision_of,
    same_json,
    uid_of,
)

if TYPE_CHECKING:
    from datetime import datetime

    from tests.kube.objects import Object
    from tests.kube.resources import Resource

Propagation = Literal["Background", "Foreground", "Orphan"]
FOREGROUND = "foregroundDeletion"
ORPHAN = "orphan"
POD_GRACE_SECONDS = 30


@dataclass(frozen=True)
class DeleteOptions:
    """metav1.DeleteOptions; `uid` and `revision` are its preconditions."""

    uid: str = ""
    revision: str = ""
    propagation: Propagation | None = None
    grace_seconds: int | None = None

    @classmethod
    def from_json(cls, body: Object) -> DeleteOptions:
        preconditions = body.get("preconditions") or {}
        return cls(
            uid=preconditions.get("uid") or "",
            revision=preconditions.get("resourceVersion") or "",
            propagation=body.get("propagationPolicy"),
            grace_seconds=body.get("gracePeriodSeconds"),
        )


def check_preconditions(resource: Resource, obj: Object, options: DeleteOptions) -> None:
    """Raises 409 Conflict when the object is not the one that is meant, or has changed."""
    for field, wanted, found in (
        ("UID", options.uid, uid_of(obj)),
        ("ResourceVersion", options.revision, revision_of(obj)),
    ):
        if wanted and wanted != found:
            raise errors.precondition_failed(resource, name_of(obj), field, wanted, found)


def terminating(resource: Resource, obj: Object, options: DeleteOptions, now: datetime) -> Object | None:
    """The object as it is stored, terminating; None when it is removed without that.

    What comes back may hold nothing any more (`is_released`): a pod is always marked before it goes. The
    same object comes back when this DELETE changes nothing.
    """
    finalizers = _finalizers(finalizers_of(obj), options.propagation)
    grace = _grace_seconds(resource, obj, options)
    if not finalizers and not _has_content(obj) and resource.kind != "Pod":
        return None
    meta = dict(metadata(obj))
    if finalizers:
        meta["finalizers"] = finalizers
    else:
        meta.pop("finalizers", None)
    if not is_terminating(obj):
        meta["deletionTimestamp"] = timestamp(now + timedelta(seconds=grace))
        meta["deletionGracePeriodSeconds"] = grace
        if "generation" in meta:
            meta["generation"] += 1  # a controller must look at the object again
    elif grace < meta.get("deletionGracePeriodSeconds", 0):
        meta["deletionTimestamp"] = timestamp(now + timedelta(seconds=grace))
        meta["deletionGracePeriodSeconds"] = grace
    if same_json(meta, metadata(obj)):
        return obj
    kept = {**obj, "metadata": meta}
    if resource.kind == "Namespace":
        kept["status"] = {**obj.get("status", {}), "phase": "Terminating"}
    return kept


def is_released(obj: Object) -> bool:
    """A terminating object that nothing holds any more: a write that leaves it like this removes it."""
    held = finalizers_of(obj) or _has_content(obj) or metadata(obj).get("deletionGracePeriodSeconds")
    return is_terminating(obj) and not held


def _has_content(obj: Object) -> bool:
    """A namespace has finalizers of its own in its spec, which stand for what is in it."""
    return obj.get("kind") == "Namespace" and bool(obj.get("spec", {}).get("finalizers"))


def _finalizers(current: list[str], propagation: Propagation | None) -> list[str]:
    if propagation is None:
        return current
    kept = [it for it in current if it not in (FOREGROUND, ORPHAN)]
    match propagation:
        case "Foreground":
            return [*kept, FOREGROUND]
        case "Orphan":
            return [*kept, ORPHAN]
        case "Background":
            return kept


def _grace_seconds(resource: Resource, obj: Object, options: DeleteOptions) -> int:
    """Only pods end gracefully, and only where a kubelet will end them."""
    if resource.kind != "Pod":
        return 0
    spec, phase = obj.get("spec", {}), obj.get("status", {}).get("phase")
    if not spec.get("nodeName") or phase in ("Succeeded", "Failed"):
        return 0
    if is_terminating(obj):
        running = int(metadata(obj).get("deletionGracePeriodSeconds", 0))
        return running if options.grace_seconds is None else min(running, options.grace_seconds)
    asked = options.grace_seconds
    return int(spec.get("terminationGracePeriodSeconds", POD_GRACE_SECONDS) if asked is None else asked)
