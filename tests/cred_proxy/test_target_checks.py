"""What is asked of each target, what its answer means, and when it is asked again."""

import asyncio
import base64
import json
from collections.abc import Callable
from itertools import pairwise

import pytest

from cli_mcp.api.endpoint import Endpoint
from cli_mcp.kubeconfig import KubernetesServer
from cli_mcp.path_report import TargetKind, TargetState
from cred_proxy.refusal import Reason, Refusal
from cred_proxy.request import Forward
from cred_proxy.routes import AllowlistRoute, KubernetesRoute, Route
from cred_proxy.target_checks import AGAIN_SECONDS, CHECK_SECONDS, TargetChecks, asking, question, state_of
from tests.cred_proxy.harness import TOKEN, Harness, eventually
from tests.cred_proxy.origin import Origin, PrivateAuthority, answer

FILES = AllowlistRoute(Endpoint("files.example.com", 443))
CLUSTER = KubernetesRoute(KubernetesServer(Endpoint("api.example.com", 6443), "/clusters/a", "secret"))


def test_an_api_server_is_asked_who_the_credential_is() -> None:
    asked = question(CLUSTER)
    assert (asked.forward.method, asked.forward.path) == (
        "POST",
        "/clusters/a/apis/authentication.k8s.io/v1/selfsubjectreviews",
    )
    assert ("Authorization", "Bearer secret") in asked.forward.fields
    assert json.loads(asked.body)["kind"] == "SelfSubjectReview"


def test_another_host_gets_no_credential_and_nothing_to_do() -> None:
    asked = question(FILES)
    assert (asked.forward.method, asked.forward.path, asked.body) == ("HEAD", "/", b"")
    assert not [name for name, _ in asked.forward.fields if "auth" in name.lower()]


@pytest.mark.parametrize(
    ("route", "answered", "problem", "credential_refused"),
    [
        (CLUSTER, 201, "", False),
        (CLUSTER, 403, "", False),
        (CLUSTER, 404, "", False),
        (CLUSTER, 401, "api.example.com:6443 refuses the token of the kubeconfig (401)", True),
        (CLUSTER, 503, "api.example.com:6443 answers 503", False),
        (FILES, 200, "", False),
        (FILES, 401, "", False),
        (FILES, 503, "", False),
        *(
            (route, Refusal(reason, "X"), f"{Refusal(reason, 'X').answer.phrase}: X", False)
            for route in (CLUSTER, FILES)
            for reason in (
                Reason.UNRESOLVED,
                Reason.UNREACHABLE,
                Reason.UNTRUSTED,
                Reason.UPSTREAM_TIMEOUT,
                Reason.UPSTREAM_BROKEN,
                Reason.UPSTREAM_PROXY,
            )
        ),
    ],
)
def test_what_an_answer_says(
    route: Route, answered: int | Refusal, problem: str, credential_refused: bool
) -> None:
    state = state_of(route, answered)
    assert (state.endpoint, state.problem) == (str(route.endpoint), problem)
    assert state.credential_refused is credential_refused
    assert bool(state.remedy) == bool(problem)
    assert state.kind is (TargetKind.KUBERNETES if route is CLUSTER else TargetKind.ALLOWLIST)


class Clock:
    """Sleeping takes no time; after `until` seconds nobody wakes up any more."""

    def __init__(self, until: float) -> None:
        self.now, self.until = 0.0, until
        self.over = asyncio.Event()

    async def sleep(self, seconds: float) -> None:
        self.now += seconds
        if self.now > self.until:
            self.over.set()
            await asyncio.Event().wait()
        await asyncio.sleep(0)


async def asked_at(
    answers: Callable[[float], int | Refusal], routes: Callable[[float], tuple[Route, ...]], until: float
) -> tuple[list[float], tuple[TargetState, ...]]:
    clock, times = Clock(until), list[float]()

    async def ask(route: Route, forward: Forward, body: bytes) -> int | Refusal:
        times.append(clock.now)
        return answers(clock.now)

    checks = TargetChecks(lambda: routes(clock.now), ask, clock.sleep)
    running = asyncio.create_task(checks.run())
    await clock.over.wait()
    running.cancel()
    return times, checks.states


