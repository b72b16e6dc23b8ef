"""Sandbox pods as the hooks see them: whose, in which state, since when. Facts only, no decisions."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from cli_mcp import names
from hooks.wire import MalformedRequest, Manifest, Parent

_SESSION_FIELD = f"f:{names.LABEL_SESSION_ID}"
# Clocks of servers differ a little; a stamp from further ahead is no stamp.
_MAX_CLOCK_SKEW = timedelta(minutes=5)
# RFC 3339 as Kubernetes writes it; Python 3.11 reads the rest.
_TIMESTAMP = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?(Z|[+-]\d\d:\d\d)", re.ASCII)


# Why a container waits, in the kubelet's words. Not ErrImagePull: the first attempt may fail by accident.
_NO_IMAGE = frozenset({"ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"})


class Role(StrEnum):
    """What a pod is to the pool. The first that fits, in this order."""

    TERMINATING = "terminating"
    RETIRING = "retiring"
    FOREIGN = "foreign"
    """Adopted because it carries our controller-uid, but none of ours: never counted, never touched."""
    CLAIMED = "claimed"
    UNCLAIMED = "unclaimed"


@dataclass(frozen=True, slots=True)
class SandboxPod:
    """One observed pod. Times are aware datetimes in UTC."""

    manifest: Manifest
    name: str
    role: Role
    pool_hash: str
    created: datetime
    ready: bool
    ready_changed: datetime
    """When `ready` became what it is; the creation when nobody has said so yet."""
    finished: bool
    """Failed or Succeeded: no container of it will ever run again."""
    unschedulable: bool
    missing_images: tuple[str, ...]
    """Those that the node cannot get."""
    claiming: bool
    """A server has reserved it for a session and is about to decide whether that gets it."""
    claimed_at: datetime | None
    """When a server reserved it, by that server's clock."""
    isolation_failed: bool
    """Its last test of that has failed; one that is ready has passed it since."""


def observe_pod(manifest: Manifest, parent: Parent) -> SandboxPod:
    """Raises MalformedRequest when the API server's own fields are missing."""
    metadata = manifest["metadata"]
    labels = metadata.get("labels") or {}
    status = manifest.get("status") or {}
    conditions = {condition.get("type"): condition for condition in status.get("conditions") or ()}
    ready = conditions.get("Ready", {})
    is_ready = ready.get("status") == "True"
    scheduled = conditions.get("PodScheduled", {})
    created = parse_time(metadata.get("creationTimestamp"))
    if created is None:
        raise MalformedRequest(f"pod {metadata['name']} has no creationTimestamp")
    return SandboxPod(
        manifest=manifest,
        name=metadata["name"],
        role=_role(metadata, labels, manifest.get("spec") or {}, parent),
        pool_hash=labels.get(names.LABEL_POOL_HASH, ""),
        created=created,
        ready=is_ready,
        ready_changed=parse_time(ready.get("lastTransitionTime")) or created,
        finished=status.get("phase") in ("Failed", "Succeeded"),
        unschedulable=scheduled.get("status") == "False" and scheduled.get("reason") == "Unschedulable",
        missing_images=tuple(_missing_images(status)),
        claiming=labels.get(names.LABEL_STATE) == names.STATE_CLAIMING,
        claimed_at=parse_time((metadata.get("annotations") or {}).get(names.ANNOTATION_CLAIMED_AT)),
        isolation_failed=not is_ready and _isolation_failed(status),
    )


def last_activity(pod: SandboxPod, now: datetime) -> datetime:
    """When the session was last used: the server's stamp; without a readable one the time at which session-id
    was last written; without that the pod's creation."""
    metadata = pod.manifest["metadata"]
    stamp = parse_time((metadata.get("annotations") or {}).get(names.ANNOTATION_LAST_ACTIVITY))
    if stamp is not None and stamp <= now + _MAX_CLOCK_SKEW:
        return stamp
    return _claim_time(metadata.get("managedFields") or ()) or pod.created


def claim_time(pod: SandboxPod, now: datetime) -> datetime:
    """When the session got the pod: the server's stamp; without a readable one the time at which session-id
    was last written; without that the pod's creation."""
    if pod.claimed_at is not None and pod.claimed_at <= now + _MAX_CLOCK_SKEW:
        return pod.claimed_at
    return _claim_time(pod.manifest["metadata"].get("managedFields") or ()) or pod.created


def parse_time(text: Any) -> datetime | None:
    """An RFC 3339 time; None when it is none."""
    if not isinstance(text, str) or not _TIMESTAMP.fullmatch(text):
        return None
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return None


def _role(
    metadata: Mapping[str, Any], labels: Mapping[str, str], spec: Mapping[str, Any], parent: Parent
) -> Role:
    if metadata.get("deletionTimestamp"):
        return Role.TERMINATING
    if labels.get(names.LABEL_STATE) == names.STATE_RETIRING:
        return Role.RETIRING
    ours = (
        labels.get(names.LABEL_INSTANCE) == parent.name
        and labels.get(names.LABEL_COMPONENT) == names.COMPONENT_SANDBOX
        and spec.get("serviceAccountName") == parent.names.sandbox
    )
    if not ours:
        return Role.FOREIGN
    claimed = labels.get(names.LABEL_SESSION_ID) or labels.get(names.LABEL_STATE)
    return Role.CLAIMED if claimed else Role.UNCLAIMED


def _missing_images(status: Mapping[str, Any]) -> Iterator[str]:
    for kind in ("initContainerStatuses", "containerStatuses"):
        for container in status.get(kind) or ():
            waiting = (container.get("state") or {}).get("waiting") or {}
            if waiting.get("reason") in _NO_IMAGE:
                yield container.get("image", "")


def _isolation_failed(status: Mapping[str, Any]) -> bool:
    # The exit code is the agent's and cannot be set by the model's shell; a termination message could be.
    return any(
        container.get("name") == names.SANDBOX_CONTAINER
        and _exit_code(container.get(state)) == names.ISOLATION_FAILED_EXIT_CODE
        for container in status.get("containerStatuses") or ()
        for state in ("state", "lastState")
    )


def _exit_code(state: Mapping[str, Any] | None) -> Any:
    return ((state or {}).get("terminated") or {}).get("exitCode")


def _claim_time(managed_fields: Any) -> datetime | None:
    times = [
        parse_time(entry.get("time"))
        for entry in managed_fields
        if _SESSION_FIELD in ((entry.get("fieldsV1") or {}).get("f:metadata") or {}).get("f:labels", {})
    ]
    return max((time for time in times if time is not None), default=None)
