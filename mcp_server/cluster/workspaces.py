"""Persistent workspaces: the volume claim that goes with a session's pod, outlives it, and is found again.

A volume claim is taken by compare-and-swap like its pod, and before it: whoever holds the volume may have the
pod. What a broken-off claim leaves behind is a workspace of that session, found by its next call.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from cli_mcp import names
from cli_mcp.sandbox_config import SandboxConfig
from mcp_server.backend import SessionKey
from mcp_server.cluster import writes
from mcp_server.cluster.kubernetes import KubernetesApi, Object, Refused, Resource, is_lost
from mcp_server.cluster.pods import parse_time

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Workspace:
    """One PersistentVolumeClaim at one revision; "" for what it does not have."""

    name: str
    uid: str
    revision: str
    session_id: str
    owner: str
    live: bool
    last_used: datetime
    first_pod: str

    def belongs_to(self, session: SessionKey) -> bool:
        return (self.session_id, self.owner) == (session.id, session.owner)


class Workspaces:
    """Every method raises KubernetesError."""

    def __init__(
        self, api: KubernetesApi, selector: str, namespace: str, now: Callable[[], datetime]
    ) -> None:
        self._api = api
        self._selector = selector
        self._namespace = namespace
        self._resource = Resource.core(namespace, "persistentvolumeclaims")
        self._now = now

    async def of_session(self, session_id: str) -> list[Workspace]:
        """All that carry the id, whosever they are, the last used first."""
        which = f"{self._selector},{names.LABEL_SESSION_ID}={session_id}"
        found = [_read(item) for item in (await self._api.list(self._resource, which)).items]
        return sorted(found, key=lambda it: (it.last_used, it.name), reverse=True)

    async def take(self, name: str, session: SessionKey) -> bool:
        """Whether the unused workspace `name` is the session's now."""
        try:
            workspace = _read(await self._api.get(self._resource, name))
        except Refused as error:
            if is_lost(error):
                return False
            raise
        if not workspace.live:
            return False
        if workspace.session_id:
            return workspace.belongs_to(session) and await self.renew(workspace)
        return await self._patch(workspace, self._labels(session), session)

    async def renew(self, workspace: Workspace) -> bool:
        """Whether it is still there, and not retired since it was listed."""
        return await self._patch(workspace, {})

    async def retire(self, workspace: Workspace) -> bool:
        """The hooks delete it then, together with whatever is in it."""
        return await self._patch(workspace, {names.LABEL_STATE: names.STATE_RETIRING})

    async def begin(self, name: str, pod_uid: str) -> bool:
        """Whether a command has run in it before, in another pod than this one; now one has in any case."""
        first_pod = _read(await self._api.get(self._resource, name)).first_pod
        if not first_pod:
            await self._annotate(name, {names.ANNOTATION_FIRST_POD: pod_uid})
        return first_pod not in ("", pod_uid)

    async def stamp(self, name: str) -> None:
        """It is in use; of one that is gone nobody needs to know that."""
        try:
            await self._annotate(name, {names.ANNOTATION_LAST_USED: writes.timestamp(self._now())})
        except Refused as error:
            if not is_lost(error):
                raise

    async def create(self, config: SandboxConfig, name: str, session: SessionKey) -> None:
        """Raises Refused, AlreadyExists, when somebody has the name."""
        assert config.workspace_claim is not None
        annotations = self._annotations(session)
        body = writes.child(
            config, config.workspace_claim, name, self._namespace, self._labels(session), annotations
        )
        await self._api.create(self._resource, body)

    async def _annotate(self, name: str, annotations: dict[str, str]) -> None:
        await self._api.patch(self._resource, name, {"metadata": {"annotations": annotations}})

    async def _patch(
        self, workspace: Workspace, labels: dict[str, str], session: SessionKey | None = None
    ) -> bool:
        metadata: Object = {
            "uid": workspace.uid,
            "resourceVersion": workspace.revision,
            "annotations": self._annotations(session),
        }
        metadata |= {"labels": labels} if labels else {}
        try:
            await self._api.patch(self._resource, workspace.name, {"metadata": metadata})
        except Refused as error:
            if is_lost(error):
                return False
            raise
        return True

    def _labels(self, session: SessionKey) -> dict[str, str]:
        return {names.LABEL_SESSION_ID: session.id}

    def _annotations(self, session: SessionKey | None) -> dict[str, str]:
        owner = {} if session is None else {names.ANNOTATION_SESSION_OWNER: session.owner}
        return {names.ANNOTATION_LAST_USED: writes.timestamp(self._now()), **owner}


def _read(manifest: Object) -> Workspace:
    metadata = manifest["metadata"]
    labels = metadata.get("labels") or {}
    annotations = metadata.get("annotations") or {}
    return Workspace(
        name=metadata["name"],
        uid=metadata["uid"],
        revision=metadata["resourceVersion"],
        session_id=labels.get(names.LABEL_SESSION_ID, ""),
        owner=annotations.get(names.ANNOTATION_SESSION_OWNER, ""),
        live=not metadata.get("deletionTimestamp") and labels.get(names.LABEL_STATE) != names.STATE_RETIRING,
        last_used=parse_time(annotations.get(names.ANNOTATION_LAST_USED)) or _EPOCH,
        first_pod=annotations.get(names.ANNOTATION_FIRST_POD, ""),
    )
