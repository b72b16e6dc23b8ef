"""One call in a session's pod: waits for its agent, asks it, and watches the pod meanwhile."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from datetime import datetime
from typing import Any, TypeVar

from cli_mcp.execution import ExecutionError, Outcome, SandboxUnavailable, SessionEnded
from cli_mcp.sandbox_config import SessionLimits
from mcp_server.agents.agent import AgentAddress, AgentLost, AgentUnreachable, SandboxAgent
from mcp_server.audit import CallRecord
from mcp_server.cluster import writes
from mcp_server.cluster.cache import PodCache
from mcp_server.cluster.diagnosis import delay_of, ended, exit_text
from mcp_server.cluster.pods import SandboxPod
from mcp_server.waiting import first_of

_EXPLANATION_SECONDS = 2.0
"""How long the cluster may take to say why an agent is gone."""

T = TypeVar("T")
Work = Callable[[AgentAddress], Coroutine[Any, Any, T]]
"""Asks an agent for something."""


class NotServing(Exception):
    """Nothing ran, and the pod, as it was seen last, cannot serve its session any more."""

    def __init__(self, pod: SandboxPod) -> None:
        super().__init__(pod.name)
        self.pod = pod


class _Hopeless(Exception):
    """The pod will never serve."""


class Commands:
    """`give_up` retires a pod that will never serve. `on_call` hears of each call that was sent to a pod."""

    def __init__(
        self,
        agent: SandboxAgent,
        cache: PodCache,
        limits: Callable[[], SessionLimits],
        give_up: Callable[[SandboxPod], Awaitable[None]],
        on_call: Callable[[CallRecord], None],
        now: Callable[[], datetime],
    ) -> None:
        self._agent = agent
        self._cache = cache
        self._limits = limits
        self._give_up = give_up
        self._on_call = on_call
        self._now = now
        # By uid: how often the pod's container had been restarted when its agent last answered, and when a
        # restart was last told of.
        self._answering: dict[str, int] = {}
        self._told: dict[str, int] = {}

    async def call(self, pod: SandboxPod, work: Work[T], *, start_deadline: float) -> T:
        """The result of `work`, which asks the agent of `pod`, once that answers: by `start_deadline` of the
        loop's clock.

        Raises NotServing and AgentUnreachable when nothing ran, and ExecutionError.
        """
        if not self._answers(pod):
            pod = await self._start(pod, start_deadline)
        started_at = self._now()
        try:
            return await self._while_serving(pod, work(AgentAddress(pod.uid, pod.ip)), lambda known: None)
        except NotServing as lost:
            raise ended(lost.pod, self._limits()) from None
        except AgentUnreachable:
            self._answering[pod.uid] = -1  # whatever the kubelet says: ask the agent before the next call
            raise
        except (AgentLost, SessionEnded) as error:
            raise await self._explained(pod, error) from error
        finally:
            self._on_call(CallRecord(pod.owner, pod.session_id, pod.uid, pod.ip, started_at, self._now()))

    def with_restart(self, pod: SandboxPod, outcome: Outcome) -> Outcome:
        """The outcome with a note when the shell is a fresh one because the whole container is."""
        container = (self._cache.get(pod.uid) or pod).sandbox
        if not outcome.shell_restarted or container.restarts <= self._told.get(pod.uid, 0):
            return outcome
        self._told[pod.uid] = container.restarts
        finished = container.last_exit and container.last_exit.finished
        at = f" at {writes.timestamp(finished)}" if finished else ""
        note = f"the sandbox's container was started again: it had ended{at} {exit_text(container)}"
        return replace(outcome, notes=(*outcome.notes, note))

    def forget(self, uid: str) -> None:
        """The pod is gone."""
        self._agent.forget(uid)
        self._answering.pop(uid, None)
        self._told.pop(uid, None)

    def _answers(self, pod: SandboxPod) -> bool:
        known = self._answering.get(pod.uid)
        return bool(pod.ip) and (pod.ready if known is None else known == pod.sandbox.restarts)

    async def _start(self, pod: SandboxPod, deadline: float) -> SandboxPod:
        """The pod once its agent answers."""
        try:
            async with asyncio.timeout_at(deadline):
                await self._while_serving(pod, self._answered(pod, deadline), self._check_start)
        except (TimeoutError, AgentUnreachable):
            raise _not_started(self._cache.get(pod.uid) or pod) from None
        except _Hopeless as hopeless:
            await self._give_up(self._cache.get(pod.uid) or pod)
            raise SandboxUnavailable(
                f"Not run: the sandbox waits for {hopeless}. It was given up; the next call tries another."
            ) from None
        started = self._cache.get(pod.uid) or pod
        self._answering[pod.uid] = started.sandbox.restarts
        return started

    async def _answered(self, pod: SandboxPod, deadline: float) -> None:
        with self._cache.changes(pod.uid) as changed:
            while not (known := self._cache.get(pod.uid) or pod).ip:
                await changed.wait()
                changed.clear()
        await self._agent.wait_ready(AgentAddress(pod.uid, known.ip), deadline)

    def _check_start(self, pod: SandboxPod) -> None:
        delay = delay_of(pod)
        if delay.hopeless:
            raise _Hopeless(delay.what)
        if delay.lasts:
            raise _not_started(pod)

    async def _while_serving(
        self, pod: SandboxPod, work: Coroutine[Any, Any, T], check: Callable[[SandboxPod], None]
    ) -> T:
        """The result of `work`, which is cancelled when the pod stops to serve, or when `check` raises."""
        task = asyncio.create_task(work)
        try:
            with self._cache.changes(pod.uid) as changed:
                while True:
                    known = self._cache.get(pod.uid)
                    pod = known or replace(pod, terminating=True)
                    if not pod.usable:
                        raise NotServing(pod)
                    check(pod)
                    await first_of(task, changed.wait())
                    if task.done():
                        return await task
                    changed.clear()
        finally:
            if not task.done():
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    async def _explained(self, pod: SandboxPod, error: AgentLost | SessionEnded) -> ExecutionError:
        """What the cluster says, within a moment, about an agent that went in the middle of a command, or
        was told to go; what `error` says when the cluster says nothing."""
        restarts = pod.sandbox.restarts
        try:
            async with asyncio.timeout(_EXPLANATION_SECONDS):
                with self._cache.changes(pod.uid) as changed:
                    while (known := self._cache.get(pod.uid)) is not None and known.usable:
                        if known.sandbox.restarts > restarts or known.sandbox.ended:
                            return _cut_off(known)
                        await changed.wait()
                        changed.clear()
                return ended(known or replace(pod, terminating=True), self._limits())
        except TimeoutError:
            return error


def _not_started(pod: SandboxPod) -> SandboxUnavailable:
    return SandboxUnavailable(
        f"Not run: the sandbox has not started yet; it waits for {delay_of(pod).what}. It stays reserved for "
        "this session: call again."
    )


def _cut_off(pod: SandboxPod) -> ExecutionError:
    return ExecutionError(
        f"The command was cut off: the sandbox's container ended {exit_text(pod.sandbox)} and is started "
        "again. Files stay, and the shell gets back the state from before this command. How far the command "
        "came is unknown."
    )
