"""Finds, claims or makes the pod of a session: the loop of list, decide and write over the API."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from weakref import WeakValueDictionary

from cli_mcp import names
from cli_mcp.execution import NotSessionOwner, SandboxUnavailable
from mcp_server.backend import SessionKey
from mcp_server.cluster import writes
from mcp_server.cluster.activity import Activity
from mcp_server.cluster.cache import PodCache
from mcp_server.cluster.claiming import (
    Activate,
    Asked,
    Claim,
    Create,
    Refuse,
    Retire,
    Step,
    Use,
    Wait,
    choose_warm,
    decide,
    is_sandbox_of,
    is_warm,
)
from mcp_server.cluster.configuration import Configuration
from mcp_server.cluster.diagnosis import quote
from mcp_server.cluster.kubernetes import (
    KubernetesApi,
    KubernetesError,
    Object,
    Refused,
    Resource,
)
from mcp_server.cluster.limits import limited
from mcp_server.cluster.pods import SandboxPod, read_pod

logger = logging.getLogger(__name__)

FIND_SECONDS = 30.0
"""How long a call looks for its pod while the API server fails or others get in first."""
_FIRST_PAUSE_SECONDS = 0.02
_LONGEST_PAUSE_SECONDS = 2.0
_DELETE_GRACE_SECONDS = 5
_EAGER_ROUNDS = 5
# The admission policy compares new pods with the instance, whose change may not have come here yet.
_TEMPLATE_IS_LATE = "cli-mcp-sandbox-class"
ENDED_BY_DELETE = "DELETE"


@dataclass(slots=True)
class _Search:
    """What one search has learned that no list says."""

    lost: set[str] = field(default_factory=set)
    """Uids of warm pods that somebody else got."""
    taken: set[str] = field(default_factory=set)
    rounds: int = 0
    pause_seconds: float = _FIRST_PAUSE_SECONDS
    last_error: KubernetesError | None = None


class SessionPods:
    """`stale` says why what the watches show cannot be trusted; "" when it can."""

    def __init__(
        self,
        api: KubernetesApi,
        instance: names.InstanceNames,
        namespace: str,
        cache: PodCache,
        configuration: Configuration,
        activity: Activity,
        stale: Callable[[], str],
        now: Callable[[], datetime],
        on_event: Callable[[str], None],
    ) -> None:
        self._api = api
        self._instance = instance
        self._namespace = namespace
        self._pods = Resource.core(namespace, "pods")
        self._cache = cache
        self._configuration = configuration
        self._activity = activity
        self._stale = stale
        self._now = now
        self._on_event = on_event
        self._begun: set[str] = set()
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def find(self, session: SessionKey, *, verify: bool = False) -> SandboxPod:
        """The session's active pod, which may not have started yet. One that is known, and in which the
        session is known to have begun, costs no request, unless it is to be verified.

        Raises NotSessionOwner, and SandboxUnavailable with the cause.
        """
        pod = None if verify else self._known(session)
        if pod is not None:
            return pod
        lock = self._locks.setdefault(session.id, asyncio.Lock())
        async with lock:
            pod = None if verify else self._known(session)
            return pod if pod is not None else await self._search(session)

    async def begin(self, pod: SandboxPod) -> bool:
        """Whether a command that has just run in `pod` was the first of its session.

        The pod is marked before the first answer goes out, so that no other replica says "new" to the next
        call. An API server that fails costs the mark, not the answer.
        """
        if self._has_begun(self._cache.get(pod.uid) or pod):
            return False
        self._begun.add(pod.uid)
        try:
            await self._swap(pod, writes.started(pod, self._now()))
        except KubernetesError as error:
            logger.warning("pod %s could not be marked as started: %s", pod.name, error)
        return True

    def forget(self, uid: str) -> None:
        """The pod is gone."""
        self._begun.discard(uid)

    async def end(self, session: SessionKey) -> None:
        """Retire and delete whatever pods the session has. Raises NotSessionOwner, SandboxUnavailable."""
        search = _Search()
        try:
            async with asyncio.timeout(FIND_SECONDS):
                while not await self._ended(session, search):
                    pass
        except TimeoutError:
            raise SandboxUnavailable(f"The session could not be ended: {_cause(search)}.") from None

    async def retire(self, pod: SandboxPod) -> None:
        """Give a pod up; who has changed it meanwhile decides what becomes of it. Raises KubernetesError."""
        if await self._swap(pod, writes.retire(pod)) is not None:
            self._on_event("retired")

    def count_sessions(self) -> int:
        return len(
            {pod.session_id for pod in self._cache if pod.live and pod.session_id and self._is_ours(pod)}
        )

    def warm(self) -> list[SandboxPod]:
        config = self._configuration.current
        return [] if config is None else [pod for pod in self._cache if is_warm(pod, self._instance, config)]

    def _known(self, session: SessionKey) -> SandboxPod | None:
        pod = self._cache.usable(session.id)
        if pod is None or not self._is_ours(pod) or not self._has_begun(pod):
            return None
        if self._activity.is_expiring(pod):
            return None
        if pod.owner != session.owner:
            raise NotSessionOwner("Not run: this session belongs to another caller. Use another id.")
        return pod

    async def _search(self, session: SessionKey) -> SandboxPod:
        search = _Search()
        try:
            async with asyncio.timeout(FIND_SECONDS):
                while True:
                    pod = await self._step(session, search)
                    if pod is not None:
                        return pod
        except TimeoutError:
            raise SandboxUnavailable(
                f"Not run: no sandbox could be had within {FIND_SECONDS:.0f} s: {_cause(search)}. Try again."
            ) from None

    async def _step(self, session: SessionKey, search: _Search) -> SandboxPod | None:
        """One round; the pod when that was the last one. An error that may pass counts as a round."""
        try:
            search.rounds += 1
            if search.rounds > _EAGER_ROUNDS:
                await self._pause(search)
            step = await self._decide(session, search)
            return await self._take(step, session, search)
        except KubernetesError as error:
            if isinstance(error, Refused) and not error.transient:
                raise SandboxUnavailable(f"Not run: Kubernetes refused: {quote(str(error))}") from error
            search.last_error = error
            await self._pause(search)
            return None

    async def _decide(self, session: SessionKey, search: _Search) -> Step:
        limits = self._configuration.limits
        listed = await self._list(session, everything=limited(limits))
        asked = Asked(
            session=session,
            instance=self._instance,
            controller_uid=self._configuration.controller_uid,
            limits=limits,
            closed=self._stale() or self._configuration.closed_because(),
            taken=search.taken,
        )

        def warm() -> SandboxPod | None:
            return choose_warm(session, (pod for pod in self.warm() if pod.uid not in search.lost))

        return decide(asked, listed, warm)

    async def _take(self, step: Step, session: SessionKey, search: _Search) -> SandboxPod | None:
        now = self._now()
        match step:
            case Use(pod):
                self._cache.written(pod)
                if not self._activity.is_expiring(pod):
                    return pod
                return await self._swap(pod, writes.renew(pod, now))
            case Activate(pod):
                return await self._swap(pod, writes.activate(pod, now))
            case Retire(pod):
                await self.retire(pod)
            case Claim(pod):
                if await self._swap(pod, writes.claim(pod, session, now)) is None:
                    search.lost.add(pod.uid)
                else:
                    self._on_event("claimed")
            case Create(name):
                await self._create(name, session, search)
            case Wait():
                await self._pause(search)
            case Refuse(error):
                raise error
        return None

    async def _create(self, name: str, session: SessionKey, search: _Search) -> None:
        config = self._configuration.current
        assert config is not None, "an open gate comes with a configuration"
        body = writes.newborn(config, name, self._namespace, session, self._now())
        try:
            self._cache.written(read_pod(await self._api.create(self._pods, body)))
            self._on_event("created")
        except Refused as error:
            if error.transient:
                raise
            if _TEMPLATE_IS_LATE in str(error):
                search.last_error = error
                await self._pause(search)
                return
            if error.code != 409:
                raise SandboxUnavailable(
                    "Not run: no warm sandbox is free, and Kubernetes refused to make one: "
                    f"{quote(str(error))}"
                ) from error
            search.taken.add(name)

    async def _swap(self, pod: SandboxPod, body: Object) -> SandboxPod | None:
        """The pod as it is after a write to it; None when the write was lost to somebody else's."""
        try:
            written = read_pod(await self._api.patch(self._pods, pod.name, body))
        except Refused as error:
            if _is_lost(error):
                return None
            raise
        self._cache.written(written)
        return written

    async def _ended(self, session: SessionKey, search: _Search) -> bool:
        try:
            pods = [pod for pod in await self._list(session) if self._is_ours(pod)]
            live = [pod for pod in pods if pod.live]
            if any(pod.owner != session.owner for pod in live):
                raise NotSessionOwner("The session belongs to another caller.")
            for pod in live:
                if await self._swap(pod, writes.retire(pod, ENDED_BY_DELETE)) is not None:
                    self._on_event("retired")
            if live:
                return False
            for pod in pods:
                if pod.owner == session.owner and not pod.terminating:
                    await self._delete(pod)
        except KubernetesError as error:
            if isinstance(error, Refused) and not error.transient:
                raise SandboxUnavailable(
                    f"The session could not be ended: Kubernetes refused: {quote(str(error))}"
                ) from error
            search.last_error = error
            await self._pause(search)
            return False
        return True

    async def _delete(self, pod: SandboxPod) -> None:
        try:
            await self._api.delete(self._pods, pod.name, uid=pod.uid, grace_seconds=_DELETE_GRACE_SECONDS)
        except Refused as error:
            if not _is_lost(error):
                raise

    async def _list(self, session: SessionKey, *, everything: bool = False) -> list[SandboxPod]:
        """A consistent list of the session's pods, or of all that have a session."""
        which = names.LABEL_SESSION_ID if everything else f"{names.LABEL_SESSION_ID}={session.id}"
        listing = await self._api.list(self._pods, f"{sandbox_selector(self._instance)},{which}")
        return [read_pod(item) for item in listing.items]

    def _has_begun(self, pod: SandboxPod) -> bool:
        return pod.started or pod.uid in self._begun

    def _is_ours(self, pod: SandboxPod) -> bool:
        return is_sandbox_of(pod, self._instance, self._configuration.controller_uid)

    async def _pause(self, search: _Search) -> None:
        error = search.last_error
        asked = error.retry_after_seconds if isinstance(error, Refused) else None
        await asyncio.sleep(max(search.pause_seconds, asked or 0.0))
        search.pause_seconds = min(2 * search.pause_seconds, _LONGEST_PAUSE_SECONDS)


def _is_lost(error: Refused) -> bool:
    """Whether the pod is gone, has changed, or is another one by now: a wrong uid in a patch is invalid."""
    return error.code in (404, 409) or (error.code == 422 and "metadata.uid" in str(error))


def sandbox_selector(instance: names.InstanceNames) -> str:
    return f"{names.LABEL_INSTANCE}={instance.instance},{names.LABEL_COMPONENT}={names.COMPONENT_SANDBOX}"


def _cause(search: _Search) -> str:
    return quote(str(search.last_error)) if search.last_error else "other callers got in first"
