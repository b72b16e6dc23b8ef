"""What a new session costs while 75 a second are opened, and a warm call: server and API server alone.

The API server is the one in memory, in a process of its own; there is no kubelet and agents answer at once.
Three replicas of the server, in one process, take turns. Times are from the call to its result.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import multiprocessing
import statistics
import time
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from lightkube.config.kubeconfig import KubeConfig

from cli_mcp.agent_api import Finished, ToolResult
from cli_mcp.execution import STREAM_LIMIT_BYTES, Outcome, ProgressCallback, StreamOutput
from cli_mcp.program import keep_out_of_garbage_collection
from mcp_server.backend import SessionKey
from mcp_server.cluster.kubernetes import KubernetesApi, Resource
from mcp_server.cluster.sessions import PodSessions
from tests.hooks.world import ALLOWLIST, NAMESPACE, World
from tests.kube import controllers
from tests.kube.clock import wall_clock
from tests.kube.server import Server

if TYPE_CHECKING:
    from collections.abc import Mapping
    from multiprocessing.connection import Connection

    from mcp_server.agents.agent import AgentAddress

REPLICAS = 3
CLAIMS_PER_SECOND = 75
SECONDS = 10
WARM_CALLS = 2000
SPARE_PODS = 50


class Agents:
    """Answer at once, and remember whom."""

    def __init__(self) -> None:
        self._answered: set[str] = set()

    async def run(
        self,
        agent: AgentAddress,
        session_id: str,
        command: str,
        timeout_seconds: float,
        on_progress: ProgressCallback,
        output_bytes: int = STREAM_LIMIT_BYTES,
    ) -> Finished:
        first = agent.pod_uid not in self._answered
        self._answered.add(agent.pod_uid)
        outcome = Outcome(0, StreamOutput(b""), StreamOutput(b""), duration_ms=0, cwd="/workspace")
        return Finished(outcome, first)

    async def call_tool(
        self,
        agent: AgentAddress,
        session_id: str,
        name: str,
        arguments: Mapping[str, object],
        timeout_seconds: float,
    ) -> ToolResult:
        return ToolResult({}, first=False)

    async def wait_ready(self, agent: AgentAddress, deadline: float) -> None:
        return

    def forget(self, pod_uid: str) -> None:
        return


def serve_api(pods: int, ready: Connection) -> None:
    """The API server with the hooks' own objects and `pods` warm pods of theirs."""

    async def serve() -> None:
        world = World()
        world.admin_secrets()
        world.apply({"proxy": ALLOWLIST, "sandbox": {"warmPoolSize": 1}})
        world.run()
        world.api.clock = wall_clock
        config = world.sandbox_config()
        for number in range(pods):
            pod = {**config["template"]}
            pod["metadata"] = {
                **pod["metadata"],
                "name": f"cli-mcp-demo-pool-{number + 1}",
                "ownerReferences": [config["ownerReference"]],
            }
            world.api.create(pod)
        controllers.schedule_pods(world.api)
        controllers.start_pods(world.api)
        gc.disable()  # all that the model ever had would be looked through again and again, for 0.1 s
        async with Server(world.api, collects_garbage=False).running() as server:
            ready.send(server.url)
            await asyncio.Event().wait()

    asyncio.run(serve())


async def measure(url: str, rate: int) -> None:
    async with AsyncExitStack() as stack:
        agents, replicas = Agents(), []
        for _ in range(REPLICAS):
            api = await stack.enter_async_context(KubernetesApi.connected(KubeConfig.from_server(url).get()))
            sessions = PodSessions(api, agents, instance="demo", namespace=NAMESPACE)
            replicas.append(await stack.enter_async_context(sessions.running()))
        while not all(it.readiness().ready for it in replicas):
            await asyncio.sleep(0.05)
        keep_out_of_garbage_collection()

        async def timed(number: int) -> float:
            started = time.perf_counter()
            key = SessionKey("somebody", f"s{number}")
            await replicas[number % REPLICAS].run(key, "true", 60.0, lambda progress: None)
            return time.perf_counter() - started

        started, spent = time.perf_counter(), time.process_time()
        claims = []
        for number in range(rate * SECONDS):
            await asyncio.sleep(max(0.0, started + number / rate - time.perf_counter()))
            claims.append(asyncio.create_task(timed(number)))
        times = await asyncio.gather(*claims)
        took = time.perf_counter() - started
        print(f"{len(times)} sessions opened in {took:.1f} s: {len(times) / took:.0f}/s of {rate}/s wanted")
        cpu = (time.process_time() - spent) / len(times)
        report("new session to its result", times)
        print(f"{'of that CPU of the replicas':32} {cpu * 1000:10.2f} ms a session")
        report("warm call", [await timed(number % len(times)) for number in range(WARM_CALLS)])
        api = await stack.enter_async_context(KubernetesApi.connected(KubeConfig.from_server(url).get()))
        report("beside it: one list of the API", [await listed(api, number) for number in range(200)])


async def listed(api: KubernetesApi, number: int) -> float:
    started = time.perf_counter()
    await api.list(Resource.core(NAMESPACE, "pods"), f"cli-mcp.redhat.com/session-id=s{number}")
    return time.perf_counter() - started


def report(what: str, seconds: list[float]) -> None:
    percentiles = statistics.quantiles(seconds, n=100)
    shown = "  ".join(f"p{n} {percentiles[n - 1] * 1000:7.2f} ms" for n in (50, 90, 99))
    print(f"{what:32} {shown}  max {max(seconds) * 1000:7.2f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=int, default=CLAIMS_PER_SECOND, help="new sessions a second")
    rate = parser.parse_args().rate
    pods = rate * SECONDS + SPARE_PODS
    receiving, sending = multiprocessing.Pipe(duplex=False)
    server = multiprocessing.get_context("spawn").Process(target=serve_api, args=(pods, sending), daemon=True)
    server.start()
    try:
        asyncio.run(measure(receiving.recv(), rate))
    finally:
        server.terminate()


if __name__ == "__main__":
    main()
