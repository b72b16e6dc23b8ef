"""A replica whose watch is behind: it may claim what it should not have, and never gives it a command."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

import pytest

from cli_mcp import names
from cli_mcp.execution import NotSessionOwner, SandboxUnavailable
from mcp_server.backend import SessionKey, SessionState
from mcp_server.cluster.claiming import choose_warm
from tests.hooks.world import ALLOWLIST
from tests.mcp_server.cluster.harness import call, cluster, pod_of, session

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from mcp_server.cluster.pods import SandboxPod
    from mcp_server.cluster.sessions import PodSessions
    from tests.mcp_server.cluster.harness import Cluster


@pytest.fixture
async def demo() -> AsyncIterator[Cluster]:
    async with cluster(pool=3) as made:
        yield made


async def replica_behind(demo: Cluster) -> PodSessions:
    """One whose watch shows nothing new any more."""
    replica = await demo.replica()
    replica._cache.watched = replica._cache.deleted = lambda pod: None  # type: ignore[method-assign]
    return replica


async def test_it_loses_the_pod_that_it_still_takes_for_warm(demo: Cluster) -> None:
    behind = await replica_behind(demo)
    first = await call(await demo.replica(), session("s"))
    second = await call(behind, session("s"))
    assert pod_of(first) == pod_of(second)
    assert second.session is SessionState.CONTINUED
    assert demo.state_of("s") == [names.STATE_ACTIVE]


async def test_it_gives_back_the_second_pod_of_a_session_and_uses_the_first(demo: Cluster) -> None:
    behind, other, key = await with_an_unseen_pod(demo)
    first, second = await call(other, key), await call(behind, key)
    assert pod_of(first) == pod_of(second)
    assert sorted(demo.state_of(key.id)) == [names.STATE_ACTIVE, names.STATE_RETIRING]
    assert demo.agents.broken_rules == []
    assert {uid for uid, *_ in demo.agents.runs} == {pod_of(first)}


async def test_it_lets_nobody_into_the_session_of_somebody_else(demo: Cluster) -> None:
    behind, other, key = await with_an_unseen_pod(demo)
    first = await call(other, key)
    with pytest.raises(NotSessionOwner):
        await call(behind, SessionKey("somebody else", key.id))
    assert demo.state_of(key.id).count(names.STATE_ACTIVE) == 1
    assert [uid for uid, *_ in demo.agents.runs] == [pod_of(first)]


async def with_an_unseen_pod(demo: Cluster) -> tuple[PodSessions, PodSessions, SessionKey]:
    """A replica that is behind, another, and a session for which that one chooses a pod that the first does
    not know of."""
    behind = await replica_behind(demo)
    known = {pod.uid for pod in behind._sessions.warm()}
    demo.world.apply({"proxy": ALLOWLIST, "sandbox": {"warmPoolSize": len(known) + 1}})
    demo.world.run()
    other = await demo.replica()
    warm = other._sessions.warm()
    keys = (session(f"s{number}") for number in count())
    return behind, other, next(key for key in keys if chosen(key, warm) not in known)


def chosen(key: SessionKey, warm: list[SandboxPod]) -> str:
    pod = choose_warm(key, warm)
    assert pod is not None
    return pod.uid


async def test_it_admits_no_session_beyond_the_limit() -> None:
    async with cluster(pool=3, maxSessions=1) as demo:
        behind = await replica_behind(demo)
        await call(await demo.replica(), session("one"))
        with pytest.raises(SandboxUnavailable, match="maxSessions: 1"):
            await call(behind, session("two"))
        assert names.STATE_ACTIVE not in demo.state_of("two")
        assert [it for _, it, _ in demo.agents.runs] == ["one"]
