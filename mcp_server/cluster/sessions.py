"""The sandbox backend of a cluster: a session is a pod, and its commands go to the agent there.

Any number of replicas serve the same sessions; none of them knows anything that the cluster does not. A call
of a session whose pod is known makes no request to the Kubernetes API.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from cli_mcp import names
from cli_mcp.agent_api import Finished, ToolResult
from cli_mcp.execution import ExecutionError, ProgressCallback
from mcp_server.agents.agent import AgentAddress, AgentUnreachable, SandboxAgent
from mcp_server.audit import CallRecord
from mcp_server.backend import (
    OpenSession,
    Readiness,
    SessionKey,
    SessionOutcome,
    SessionState,
    SessionToolResult,
)
from mcp_server.catalogue import Offering
from mcp_server.cluster import writes
from mcp_server.cluster.activity import Activity
from mcp_server.cluster.cache import PodCache
from mcp_server.cluster.commands import Commands, NotServing, Work
from mcp_server.cluster.configuration import Configuration
from mcp_server.cluster.diagnosis import ended
from mcp_server.cluster.finding import SessionPods
from mcp_server.cluster.kubernetes import KubernetesApi, Object, Resource
from mcp_server.cluster.pods import MalformedPod, SandboxPod, read_pod
from mcp_server.cluster.store import PodStore
from mcp_server.cluster.watch import Watch
from mcp_server.cluster.workspaces import Workspaces

logger = logging.getLogger(__name__)

START_SECONDS = 60.0
"""How long a call waits for a sandbox that starts."""
STALE_SECONDS = 30.0
"""News older than this is not good enough for claiming or making a pod."""
_ATTEMPTS = 3
_HOLD_LOOK_SECONDS = 1.0
_MEET_SECONDS = 5.0

R = TypeVar("R", Finished, ToolResult)


class PodSessions:
    """See mcp_server.backend.SandboxBackend. In use inside of `running`.

    `instance` and `namespace` say whose sandboxes these are. `on_call` hears of each call that reached a
    pod, `on_event` of each pod that was "claimed", "created" or "retired" from here.
    """

    def __init__(
        self,
        api: KubernetesApi,
        agent: SandboxAgent,
        *,
        instance: str,
        namespace: str,
        start_seconds: float = START_SECONDS,
        stale_seconds: float = STALE_SECONDS,
        on_call: Callable[[CallRecord], None] = lambda call: None,
        on_event: Callable[[str], None] = lambda event: None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        instance_names = names.InstanceNames(instance)
        self._agent = agent
        self._start_seconds = start_seconds
        self._stale_seconds = stale_seconds
        self._now = now
        self._cache = PodCache(on_gone=lambda uid: self._commands.forget(uid))
        self._store = PodStore(api, instance_names, namespace, self._cache, on_event)
        self._workspaces = Workspaces(api, self._store.selector, namespace, now)
        self._configuration = Configuration(instance_names.server)
        self._activity = Activity(self._stamp, self._cache.get, self._idle_timeout, now)
        self._pod_watch = Watch(
            api,
            self._store.resource,
            _CachedPods(self._cache),
            labels=self._store.selector,
            on_recovery=self._activity.stamp_all,
        )
        self._configuration_watch = Watch(
            api,
            Resource.core(namespace, "configmaps"),
            self._configuration,
            fields=f"metadata.name={instance_names.server}",
        )
        self._sessions = SessionPods(
            self._store,
            instance_names,
            self._cache,
            self._configuration,
            self._activity,
            self._workspaces,
            self._stale_because,
            self._meet_meanwhile,
            now,
        )
        self._meetings: set[asyncio.Task[None]] = set()
        self._commands = Commands(
            agent,
            self._cache,
            lambda: self._configuration.limits,
            self._sessions.give_up,
            on_call,
            now,
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator["PodSessions"]:
        watches = [asyncio.create_task(watch.run()) for watch in (self._pod_watch, self._configuration_watch)]
        try:
            yield self
        finally:
            for task in watches:
                task.cancel()
            await asyncio.gather(*watches, return_exceptions=True)

    async def run(
        self, session: SessionKey, command: str, timeout_seconds: float, on_progress: ProgressCallback
    ) -> SessionOutcome:
        def work(agent: AgentAddress) -> Coroutine[Any, Any, Finished]:
            output_bytes = self._configuration.commands.output_bytes
            return self._agent.run(agent, session.id, command, timeout_seconds, on_progress, output_bytes)

        finished, pod, state = await self._call(session, work)
        return SessionOutcome(self._commands.with_restart(pod, finished.outcome), state)

    async def call_tool(
        self, session: SessionKey, name: str, arguments: Mapping[str, object], timeout_seconds: float
    ) -> SessionToolResult:
        def work(agent: AgentAddress) -> Coroutine[Any, Any, ToolResult]:
            return self._agent.call_tool(agent, session.id, name, arguments, timeout_seconds)

        result, _, state = await self._call(session, work)
        return SessionToolResult(result.value, state)

    async def end(self, session: SessionKey, *, delete_workspace: bool) -> None:
        await self._sessions.end(session, delete_workspace=delete_workspace)

    @contextmanager
    def hold(self, session: SessionKey) -> Iterator[None]:
        holding = asyncio.create_task(self._hold(session))
        try:
            yield
        finally:
            holding.cancel()

    def open_sessions(self, owner: str) -> list[OpenSession]:
        """A running command stamps its session, and is no more precisely known to other replicas."""
        return [
            OpenSession(pod.session_id, max(0.0, (self._now() - active).total_seconds()))
            for pod in self._cache
            if pod.usable
            and pod.owner == owner
            and pod.session_id
            and (active := pod.last_activity or pod.created) is not None
        ]

    def readiness(self) -> Readiness:
        if not self._pod_watch.synced or not self._configuration_watch.synced:
            return Readiness(False, "the Kubernetes API has not been read yet")
        closed = self._stale_because() or self._configuration.closed_because()
        return Readiness(True, f"no new sessions: {closed}") if closed else Readiness(True)

    def offering(self) -> Offering:
        """What the instance offers now; nothing while that is not known."""
        current = self._configuration.current
        if current is None:
            return Offering(groups=(), default_session=False)
        per_caller = current.default_session == "perCaller"
        return Offering(current.tools, current.reach, per_caller, current.commands)

    def session_count(self) -> int:
        return self._sessions.count_sessions()

    def warm_count(self) -> int:
        return len(self._sessions.warm())

    def warm_addresses(self) -> list[str]:
        """Of the sandboxes that wait for a session."""
        return sorted(pod.ip for pod in self._sessions.warm() if pod.ready and pod.ip)

    async def _call(self, session: SessionKey, work: Work[R]) -> tuple[R, SandboxPod, SessionState]:
        """The result of `work` in the session's pod, and what that was to the session.

        As long as nothing has run it is tried again.
        """
        start_deadline = asyncio.get_running_loop().time() + self._start_seconds
        error: ExecutionError | None = None
        for _ in range(_ATTEMPTS):
            pod = await self._sessions.find(session, verify=error is not None)
            try:
                async with self._activity.kept(pod):
                    result = await self._commands.call(pod, work, start_deadline=start_deadline)
                    state = await self._sessions.beginning(pod) if result.first else SessionState.CONTINUED
                    return result, pod, state
            except AgentUnreachable as unreachable:
                error = unreachable
            except NotServing as lost:
                error = ended(lost.pod, self._configuration.limits)
                if lost.pod.ended_by:
                    raise error from None
        assert error is not None
        raise error

    def _meet_meanwhile(self, pod: SandboxPod) -> None:
        """While a warm pod is claimed, get to know its agent, which the first command would wait for."""
        meeting = asyncio.create_task(self._meet(AgentAddress(pod.uid, pod.ip)))
        self._meetings.add(meeting)
        meeting.add_done_callback(self._meetings.discard)

    async def _meet(self, agent: AgentAddress) -> None:
        try:
            await self._agent.wait_ready(agent, asyncio.get_running_loop().time() + _MEET_SECONDS)
        except ExecutionError:
            return  # the command says so itself if it comes to that

    async def _hold(self, session: SessionKey) -> None:
        """Keep whatever pod the session has, for ever."""
        while True:
            pod = self._cache.usable(session.id)
            if pod is None or pod.owner != session.owner:
                await asyncio.sleep(_HOLD_LOOK_SECONDS)
                continue
            async with self._activity.kept(pod):
                with self._cache.changes(pod.uid) as changed:
                    while (known := self._cache.get(pod.uid)) is not None and known.usable:
                        await changed.wait()
                        changed.clear()

    async def _stamp(self, pod: SandboxPod) -> None:
        await self._store.patch(pod, writes.stamp(pod, self._now()))
        if pod.workspace_claim:
            await self._workspaces.stamp(pod.workspace_claim)

    def _idle_timeout(self) -> timedelta:
        return timedelta(seconds=self._configuration.limits.idle_timeout_seconds)

    def _stale_because(self) -> str:
        seconds = max(watch.stale_seconds() for watch in (self._pod_watch, self._configuration_watch))
        return "" if seconds < self._stale_seconds else "the Kubernetes API has been silent for too long"


class _CachedPods:
    """Fills a cache with what a watch shows."""

    def __init__(self, cache: PodCache) -> None:
        self._cache = cache

    def listed(self, items: list[Object], revision: str) -> None:
        self._cache.replace((pod for item in items if (pod := _read(item))), revision)

    def changed(self, event: str, item: Object) -> None:
        pod = _read(item)
        if pod is None:
            return
        if event == "DELETED":
            self._cache.deleted(pod)
        else:
            self._cache.watched(pod)


def _read(item: Object) -> SandboxPod | None:
    try:
        return read_pod(item)
    except MalformedPod as error:
        logger.error("the Kubernetes API shows %s", error)
        return None
