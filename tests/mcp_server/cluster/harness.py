"""Replicas of the server in front of a cluster in memory: real hooks, a real socket, doubles of agents."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lightkube.config.kubeconfig import KubeConfig

from cli_mcp import names
from cli_mcp.agent_api import Finished, ToolResult
from cli_mcp.execution import STREAM_LIMIT_BYTES, Outcome, ProgressCallback, StreamOutput
from mcp_server.agents.agent import AgentAddress, AgentUnreachable
from mcp_server.backend import SessionKey, SessionOutcome
from mcp_server.cluster.kubernetes import KubernetesApi
from mcp_server.cluster.sessions import PodSessions
from tests.hooks.world import ALLOWLIST, NAMESPACE, World
from tests.kube import controllers
from tests.kube.server import Server

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from tests.kube.objects import Object

OWNER = "somebody"


def session(id_: str, owner: str = OWNER) -> SessionKey:
    return SessionKey(owner, id_)


def outcome(text: str = "", *, shell_restarted: bool = False) -> Outcome:
    data = text.encode()
    return Outcome(
        0,
        StreamOutput(data, total_bytes=len(data)),
        StreamOutput(b""),
        duration_ms=1,
        cwd="/workspace",
        shell_restarted=shell_restarted,
    )


@dataclass
class Agents:
    """The agents of all pods; a command's output is the uid of its pod.

    The command `wait` runs until `released` is set or it is cancelled; `in a new shell` says so.
    """

    world: World
    ready: Callable[[AgentAddress], bool] = lambda agent: True
    runs: list[tuple[str, str, str]] = field(default_factory=list)
    """(uid of the pod, session, command) of each command."""
    broken_rules: list[str] = field(default_factory=list)
    """Commands that came to a pod that was not active, or not the session's."""
    running: Counter[str] = field(default_factory=Counter)
    interrupted: list[str] = field(default_factory=list)
    forgotten: list[str] = field(default_factory=list)
    released: asyncio.Event = field(default_factory=asyncio.Event)
    met: list[str] = field(default_factory=list)
    answered: set[str] = field(default_factory=set)
    failures: list[Exception] = field(default_factory=list)
    failing_for_ever: bool = False
    output_bytes: list[int] = field(default_factory=list)

    def fail_with(self, error: Exception, *, once: bool = False) -> None:
        self.failures = [error]
        self.failing_for_ever = not once

    async def run(
        self,
        agent: AgentAddress,
        session_id: str,
        command: str,
        timeout_seconds: float,
        on_progress: ProgressCallback,
        output_bytes: int = STREAM_LIMIT_BYTES,
    ) -> Finished:
        pod = self._pod(agent)
        labels = pod["metadata"]["labels"]
        if labels.get(names.LABEL_STATE) not in (names.STATE_ACTIVE, names.STATE_RETIRING):
            self.broken_rules.append(f"{command} in a pod that is {labels.get(names.LABEL_STATE)}")
        if labels.get(names.LABEL_SESSION_ID) != session_id:
            self.broken_rules.append(f"{command} of {session_id} in {labels}")
        self.output_bytes.append(output_bytes)
        self.runs.append((agent.pod_uid, session_id, command))
        self.running[command] += 1
        try:
            if self.failures:
                raise self.failures[0] if self.failing_for_ever else self.failures.pop()
            if command == "wait":
                await self.released.wait()
            result = outcome(agent.pod_uid, shell_restarted=command == "in a new shell")
            return Finished(result, self._is_first(agent))
        except asyncio.CancelledError:
            self.interrupted.append(command)
            raise
        finally:
            self.running[command] -= 1

    async def call_tool(
        self,
        agent: AgentAddress,
        session_id: str,
        name: str,
        arguments: Mapping[str, object],
        timeout_seconds: float,
    ) -> ToolResult:
        self._pod(agent)
        return ToolResult({"name": name, **arguments}, self._is_first(agent))

    async def wait_ready(self, agent: AgentAddress, deadline: float) -> None:
        self.met.append(agent.pod_uid)
        while not self.ready(agent):
            if asyncio.get_running_loop().time() >= deadline:
                raise AgentUnreachable("not ready")
            await asyncio.sleep(0.01)

    def forget(self, pod_uid: str) -> None:
        self.forgotten.append(pod_uid)

    def _is_first(self, agent: AgentAddress) -> bool:
        is_first = agent.pod_uid not in self.answered
        self.answered.add(agent.pod_uid)
        return is_first

    def _pod(self, agent: AgentAddress) -> Object:
        for pod in self.world.api.objects("pods", NAMESPACE):
            if pod["metadata"]["uid"] == agent.pod_uid:
                if pod["status"].get("podIP") != agent.ip:
                    raise AgentUnreachable("nobody at this address")
                return pod
        raise AgentUnreachable("nobody at this address")


