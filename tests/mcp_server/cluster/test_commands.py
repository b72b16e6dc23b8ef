"""One call in a pod whose agent or cluster may fail meanwhile."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from cli_mcp.execution import STREAM_LIMIT_BYTES, ExecutionError, SandboxUnavailable, SessionEnded
from cli_mcp.names import STATE_ACTIVE, STATE_RETIRING
from cli_mcp.sandbox_config import SessionLimits
from mcp_server.agents.agent import AgentAddress, AgentLost, AgentUnreachable
from mcp_server.cluster.cache import PodCache
from mcp_server.cluster.commands import Commands, NotServing
from mcp_server.cluster.pods import ContainerExit, ContainerView, SandboxPod
from tests.mcp_server.cluster.harness import eventually, outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from cli_mcp.agent_api import Finished, ToolResult
    from cli_mcp.execution import ProgressCallback
    from mcp_server.audit import CallRecord

LIMITS = SessionLimits(idle_timeout_seconds=60)
CONTAINER = ContainerView("sandbox", running=True)
READY = SandboxPod(
    "p", "uid", "1", state=STATE_ACTIVE, session_id="s", owner="me", ready=True, ip="10.0.0.1",
    scheduled=True, containers=(CONTAINER,),
)  # fmt: skip
STARTING = replace(READY, ready=False, ip="", containers=())


@dataclass
class Agent:
    """Says that it is ready when `ready` is set."""

    ready: asyncio.Event = field(default_factory=asyncio.Event)
    asked: list[AgentAddress] = field(default_factory=list)

    async def wait_ready(self, agent: AgentAddress, deadline: float) -> None:
        self.asked.append(agent)
        await self.ready.wait()

    async def run(
        self,
        agent: AgentAddress,
        session_id: str,
        command: str,
        timeout_seconds: float,
        on_progress: ProgressCallback,
        output_bytes: int = STREAM_LIMIT_BYTES,
    ) -> Finished:
        raise NotImplementedError("the tests' own work is done instead")

    async def call_tool(
        self, agent: AgentAddress, session_id: str, name: str, arguments: Mapping[str, object], timeout: float
    ) -> ToolResult:
        raise NotImplementedError("the tests' own work is done instead")

    def forget(self, pod_uid: str) -> None:
        return


class Pod:
    """A pod in the cache, which changes like one that is watched, and the commands that are sent to it."""

    def __init__(self, pod: SandboxPod = READY) -> None:
        self.known = pod
        self.agent = Agent()
        self.cache = PodCache(on_gone=lambda uid: None)
        self.cache.watched(pod)
        self.given_up: list[str] = []
        self.records: list[CallRecord] = []
        self.cancelled = 0
        self.commands = Commands(
            self.agent,
            self.cache,
            lambda: LIMITS,
            self._give_up,
            self.records.append,
            lambda: datetime(2026, 1, 1, tzinfo=UTC),
        )

    async def _give_up(self, pod: SandboxPod) -> None:
        self.given_up.append(pod.uid)

    def becomes(self, changed: Callable[[SandboxPod], SandboxPod]) -> None:
        self.known = replace(changed(self.known), revision=str(int(self.known.revision) + 1))
        self.cache.watched(self.known)

    async def call(
        self, failure: Exception | None = None, *, lasting: bool = False, start_seconds: float = 10
    ) -> str:
        """The address that the work was sent to."""

        async def work(agent: AgentAddress) -> str:
            if failure is not None:
                raise failure
            try:
                await asyncio.sleep(60 if lasting else 0)
            except asyncio.CancelledError:
                self.cancelled += 1
                raise
            return agent.ip

        deadline = asyncio.get_running_loop().time() + start_seconds
        return await self.commands.call(self.known, work, start_deadline=deadline)


async def test_a_ready_pod_is_not_asked_whether_it_is() -> None:
    pod = Pod()
    assert await pod.call() == "10.0.0.1"
    assert pod.agent.asked == []
    [record] = pod.records
    assert (record.owner, record.session_id, record.pod_uid, record.pod_ip) == ("me", "s", "uid", "10.0.0.1")


async def test_a_pod_that_starts_is_waited_for_until_its_agent_answers() -> None:
    pod = Pod(STARTING)
    call = asyncio.create_task(pod.call())
    await asyncio.sleep(0.01)
    pod.becomes(lambda it: replace(it, ip="10.0.0.9"))
    await eventually(lambda: pod.agent.asked == [AgentAddress("uid", "10.0.0.9")])
    assert pod.records == []
    pod.agent.ready.set()
    assert await call == "10.0.0.9"


async def test_a_pod_that_does_not_start_in_time_stays_reserved_and_says_what_it_waits_for() -> None:
    pod = Pod(replace(STARTING, scheduled=False, unschedulable="insufficient cpu"))
    with pytest.raises(SandboxUnavailable, match=r"insufficient cpu.*call again"):
        await pod.call(start_seconds=0.05)
    assert pod.given_up == []


async def test_a_pod_that_will_never_start_is_given_up() -> None:
    pod = Pod(replace(STARTING, containers=(ContainerView("sandbox", waiting="InvalidImageName"),)))
    with pytest.raises(SandboxUnavailable, match="given up"):
        await pod.call()
    assert pod.given_up == ["uid"]
    assert pod.records == []


async def test_a_pod_that_goes_before_its_agent_answers_has_run_nothing() -> None:
    pod = Pod(STARTING)
    call = asyncio.create_task(pod.call())
    await asyncio.sleep(0.01)
    pod.becomes(lambda it: replace(it, state=STATE_RETIRING))
    with pytest.raises(NotServing):
        await call


async def test_a_pod_that_goes_while_a_command_runs_ends_it() -> None:
    pod = Pod()
    call = asyncio.create_task(pod.call(lasting=True))
    await asyncio.sleep(0.01)
    pod.becomes(lambda it: replace(it, state=STATE_RETIRING, ended_by="DELETE"))
    with pytest.raises(SessionEnded, match="ended by DELETE"):
        await call
    assert pod.cancelled == 1
    assert len(pod.records) == 1


async def test_after_an_agent_could_not_be_reached_it_is_asked_before_the_next_command() -> None:
    pod = Pod()
    with pytest.raises(AgentUnreachable):
        await pod.call(AgentUnreachable("nobody"))
    pod.agent.ready.set()
    assert await pod.call() == "10.0.0.1"
    assert await pod.call() == "10.0.0.1"
    assert len(pod.agent.asked) == 1
    assert len(pod.records) == 3


async def test_a_lost_agent_is_explained_by_what_became_of_its_container() -> None:
    pod = Pod()
    call = asyncio.create_task(pod.call(AgentLost("the connection broke")))
    await asyncio.sleep(0.01)
    ended = ContainerView("sandbox", restarts=1, last_exit=ContainerExit(137, "OOMKilled", None))
    pod.becomes(lambda it: replace(it, containers=(ended,)))
    with pytest.raises(ExecutionError, match=r"cut off.*out of memory"):
        await call


async def test_a_lost_agent_that_the_cluster_says_nothing_of_is_its_own_explanation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("mcp_server.cluster.commands._EXPLANATION_SECONDS", 0.05)
    with pytest.raises(AgentLost, match="the connection broke"):
        await Pod().call(AgentLost("the connection broke"))


def test_a_restart_of_the_container_is_told_once_and_only_by_a_fresh_shell() -> None:
    exit_ = ContainerExit(1, "Error", datetime(2026, 1, 1, tzinfo=UTC))
    pod = Pod(replace(READY, containers=(replace(CONTAINER, restarts=1, last_exit=exit_),)))
    assert pod.commands.with_restart(pod.known, outcome()).notes == ()
    [note] = pod.commands.with_restart(pod.known, outcome(shell_restarted=True)).notes
    assert "2026-01-01" in note
    assert "exit code 1" in note
    assert pod.commands.with_restart(pod.known, outcome(shell_restarted=True)).notes == ()
