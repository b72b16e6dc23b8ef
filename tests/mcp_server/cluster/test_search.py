"""How often and how long a search is tried, and what its caller is told when it is given up."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from cli_mcp.execution import SandboxUnavailable
from mcp_server.cluster import search as search_module
from mcp_server.cluster.kubernetes import KubernetesError, Refused, Unanswered
from mcp_server.cluster.search import Search
from tests.mcp_server.cluster.harness import session

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

BUSY = Refused(429, "TooManyRequests", "too many requests", retry_after_seconds=0.1)
DOWN = Unanswered("no answer")


def rounds(*results: KubernetesError | str | None) -> Callable[[Search], Awaitable[str | None]]:
    """The last of them again and again."""
    left = list(results)

    async def step(search: Search) -> str | None:
        result = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(result, KubernetesError):
            raise result
        return result

    return step


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search_module, "FIND_SECONDS", 0.3)


@pytest.mark.parametrize("results", [("found",), (None, None, "found"), (DOWN, None, BUSY, "found")])
async def test_it_goes_on_over_lost_rounds_and_errors_that_may_pass(
    results: tuple[KubernetesError | str | None, ...],
) -> None:
    search = Search(session("s"))
    assert await search.until_done(rounds(*results), "Not run") == "found"
    assert search.rounds == len(results)


async def test_a_refusal_that_will_not_pass_ends_it_with_its_cause() -> None:
    step = rounds(None, Refused(403, "Forbidden", "pods is forbidden: exceeded quota"), "never")
    with pytest.raises(SandboxUnavailable, match=r"Not run: Kubernetes refused: .*exceeded quota"):
        await Search(session("s")).until_done(step, "Not run")


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize(
    ("result", "cause"),
    [(None, "other callers got in first"), (DOWN, "no answer"), (BUSY, "too many requests")],
)
async def test_out_of_time_it_says_what_stood_in_the_way(result: KubernetesError | None, cause: str) -> None:
    with pytest.raises(SandboxUnavailable, match=f"Not run within .*{cause}.*Try again"):
        await Search(session("s")).until_done(rounds(result), "Not run")


@pytest.mark.usefixtures("short")
async def test_a_round_that_hangs_is_out_of_time_as_well() -> None:
    async def hanging(search: Search) -> str | None:
        await asyncio.Event().wait()
        return None

    with pytest.raises(SandboxUnavailable, match="Not run within"):
        await Search(session("s")).until_done(hanging, "Not run")


async def test_pauses_grow_and_are_at_least_what_the_api_server_asks_for() -> None:
    search = Search(session("s"), pause_seconds=0.01)
    await search.pause()
    assert search.pause_seconds == 0.02
    search.last_error = BUSY
    started = asyncio.get_running_loop().time()
    await search.pause()
    assert asyncio.get_running_loop().time() - started >= 0.1