class Cluster:
    """One namespace with the instance `demo`, whose gate is open, and the servers that are started in it."""

    def __init__(self, server: Server, world: World, stack: AsyncExitStack) -> None:
        self.server = server
        self.world = world
        self.agents = Agents(world)
        self._stack = stack

    @property
    def url(self) -> str:
        return self.server.url

    async def replica(self, url: str = "", **options: Any) -> PodSessions:
        """A server that has read what there is."""
        sessions = await self._stack.enter_async_context(self.temporary_replica(url, **options))
        await eventually(lambda: sessions.readiness().ready)
        return sessions

    @asynccontextmanager
    async def temporary_replica(self, url: str = "", **options: Any) -> AsyncIterator[PodSessions]:
        config = KubeConfig.from_server(url or self.url).get()
        async with KubernetesApi.connected(config) as api:
            options = {"now": self.world.clock, **options}
            sessions = PodSessions(api, self.agents, instance="demo", namespace=NAMESPACE, **options)
            async with sessions.running():
                yield sessions

    def pods_of(self, session_id: str) -> list[Object]:
        return [
            pod
            for pod in self.world.api.objects("pods", NAMESPACE)
            if pod["metadata"]["labels"].get(names.LABEL_SESSION_ID) == session_id
        ]

    def state_of(self, session_id: str) -> list[str]:
        return [pod["metadata"]["labels"][names.LABEL_STATE] for pod in self.pods_of(session_id)]

    def start_pods(self) -> None:
        """What scheduler and kubelet do."""
        controllers.schedule_pods(self.world.api)
        controllers.start_pods(self.world.api)

    @asynccontextmanager
    async def starting_pods(self) -> AsyncIterator[None]:
        """New pods start by themselves meanwhile."""

        async def start() -> None:
            while True:
                self.start_pods()
                await asyncio.sleep(0.05)

        task = asyncio.create_task(start())
        try:
            yield
        finally:
            task.cancel()

    def requests_since(self, mark: int) -> list[str]:
        """The servers' own requests: the cluster's controllers have names."""
        return [
            f"{entry.verb} {entry.resource}"
            for entry in self.world.api.journal[mark:]
            if not entry.user.startswith("system:")
        ]

    def mark(self) -> int:
        return len(self.world.api.journal)


@asynccontextmanager
async def cluster(pool: int = 2, **sandbox: Any) -> AsyncIterator[Cluster]:
    """With a warm pool of `pool` pods, and more of spec.sandbox."""
    world = World()
    world.admin_secrets()
    world.apply({"proxy": ALLOWLIST, "sandbox": {"warmPoolSize": pool, **sandbox}})
    world.run()
    async with Server(world.api, collects_garbage=False).running() as server, AsyncExitStack() as stack:
        yield Cluster(server, world, stack)


async def call(sessions: PodSessions, key: SessionKey, command: str = "true") -> SessionOutcome:
    return await sessions.run(key, command, 60.0, lambda progress: None)


def pod_of(ran: SessionOutcome) -> str:
    """The uid of the pod that a command of the double ran in."""
    return ran.outcome.stdout.head.decode()


async def eventually(holds: Callable[[], bool], seconds: float = 10.0) -> None:
    async with asyncio.timeout(seconds):
        while not holds():
            await asyncio.sleep(0.005)
