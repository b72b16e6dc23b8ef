"""Finds, claims or makes the pod of a session: the loop of list, decide and write over the API."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from datetime import datetime
from weakref import WeakValueDictionary

from cli_mcp import names
from cli_mcp.execution import NotSessionOwner, SandboxUnavailable
from mcp_server.backend import SessionKey, SessionState
from mcp_server.cluster import writes
from mcp_server.cluster.activity import Activity
from mcp_server.cluster.cache import PodCache
from mcp_server.cluster.claiming import (
    NOT_THE_OWNER,
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
from mcp_server.cluster.kubernetes import KubernetesError, Refused
from mcp_server.cluster.limits import limited
from mcp_server.cluster.pods import SandboxPod
from mcp_server.cluster.search import Search
from mcp_server.cluster.store import PodStore
from mcp_server.cluster.workspaces import Workspace, Workspaces

logger = logging.getLogger(__name__)

# The admission policy compares new pods with the instance, whose change may not have come here yet.
_TEMPLATE_IS_LATE = "cli-mcp-sandbox-class"
ENDED_BY_DELETE = "DELETE"


class SessionPods:
    """`stale` says why what the watches show cannot be trusted; "" when it can. `on_claim` hears of each warm
    pod that is about to be claimed."""

    def __init__(
        self,
        store: PodStore,
        instance: names.InstanceNames,
        cache: PodCache,
        configuration: Configuration,
        activity: Activity,
        workspaces: Workspaces,
        stale: Callable[[], str],
        on_claim: Callable[[SandboxPod], None],
        now: Callable[[], datetime],
    ) -> None:
        self._store = store
        self._instance = instance
        self._cache = cache
        self._configuration = configuration
        self._activity = activity
        self._workspaces = workspaces
        self._stale = stale
        self._on_claim = on_claim
        self._now = now
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def find(self, session: SessionKey, *, verify: bool = False) -> SandboxPod:
        """The session's active pod, which may not have started yet. One that is known costs no request,
        unless it is to be verified.

        Raises NotSessionOwner, and SandboxUnavailable with the cause.
        """
        pod = None if verify else self._known(session)
        if pod is not None:
            return pod
        lock = self._locks.setdefault(session.id, asyncio.Lock())
        async with lock:
            pod = None if verify else self._known(session)
            if pod is not None:
                return pod
            search = Search(session, trusts_cache=not verify)
            return await search.until_done(self._step, "Not run: no sandbox could be had")

    async def beginning(self, pod: SandboxPod) -> SessionState:
        """What the first answer out of `pod` is to its session."""
        if not pod.workspace_claim:
            return SessionState.NEW
        try:
            resumed = await self._workspaces.begin(pod.workspace_claim, pod.uid)
        except KubernetesError as error:
            logger.warning("workspace %s could not be marked as begun: %s", pod.workspace_claim, error)
            return SessionState.NEW
        return SessionState.RESUMED if resumed else SessionState.NEW

    async def end(self, session: SessionKey, *, delete_workspace: bool) -> None:
        """Retire and delete whatever pods the session has. Raises NotSessionOwner, SandboxUnavailable."""
        await Search(session).until_done(self._end, "The session could not be ended")
        if delete_workspace and self._persistent:
            failure = "The session's workspace could not be deleted"
            await Search(session).until_done(self._end_workspaces, failure)

    async def give_up(self, pod: SandboxPod) -> None:
        """Retire a pod that will never serve; who has changed it meanwhile decides what becomes of it."""
        try:
            await self._retire(pod)
        except KubernetesError as error:
            logger.warning("pod %s could not be retired: %s", pod.name, error)

    def count_sessions(self) -> int:
        return len(
            {pod.session_id for pod in self._cache if pod.live and pod.session_id and self._is_ours(pod)}
        )

    def warm(self) -> list[SandboxPod]:
        config = self._configuration.current
        return [] if config is None else [pod for pod in self._cache if is_warm(pod, self._instance, config)]

    def _known(self, session: SessionKey) -> SandboxPod | None:
        pod = self._cache.usable(session.id)
        if pod is None or not self._is_ours(pod):
            return None
        if self._activity.is_expiring(pod):
            return None
        if pod.owner != session.owner:
            raise NotSessionOwner(NOT_THE_OWNER)
        return pod

    async def _step(self, search: Search) -> SandboxPod | None:
        """One round of a search; the pod when that was the last one."""
        now = self._now()
        match await self._decide(search):
            case Use(pod):
                self._cache.written(pod)
                if not self._activity.is_expiring(pod):
                    return pod
                return await self._store.patch(pod, writes.renew(pod, now))
            case Activate(pod):
                return await self._store.patch(pod, writes.activate(pod, now))
            case Retire(pod):
                await self._retire(pod)
            case Claim(pod):
                self._on_claim(pod)
                await self._claim(pod, search)
            case Create(name, workspace):
                await self._create(name, workspace, search)
            case Wait():
                await search.pause()
            case Refuse(error):
                raise error
        return None

    async def _decide(self, search: Search) -> Step:
        """A claim from what the watch shows, or else a step from a list. Whoever has claimed lists before it
        goes on, so that a cache that is behind costs a warm pod at worst."""
        if search.trusts_cache and not self._persistent:
            search.trusts_cache = False
            step = decide(self._asked(search), self._cache, lambda: self._warm_for(search))
            if isinstance(step, Claim):
                return step
        listed = await self._store.list(None if limited(self._configuration.limits) else search.session.id)
        has_pod = any(pod.live and pod.session_id == search.session.id for pod in listed)
        workspaces = [] if has_pod or not self._persistent else await self._kept(search.session)
        search.kept = next((it for it in workspaces if it.live and it.belongs_to(search.session)), None)
        return decide(self._asked(search, workspaces), listed, lambda: self._warm_for(search))

    def _asked(self, search: Search, workspaces: Sequence[Workspace] = ()) -> Asked:
        return Asked(
            session=search.session,
            instance=self._instance,
            controller_uid=self._configuration.controller_uid,
            limits=self._configuration.limits,
            closed=self._stale() or self._configuration.closed_because(),
            taken=search.taken | {workspace.name for workspace in workspaces},
            workspace=search.kept.name if search.kept else "",
        )

    def _warm_for(self, search: Search) -> SandboxPod | None:
        """A session with a workspace can only have the warm pod of an earlier claim that broke off."""
        candidates = (pod for pod in self.warm() if (pod.uid, pod.revision) not in search.lost)
        if search.kept is not None:
            kept = search.kept.name
            return next((pod for pod in candidates if pod.workspace_claim == kept), None)
        return choose_warm(search.session, candidates)

    async def _claim(self, pod: SandboxPod, search: Search) -> None:
        taken = not pod.workspace_claim or await self._workspaces.take(pod.workspace_claim, search.session)
        body = writes.claim(pod, search.session, self._now())
        if taken and await self._store.patch(pod, body, "claimed") is not None:
            return
        search.lost.add((pod.uid, pod.revision))
        if taken and pod.workspace_claim:
            await search.pause()  # no other pod will do: the watch may show it as it is now

    async def _create(self, name: str, workspace: str, search: Search) -> None:
        if search.kept is not None and not await self._workspaces.renew(search.kept):
            return
        config = self._configuration.current
        assert config is not None, "an open gate comes with a configuration"
        try:
            if config.workspace_claim is not None and not workspace:
                await self._workspaces.create(config, name, search.session)
            body = writes.newborn(config, name, self._store.namespace, search.session, self._now(), workspace)
            await self._store.create(body)
        except Refused as error:
            if error.reason == "AlreadyExists":
                search.taken.add(name)
                return
            if error.transient:
                raise
            if error.code == 409 or _TEMPLATE_IS_LATE in str(error):  # 409: a quota that is being counted
                search.last_error = error
                await search.pause()
                return
            raise SandboxUnavailable(
                f"Not run: no warm sandbox is free, and Kubernetes refused to make one: {quote(str(error))}"
            ) from error

    async def _retire(self, pod: SandboxPod, ended_by: str = "") -> None:
        await self._store.patch(pod, writes.retire(pod, ended_by), "retired")

    async def _end(self, search: Search) -> bool | None:
        """One round; True when it was the last one."""
        session = search.session
        pods = [pod for pod in await self._store.list(session.id) if self._is_ours(pod)]
        live = [pod for pod in pods if pod.live]
        if any(pod.owner != session.owner for pod in live):
            raise NotSessionOwner("The session belongs to another caller.")
        for pod in live:
            await self._retire(pod, ENDED_BY_DELETE)
        if live:
            return None
        for pod in pods:
            if pod.owner == session.owner and not pod.terminating:
                await self._store.delete(pod)
        return True

    async def _end_workspaces(self, search: Search) -> bool | None:
        """One round; True when there is nothing left to do."""
        for workspace in await self._kept(search.session):
            if workspace.live and workspace.belongs_to(search.session):
                await self._workspaces.retire(workspace)
                return None
        return True

    async def _kept(self, session: SessionKey) -> list[Workspace]:
        return await self._workspaces.of_session(session.id)

    @property
    def _persistent(self) -> bool:
        config = self._configuration.current
        return config is not None and config.workspace_claim is not None

    def _is_ours(self, pod: SandboxPod) -> bool:
        return is_sandbox_of(pod, self._instance, self._configuration.controller_uid)