async def test_what_works_is_asked_once_a_minute() -> None:
    times, states = await asked_at(lambda now: 200, lambda now: (FILES,), 2.5 * CHECK_SECONDS)
    assert times == [0, CHECK_SECONDS, 2 * CHECK_SECONDS]
    assert [state.problem for state in states] == [""]


async def test_one_failure_does_not_count() -> None:
    down = Refusal(Reason.UNREACHABLE, "X")
    times, states = await asked_at(lambda now: 200 if now else down, lambda now: (FILES,), CHECK_SECONDS / 2)
    assert times == [0, AGAIN_SECONDS]
    assert [state.problem for state in states] == [""]


async def test_what_fails_is_asked_again_and_again_so_that_its_recovery_is_soon_known() -> None:
    down = Refusal(Reason.UNREACHABLE, "X")
    times, states = await asked_at(lambda now: 200 if now > 31 else down, lambda now: (FILES,), CHECK_SECONDS)
    assert [state.problem for state in states] == [""]
    assert times[:3] == [0, AGAIN_SECONDS, 2 * AGAIN_SECONDS]
    assert max(later - earlier for earlier, later in pairwise(times)) <= AGAIN_SECONDS


async def test_new_routes_are_asked_at_once() -> None:
    def routes(now: float) -> tuple[Route, ...]:
        return (FILES,) if now < AGAIN_SECONDS else (FILES, CLUSTER)

    times, states = await asked_at(lambda now: 200, routes, CHECK_SECONDS / 2)
    assert times == [0, AGAIN_SECONDS, AGAIN_SECONDS]
    assert len(states) == 2


async def states_of(harness: Harness) -> dict[TargetKind, TargetState]:
    """What the proxy of `harness` finds of its targets, over real connections."""
    checks = TargetChecks(
        lambda: tuple(harness.proxy.routing.table.values()),
        asking(harness.proxy.own_upstream, lambda: harness.proxy.routing.upstream),
        lambda seconds: asyncio.sleep(0),
    )
    running = asyncio.create_task(checks.run())
    await eventually(lambda: bool(checks.states))
    running.cancel()
    return {state.kind: state for state in checks.states}


async def test_real_targets_answer_and_the_credential_reaches_the_api_server_alone(
    harness: Harness, origin: Origin, kubernetes: Origin
) -> None:
    kubernetes.respond = answer(b"HTTP/1.1 201 Created\r\nContent-Length: 0\r\n\r\n")
    origin.respond = answer(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n")
    assert [state.problem for state in (await states_of(harness)).values()] == ["", ""]
    assert kubernetes.requests[0].values("authorization") == [f"Bearer {TOKEN}"]
    assert origin.requests[0].values("authorization") == []


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        ("token", "refuses the token of the kubeconfig (401)"),
        ("authority", "upstream certificate not trusted"),
        ("gone", "upstream not reachable"),
    ],
)
async def test_a_real_failure_is_told_by_its_hop(
    harness: Harness, kubernetes: Origin, origin: Origin, broken: str, says: str
) -> None:
    origin.respond = answer(b"HTTP/1.1 204 No Content\r\n\r\n")
    match broken:
        case "token":
            kubernetes.respond = answer(b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n")
        case "authority":
            other = base64.b64encode(PrivateAuthority().pem.encode()).decode()
            harness.write_kubeconfig(TOKEN, **{"certificate-authority-data": other})
            harness.proxy.reload()
        case _:
            await kubernetes.stop()
    found = await states_of(harness)
    assert says in found[TargetKind.KUBERNETES].problem
    assert found[TargetKind.KUBERNETES].remedy
    assert TOKEN not in found[TargetKind.KUBERNETES].model_dump_json()
    assert found[TargetKind.ALLOWLIST].problem == ""
