"""What servers find on the way of a call, and what they write of it."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from lightkube.config.kubeconfig import KubeConfig

from cli_mcp import names
from cli_mcp.path_report import PathReport, TargetKind, TargetState, TargetStates, merged
from mcp_server.cluster import path_checks
from mcp_server.cluster.kubernetes import KubernetesApi
from mcp_server.cluster.path_checks import (
    NO_AGENT,
    NO_PROXY,
    Neighbours,
    PathChecks,
    Probes,
    confirmed,
    data_changes,
    network_probes,
)
from tests.hooks.world import NAMESPACE
from tests.mcp_server.cluster.harness import Cluster, cluster, eventually

GOOD = TargetState(endpoint="a:443", kind=TargetKind.ALLOWLIST)
BAD = GOOD.model_copy(update={"problem": "gone", "remedy": "look"})
OTHER = TargetState(endpoint="b:443", kind=TargetKind.KUBERNETES)
CONFIG_MAP = names.InstanceNames("demo").path_report
MERGED = [
    ([], ()),
    ([TargetStates()], ()),
    ([TargetStates(targets=(OTHER, GOOD))], (GOOD, OTHER)),
    ([TargetStates(targets=(GOOD,)), TargetStates(targets=(BAD,))], (BAD,)),
    ([TargetStates(targets=(BAD,)), TargetStates(targets=(GOOD,)), TargetStates()], (BAD,)),
]


@pytest.mark.parametrize(("answers", "expected"), MERGED)
def test_a_proxy_with_a_problem_outweighs_one_without(
    answers: list[TargetStates], expected: tuple[TargetState, ...]
) -> None:
    assert merged(state for answer in answers for state in answer.targets) == expected


@pytest.mark.parametrize(
    ("before", "found", "expected"),
    [
        (PathReport(), PathReport(unreachable=("x",)), PathReport()),
        (PathReport(unreachable=("x",)), PathReport(unreachable=("x", "y")), PathReport(unreachable=("x",))),
        (PathReport(unreachable=("x",)), PathReport(), PathReport()),
        (PathReport(targets=(GOOD,)), PathReport(targets=(BAD,)), PathReport(targets=(BAD,))),
        (PathReport(targets=(BAD,)), PathReport(), PathReport(targets=(BAD,))),
    ],
)
def test_two_looks_have_to_agree_on_what_is_not_reached(
    before: PathReport, found: PathReport, expected: PathReport
) -> None:
    assert confirmed(before, found) == expected


@pytest.mark.parametrize(
    ("present", "servers", "expected"),
    [
        ({}, {"me"}, {"me": "1"}),
        ({"me": "1"}, {"me"}, {}),
        ({"me": "0", "other": "x"}, {"me", "other"}, {"me": "1"}),
        ({"me": "1", "gone": "x"}, {"me"}, {"gone": None}),
        ({"gone": "x"}, set[str](), {"me": "1"}),
    ],
)
def test_only_a_change_is_written_and_who_is_gone_is_taken_out(
    present: dict[str, str], servers: set[str], expected: dict[str, str | None]
) -> None:
    assert data_changes(present, {"me": "1"}, servers) == expected


def pod(name: str, component: str, *, ready: bool = True, ip: str = "10.0.0.1", **metadata: Any) -> Any:
    return {
        "metadata": {
            "name": name,
            "uid": name,
            "resourceVersion": "1",
            "labels": {names.LABEL_COMPONENT: component},
            **metadata,
        },
        "status": {"podIP": ip, "conditions": [{"type": "Ready", "status": "True" if ready else "False"}]},
    }


def test_neighbours_are_the_proxies_that_should_answer_and_all_servers() -> None:
    neighbours = Neighbours()
    neighbours.listed([pod("p1", "proxy", ip="10.0.0.2"), pod("s1", "server")], "1")
    neighbours.changed("ADDED", pod("p2", "proxy", ready=False, ip="10.0.0.3"))
    neighbours.changed("ADDED", pod("p3", "proxy", ip=""))
    neighbours.changed("ADDED", pod("p4", "proxy", deletionTimestamp="2026-01-01T00:00:00Z"))
    neighbours.changed("ADDED", pod("s2", "server", ready=False))
    assert neighbours.proxy_addresses() == ["10.0.0.2"]
    assert neighbours.server_names() == {"s1", "s2"}
    neighbours.changed("DELETED", pod("s1", "server"))
    assert neighbours.server_names() == {"s2"}


class Path:
    """The way of a call as a test makes it."""

    def __init__(self) -> None:
        self.answer: TargetStates | None = TargetStates(targets=(GOOD,))
        self.agent = True

    @property
    def probes(self) -> Probes:
        async def connects(host: str, port: int) -> bool:
            assert port == names.AGENT_PORT
            return self.agent

        async def targets_of(host: str) -> TargetStates | None:
            return self.answer

        return Probes(connects, targets_of)


@asynccontextmanager
async def checking(demo: Cluster, path: Path, name: str) -> AsyncIterator[Neighbours]:
    config = KubeConfig.from_server(demo.url).get()
    neighbours = Neighbours()
    neighbours.listed([pod("proxy-1", "proxy"), pod(name, "server")], "1")
    async with KubernetesApi.connected(config) as api:
        checks = PathChecks(api, neighbours, CONFIG_MAP, NAMESPACE, name, lambda: ["10.0.0.9"], path.probes)
        running = asyncio.create_task(checks.run())
        try:
            yield neighbours
        finally:
            running.cancel()


def reports(demo: Cluster) -> dict[str, Any]:
    (found,) = (
        it for it in demo.world.api.objects("configmaps", NAMESPACE) if it["metadata"]["name"] == CONFIG_MAP
    )
    return {name: json.loads(text) for name, text in (found.get("data") or {}).items()}


@pytest.fixture(autouse=True)
def _quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(path_checks, "LOOK_SECONDS", 0.02)


async def test_what_is_found_reaches_the_conditions_and_goes_again() -> None:
    path = Path()
    async with cluster() as demo, checking(demo, path, "server-1"):

        def condition(kind: str) -> tuple[str, str]:
            demo.world.run()
            found = demo.world.condition(kind)
            return found["status"], found["reason"]

        await eventually(lambda: condition("TargetsReachable") == ("True", "TargetsAnswer"))
        path.answer = TargetStates(targets=(BAD,))
        await eventually(lambda: condition("TargetsReachable") == ("False", "TargetUnreachable"))
        assert condition("Ready")[0] == "True"
        path.answer = TargetStates(targets=(GOOD, OTHER.model_copy(update={"problem": "gone"})))
        await eventually(lambda: condition("Ready") == ("False", "TargetUnreachable"))
        path.answer = TargetStates(targets=(GOOD,))
        path.agent = False
        await eventually(lambda: condition("Ready") == ("False", "PathBroken"))
        assert condition("TargetsReachable") == ("True", "TargetsAnswer")
        path.agent, path.answer = True, None
        await eventually(lambda: reports(demo)["server-1"]["unreachable"] == [NO_PROXY])
        path.answer = TargetStates(targets=(GOOD,))
        await eventually(lambda: condition("Ready")[0] == "True")


async def test_nothing_is_written_while_nothing_changes_nor_while_nothing_is_known() -> None:
    path = Path()
    path.answer = TargetStates()
    async with cluster() as demo, checking(demo, path, "server-1"):
        mark = demo.mark()
        await asyncio.sleep(0.2)
        assert demo.requests_since(mark) == []
        path.answer = TargetStates(targets=(GOOD,))
        await eventually(lambda: "server-1" in reports(demo))
        mark = demo.mark()
        await asyncio.sleep(0.2)
        assert demo.requests_since(mark) == []


async def test_each_server_has_its_own_report_and_one_that_is_gone_has_none() -> None:
    path = Path()
    async with cluster() as demo:
        async with checking(demo, path, "old"):
            await eventually(lambda: "old" in reports(demo))
        async with checking(demo, path, "new"):
            await eventually(lambda: set(reports(demo)) == {"new"})


async def test_a_write_that_fails_is_tried_again_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    path = Path()
    async with cluster() as demo, checking(demo, path, "server-1"):
        await eventually(lambda: "server-1" in reports(demo))
        demo.world.api.delete("configmaps", NAMESPACE, CONFIG_MAP)
        path.agent = False
        await eventually(lambda: "is not written" in caplog.text)
        demo.world.run()
        await eventually(lambda: reports(demo).get("server-1", {}).get("unreachable") == [NO_AGENT])
    assert caplog.text.count("is not written") == 1


@asynccontextmanager
async def proxy_that_says(status: int, body: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    async def targets(request: web.Request) -> web.Response:
        return web.Response(status=status, text=body)

    application = web.Application()
    application.add_routes([web.get("/targets", targets)])
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    monkeypatch.setattr(path_checks, "PROXY_METRICS_PORT", runner.addresses[0][1])
    yield
    await runner.cleanup()


@pytest.mark.parametrize(
    ("status", "body", "expected"),
    [
        (200, TargetStates(targets=(BAD,)).model_dump_json(by_alias=True), TargetStates(targets=(BAD,))),
        (404, "not found", TargetStates()),
        (200, "nonsense", TargetStates()),
    ],
)
async def test_a_proxy_is_asked_over_the_network(
    status: int, body: str, expected: TargetStates, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with proxy_that_says(status, body, monkeypatch), aiohttp.ClientSession() as session:
        assert await network_probes(session).targets_of("127.0.0.1") == expected


async def test_nobody_there_is_nobody_there() -> None:
    async with aiohttp.ClientSession() as session:
        probes = network_probes(session)
        assert await probes.targets_of("127.0.0.1") is None
        server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        assert await probes.connects("127.0.0.1", port)
        server.close()
        await server.wait_closed()
        assert not await probes.connects("127.0.0.1", port)
