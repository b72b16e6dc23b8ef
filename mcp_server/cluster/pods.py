"""A sandbox pod as the server sees it: what the claim protocol and its messages need, and nothing else.

Of a pod's 6 to 12 KB of JSON a cache of a thousand keeps about one.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from cli_mcp import names

Manifest = Mapping[str, Any]
_FINISHED_PHASES = ("Failed", "Succeeded")


class MalformedPod(ValueError):
    """The API server's own fields of a pod are missing."""


@dataclass(frozen=True, slots=True)
class ContainerExit:
    """How a container's last life ended. `reason` is the kubelet's: `OOMKilled`, `Error`."""

    code: int
    reason: str
    finished: datetime | None


@dataclass(frozen=True, slots=True)
class ContainerView:
    """`waiting` and `message` say why a container does not run: `ImagePullBackOff`, `CrashLoopBackOff`."""

    name: str
    running: bool = False
    ended: bool = False
    restarts: int = 0
    waiting: str = ""
    message: str = ""
    last_exit: ContainerExit | None = None


@dataclass(frozen=True, slots=True)
class SandboxPod:
    """One pod at one revision. Absent labels and annotations are "", `state` among them.

    `controller_uid` is that of the owner reference with `controller: true`. `ip` is "" while there is none.
    """

    name: str
    uid: str
    revision: str
    instance: str = ""
    component: str = ""
    pool_hash: str = ""
    service_account: str = ""
    controller_uid: str = ""
    state: str = ""
    session_id: str = ""
    owner: str = ""
    ended_by: str = ""
    created: datetime | None = None
    last_activity: datetime | None = None
    terminating: bool = False
    finished: bool = False
    ready: bool = False
    ip: str = ""
    reason: str = ""
    """Why the pod as a whole failed: `Evicted`, `NodeShutdown`."""
    message: str = ""
    """The same in a sentence."""
    unschedulable: str = ""
    """The scheduler's words; "" when it has found a node, or not looked yet."""
    scheduled: bool = False
    containers: tuple[ContainerView, ...] = ()
    workspace_claim: str = ""

    @property
    def live(self) -> bool:
        """Whether it can be, or become, the sandbox of its session."""
        return not self.terminating and not self.finished and self.state != names.STATE_RETIRING

    @property
    def usable(self) -> bool:
        """Only such a pod gets a command."""
        return self.live and self.state == names.STATE_ACTIVE

    @property
    def sandbox(self) -> ContainerView:
        """The container that the agent runs in."""
        for container in self.containers:
            if container.name == names.SANDBOX_CONTAINER:
                return container
        return ContainerView(names.SANDBOX_CONTAINER)


def read_pod(manifest: Manifest) -> SandboxPod:
    """Raises MalformedPod."""
    metadata = manifest.get("metadata") or {}
    labels = metadata.get("labels") or {}
    annotations = metadata.get("annotations") or {}
    spec = manifest.get("spec") or {}
    status = manifest.get("status") or {}
    conditions = {condition.get("type"): condition for condition in status.get("conditions") or ()}
    scheduled = conditions.get("PodScheduled", {})
    try:
        name, uid, revision = metadata["name"], metadata["uid"], metadata["resourceVersion"]
    except KeyError as error:
        raise MalformedPod(f"a pod without metadata.{error.args[0]}") from None
    return SandboxPod(
        name=name,
        uid=uid,
        revision=revision,
        instance=labels.get(names.LABEL_INSTANCE, ""),
        component=labels.get(names.LABEL_COMPONENT, ""),
        pool_hash=labels.get(names.LABEL_POOL_HASH, ""),
        service_account=spec.get("serviceAccountName", ""),
        controller_uid=_controller_uid(metadata.get("ownerReferences") or ()),
        state=labels.get(names.LABEL_STATE, ""),
        session_id=labels.get(names.LABEL_SESSION_ID, ""),
        owner=annotations.get(names.ANNOTATION_SESSION_OWNER, ""),
        ended_by=annotations.get(names.ANNOTATION_ENDED_BY, ""),
        created=parse_time(metadata.get("creationTimestamp")),
        last_activity=parse_time(annotations.get(names.ANNOTATION_LAST_ACTIVITY)),
        terminating=bool(metadata.get("deletionTimestamp")),
        finished=status.get("phase") in _FINISHED_PHASES,
        ready=conditions.get("Ready", {}).get("status") == "True",
        ip=status.get("podIP") or "",
        reason=status.get("reason") or "",
        message=status.get("message") or "",
        unschedulable=scheduled.get("message") or "" if scheduled.get("reason") == "Unschedulable" else "",
        scheduled=bool(spec.get("nodeName")),
        containers=tuple(
            _container(container)
            for field in ("initContainerStatuses", "containerStatuses")
            for container in status.get(field) or ()
        ),
        workspace_claim=_workspace_claim(spec.get("volumes") or ()),
    )


def parse_time(text: object) -> datetime | None:
    """An RFC 3339 time with its offset; None when it is none."""
    if not isinstance(text, str):
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment if moment.tzinfo is not None else None


def _controller_uid(owners: Iterable[Manifest]) -> str:
    return next((owner.get("uid", "") for owner in owners if owner.get("controller")), "")


def _workspace_claim(volumes: Iterable[Manifest]) -> str:
    claims = (volume.get("persistentVolumeClaim") for volume in volumes)
    return next((claim.get("claimName", "") for claim in claims if claim), "")


def _container(status: Manifest) -> ContainerView:
    state = status.get("state") or {}
    waiting = state.get("waiting") or {}
    ended = state.get("terminated") or (status.get("lastState") or {}).get("terminated")
    return ContainerView(
        name=status.get("name", ""),
        running="running" in state,
        ended="terminated" in state,
        restarts=status.get("restartCount") or 0,
        waiting=waiting.get("reason") or "",
        message=waiting.get("message") or "",
        last_exit=None if ended is None else _exit(ended),
    )


def _exit(ended: Manifest) -> ContainerExit:
    return ContainerExit(
        ended.get("exitCode", 0), ended.get("reason") or "", parse_time(ended.get("finishedAt"))
    )
