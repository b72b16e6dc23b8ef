"""The session pods of one instance in the API server: listed consistently, written by compare-and-swap."""

from collections.abc import Callable

from cli_mcp import names
from mcp_server.cluster.cache import PodCache
from mcp_server.cluster.kubernetes import KubernetesApi, Object, Refused, Resource, is_lost
from mcp_server.cluster.pods import SandboxPod, read_pod

_DELETE_GRACE_SECONDS = 5


class PodStore:
    """Every method raises KubernetesError. Answers go into `cache`, which the watch would only fill later.

    `on_event` is told of each pod that was "claimed", "created" or "retired".
    """

    def __init__(
        self,
        api: KubernetesApi,
        instance: names.InstanceNames,
        namespace: str,
        cache: PodCache,
        on_event: Callable[[str], None],
    ) -> None:
        self.namespace = namespace
        self.resource = Resource.core(namespace, "pods")
        self.selector = (
            f"{names.LABEL_INSTANCE}={instance.instance},{names.LABEL_COMPONENT}={names.COMPONENT_SANDBOX}"
        )
        self._api = api
        self._cache = cache
        self._on_event = on_event

    async def list(self, session_id: str | None) -> list[SandboxPod]:
        """A consistent list of a session's pods, or of all that have a session."""
        which = names.LABEL_SESSION_ID if session_id is None else f"{names.LABEL_SESSION_ID}={session_id}"
        listing = await self._api.list(self.resource, f"{self.selector},{which}")
        return [read_pod(item) for item in listing.items]

    async def patch(self, pod: SandboxPod, body: Object, event: str = "") -> SandboxPod | None:
        """The pod as it is after a write to it; None when the write was lost to somebody else's."""
        try:
            written = read_pod(await self._api.patch(self.resource, pod.name, body))
        except Refused as error:
            if is_lost(error):
                return None
            raise
        self._cache.written(written)
        if event:
            self._on_event(event)
        return written

    async def create(self, body: Object) -> None:
        self._cache.written(read_pod(await self._api.create(self.resource, body)))
        self._on_event("created")

    async def delete(self, pod: SandboxPod) -> None:
        """Also when it is gone already."""
        try:
            await self._api.delete(self.resource, pod.name, uid=pod.uid, grace_seconds=_DELETE_GRACE_SECONDS)
        except Refused as error:
            if not is_lost(error):
                raise
