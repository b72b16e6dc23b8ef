"""When a pod counts as isolated: decisions on tables, and the rounds against a network that is a function."""

import asyncio
from collections.abc import Callable

import pytest

from sandbox_agent import isolation_test
from sandbox_agent.isolation_test import (
    GIVE_UP_SECONDS,
    Round,
    Verdict,
    explanation,
    probes,
    verdict,
    wait_for_isolation,
)

CLEAN = Round(control=True, leaks=())
NO_PROXY = Round(control=False, leaks=())
LEAK = Round(control=True, leaks=("the API server",))
LEAK_ALONE = Round(control=False, leaks=("the API server",))
LATE = GIVE_UP_SECONDS

ENVIRONMENT = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443"}
API_SERVER = ("10.96.0.1", 443)
METRICS = ("proxy", 9090)
METADATA = ("169.254.169.254", 80)
PROXY = ("proxy", 8080)


@pytest.mark.parametrize(
    ("rounds", "elapsed_seconds", "decided"),
    [
        ([], 0, Verdict.UNDECIDED),
        ([CLEAN], 1, Verdict.UNDECIDED),
        ([CLEAN, CLEAN], 1, Verdict.ISOLATED),
        ([CLEAN, CLEAN], LATE + 5, Verdict.ISOLATED),
        ([LEAK, CLEAN], 1, Verdict.UNDECIDED),
        ([LEAK, CLEAN, CLEAN], 1, Verdict.ISOLATED),
        ([CLEAN, LEAK], 1, Verdict.UNDECIDED),
        ([CLEAN, LEAK, CLEAN], 1, Verdict.UNDECIDED),
        ([NO_PROXY, CLEAN], 1, Verdict.UNDECIDED),
        ([CLEAN, NO_PROXY], 1, Verdict.UNDECIDED),
        ([NO_PROXY, NO_PROXY], 1, Verdict.UNDECIDED),
        ([LEAK, LEAK], LATE - 0.1, Verdict.UNDECIDED),
        ([LEAK, LEAK], LATE, Verdict.NOT_ISOLATED),
        ([CLEAN, LEAK], LATE, Verdict.NOT_ISOLATED),
        ([LEAK_ALONE, LEAK_ALONE], LATE, Verdict.NOT_ISOLATED),
        # The leak is over: one more round decides.
        ([LEAK, CLEAN], LATE, Verdict.UNDECIDED),
        # A proxy that is away says nothing about isolation, however long.
        ([NO_PROXY, NO_PROXY], 100 * LATE, Verdict.UNDECIDED),
    ],
)
def test_the_verdict(rounds: list[Round], elapsed_seconds: float, decided: Verdict) -> None:
    assert verdict(rounds, elapsed_seconds) is decided


def test_the_explanation_names_what_is_reached() -> None:
    both = Round(control=True, leaks=("the API server", "the proxy's metrics port"))
    assert "reaches the API server and the proxy's metrics port" in explanation(both)
    assert "proxy cannot be reached" in explanation(NO_PROXY)


@pytest.mark.parametrize(
    ("environment", "forbidden"),
    [
        (ENVIRONMENT, [METRICS, METADATA, API_SERVER]),
        ({"KUBERNETES_SERVICE_HOST": "fd00::1"}, [METRICS, METADATA, ("fd00::1", 443)]),
        ({}, [METRICS, METADATA]),
        ({"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "tcp://x"}, [METRICS, METADATA]),
    ],
)
def test_what_is_probed(environment: dict[str, str], forbidden: list[tuple[str, int]]) -> None:
    found = probes("proxy", environment)
    assert (found.control.host, found.control.port) == PROXY
    assert [(each.host, each.port) for each in found.forbidden] == forbidden


class Network:
    """Says, by the number of the round, who answers; the others never do, or refuse."""

    def __init__(self, answers: Callable[[int, tuple[str, int]], bool], *, refuses: bool = False) -> None:
        self.answers = answers
        self.refuses = refuses
        self.attempts: dict[tuple[str, int], int] = {}

    async def connect(self, host: str, port: int) -> None:
        target = (host, port)
        number = self.attempts[target] = self.attempts.get(target, 0) + 1
        if self.answers(number, target):
            return
        if self.refuses:
            raise ConnectionRefusedError
        await asyncio.sleep(3600)


class Clock:
    """Goes on by itself, and far while somebody pauses."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    async def pause(self, seconds: float) -> None:
        self.now += 1.0


async def isolated(network: Network) -> tuple[bool, list[str]]:
    clock, reports = Clock(), list[str]()
    result = await asyncio.wait_for(
        wait_for_isolation(
            probes("proxy", ENVIRONMENT),
            reports.append,
            connect=network.connect,
            clock=clock,
            pause=clock.pause,
        ),
        10,
    )
    return result, reports


@pytest.fixture(autouse=True)
def little_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isolation_test, "_LEAST_SILENCE_SECONDS", 0.02)
    monkeypatch.setattr(isolation_test, "_CONTROL_SECONDS", 0.05)


@pytest.mark.parametrize("refuses", [False, True])
async def test_a_policy_that_holds_is_seen_in_two_rounds(refuses: bool) -> None:
    network = Network(lambda number, target: target == PROXY, refuses=refuses)
    assert await isolated(network) == (True, ["the network is being tested"])
    assert network.attempts == dict.fromkeys([PROXY, METRICS, METADATA, API_SERVER], 2)


async def test_a_policy_that_comes_late_is_waited_for() -> None:
    network = Network(lambda number, target: target == PROXY or number <= 5)
    result, reports = await isolated(network)
    assert result
    assert "API server" in reports[0]
    assert network.attempts[PROXY] == 7


@pytest.mark.parametrize("leak", [METRICS, METADATA, API_SERVER])
async def test_one_leak_that_stays_is_enough(leak: tuple[str, int]) -> None:
    network = Network(lambda number, target: target in (PROXY, leak))
    assert not (await isolated(network))[0]


async def test_a_leak_that_comes_and_goes_is_no_isolation() -> None:
    network = Network(lambda number, target: target == PROXY or (target == API_SERVER and number % 2 == 0))
    result, _ = await asyncio.wait_for(isolated(network), 10)
    assert not result


async def test_a_proxy_that_is_away_is_waited_for() -> None:
    network = Network(lambda number, target: target == PROXY and number > 20, refuses=True)
    result, reports = await isolated(network)
    assert result
    assert reports[0] == "the proxy cannot be reached"


async def test_a_real_connection_is_made_and_closed() -> None:
    seen = asyncio.Event()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()
        seen.set()

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    await isolation_test._connect("127.0.0.1", server.sockets[0].getsockname()[1])
    await asyncio.wait_for(seen.wait(), 5)
    server.close()
