"""List and watch against an API that says what the test wants."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from mcp_server.cluster.kubernetes import Listing, Refused, Resource, TooOld, Unanswered
from mcp_server.cluster.watch import Watch
from tests.mcp_server.cluster.harness import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator

    from mcp_server.cluster.kubernetes import Object

PODS = Resource.core("default", "pods")


def item(name: str, revision: int) -> Object:
    return {"metadata": {"name": name, "resourceVersion": str(revision)}}


class ScriptedApi:
    """`watches` holds what one watch after the other does: events, and an error or the end."""

    def __init__(self, *watches: list[tuple[str, Object] | Exception]) -> None:
        self.watches = deque(watches)
        self.revisions: list[str] = []
        self.lists: deque[Listing | Exception] = deque([Listing([item("a", 1)], "1")])
        self.listed = 0

    async def list(self, resource: Resource, labels: str = "", *, fields: str = "") -> Listing:
        self.listed += 1
        answer = self.lists[0] if len(self.lists) == 1 else self.lists.popleft()
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def watch(
        self, resource: Resource, revision: str, **options: Any
    ) -> AsyncGenerator[tuple[str, Object], None]:
        self.revisions.append(revision)
        if not self.watches:
            await asyncio.Event().wait()
        for event in self.watches.popleft():
            if isinstance(event, Exception):
                raise event
            yield event


class Audience:
    def __init__(self) -> None:
        self.heard: list[str] = []

    def listed(self, items: list[Object], revision: str) -> None:
        self.heard.append(f"listed {','.join(it['metadata']['name'] for it in items)}")

    def changed(self, event: str, it: Object) -> None:
        self.heard.append(f"{event} {it['metadata']['name']}")


@asynccontextmanager
async def watching(api: ScriptedApi) -> AsyncIterator[tuple[Watch, Audience, list[str]]]:
    audience, recovered = Audience(), list[str]()
    watch = Watch(api, PODS, audience, on_recovery=lambda: recovered.append("recovered"))  # type: ignore[arg-type]
    task = asyncio.create_task(watch.run())
    try:
        yield watch, audience, recovered
    finally:
        task.cancel()


async def test_a_watch_goes_on_from_the_last_event_or_bookmark() -> None:
    api = ScriptedApi(
        [("", {}), ("ADDED", item("b", 5))],
        [("", {}), ("BOOKMARK", item("", 9))],
    )
    async with watching(api) as (_, audience, recovered):
        await eventually(lambda: api.revisions == ["1", "5", "9"])
        assert audience.heard == ["listed a", "ADDED b"]
        assert recovered == []
        assert api.listed == 1


async def test_a_broken_watch_goes_on_and_says_when_news_came_again() -> None:
    api = ScriptedApi([("", {}), ("ADDED", item("b", 5)), Unanswered("broken")], [("", {})])
    async with watching(api) as (_, audience, recovered):
        await eventually(lambda: api.revisions == ["1", "5", "5"])
        assert recovered == ["recovered"]
        assert audience.heard == ["listed a", "ADDED b"]


async def test_a_forgotten_revision_means_listing_again() -> None:
    api = ScriptedApi([TooOld("too old")])
    api.lists = deque([Listing([item("a", 1)], "1"), Listing([item("c", 20)], "20")])
    async with watching(api) as (_, audience, _recovered):
        await eventually(lambda: api.revisions == ["1", "20"])
        assert audience.heard == ["listed a", "listed c"]


async def test_failures_are_tried_again_later_each_time() -> None:
    api = ScriptedApi()
    api.lists = deque([Unanswered("down")] * 4 + [Listing([], "7")])
    async with watching(api) as (watch, audience, recovered):
        assert not watch.synced
        assert watch.stale_seconds() == float("inf")
        started = asyncio.get_running_loop().time()
        await eventually(lambda: watch.synced)
        assert asyncio.get_running_loop().time() - started > 0.3
        assert audience.heard == ["listed "]
        assert recovered == ["recovered"]


async def test_retry_after_is_kept_to() -> None:
    api = ScriptedApi()
    api.lists = deque([Refused(429, "TooManyRequests", "slow down", 0.7), Listing([], "7")])
    async with watching(api) as (watch, _, _recovered):
        await asyncio.sleep(0.5)
        assert api.listed == 1
        await eventually(lambda: watch.synced)


async def test_news_that_does_not_come_makes_a_watch_stale() -> None:
    api = ScriptedApi([("", {})])
    async with watching(api) as (watch, _, _recovered):
        await eventually(lambda: len(api.revisions) == 2)
        await asyncio.sleep(0.2)
        assert watch.stale_seconds() == pytest.approx(0.2, abs=0.15)
