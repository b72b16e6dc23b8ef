"""What goes wrong around the server, and that no session does: lost answers, silence, death, expiry."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

import pytest
from aiohttp import web

from cli_mcp import names
from cli_mcp.execution import ExecutionError, SandboxUnavailable
from mcp_server.backend import SessionState
from mcp_server.cluster import search
from tests.mcp_server.cluster.faults import faulty_cluster
from tests.mcp_server.cluster.harness import call, cluster, eventually, pod_of, session

if TYPE_CHECKING:
    from tests.mcp_server.cluster.harness import Cluster


def is_write(request: web.Request) -> bool:
    return request.method in ("PATCH", "POST", "DELETE")


async def test_writes_whose_answers_are_lost_make_no_second_pod() -> None:
    async with faulty_cluster(pool=3) as (demo, faults, url), demo.starting_pods():
        chance = random.Random(7)
        faults.lose = lambda request: is_write(request) and chance.random() < 0.4
        replicas = [await demo.replica(url) for _ in range(2)]
        keys = [session(f"s{number}") for number in range(12)]
        ran = await asyncio.gather(*(call(replica, key) for key in keys for replica in replicas))
        for number, key in enumerate(keys):
            assert pod_of(ran[2 * number]) == pod_of(ran[2 * number + 1])
            assert demo.state_of(key.id).count(names.STATE_ACTIVE) == 1
        assert faults.lost > 10
        assert demo.agents.broken_rules == []


@pytest.mark.parametrize("seed", range(2))
async def test_lives_of_sessions_among_crashes_expiries_and_lost_answers(seed: int) -> None:
    """Replicas die and come back, answers get lost, the hooks expire what is idle and refill the pool."""
    chance = random.Random(seed)
    async with faulty_cluster(pool=3, idleTimeout="120s", maxLifetime="20m") as (demo, faults, url):
        faults.lose = lambda request: is_write(request) and chance.random() < 0.1
        keys = [session(f"s{number}") for number in range(6)]

        async def use() -> None:
            async with demo.temporary_replica(url) as replica:
                for _ in range(4):
                    key = chance.choice(keys)
                    try:
                        ran = await asyncio.wait_for(call(replica, key), chance.choice((0.05, 5, 5)))
                    except (ExecutionError, TimeoutError):
                        continue
                    runs = sum(run[:2] == (pod_of(ran), key.id) for run in demo.agents.runs)
                    assert ran.session is SessionState.NEW or runs > 1, f"{key.id} has nothing to continue"

        for _ in range(8):
            async with demo.starting_pods():
                await asyncio.gather(*(use() for _ in range(3)))
            for key in keys:
                assert demo.state_of(key.id).count(names.STATE_ACTIVE) <= 1, key
            demo.world.clock.advance(chance.choice((1, 30, 200)))
            demo.world.poke()
            for _ in range(chance.randrange(4)):
                demo.world.controller.deliver()
                demo.world.controller.sync_next()
        demo.world.clock.advance(2000)
        demo.world.run()
        left = [
            name
            for name in demo.world.pods()
            if "-s-" in name or demo.world.pods()[name]["metadata"]["labels"].get(names.LABEL_SESSION_ID)
        ]
        assert left == [], "pods that no session has"
        assert demo.agents.broken_rules == []


class TestSilence:
    async def test_a_known_session_is_served_while_the_api_server_is_frozen(self) -> None:
        async with faulty_cluster() as (demo, faults, url):
            server = await demo.replica(url)
            await call(server, session("s"))
            faults.silent.set()
            ran = await asyncio.wait_for(call(server, session("s")), 2)
            assert ran.session is SessionState.CONTINUED

    async def test_a_new_session_is_refused_in_time_while_the_api_server_is_frozen(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(search, "FIND_SECONDS", 0.5)
        async with faulty_cluster() as (demo, faults, url):
            server = await demo.replica(url)
            faults.silent.set()
            with pytest.raises(SandboxUnavailable, match=r"Not run: no sandbox could be had within"):
                await asyncio.wait_for(call(server, session("s")), 5)
            faults.silent.clear()

    async def test_nothing_is_claimed_or_made_on_stale_news(self) -> None:
        async with faulty_cluster() as (demo, _, url):
            server = await demo.replica(url, stale_seconds=0.2)
            await call(server, session("s"))
            await asyncio.sleep(0.3)  # no event comes, and the watch has not ended yet
            mark = demo.mark()
            with pytest.raises(SandboxUnavailable, match="has been silent for too long"):
                await call(server, session("new"))
            assert "patch pods" not in demo.requests_since(mark)
            assert (await call(server, session("s"))).session is SessionState.CONTINUED

    async def test_too_many_requests_are_answered_by_waiting_as_long_as_asked(self) -> None:
        async with faulty_cluster() as (demo, faults, url):
            server = await demo.replica(url)
            refusals = iter([True, True])

            def refuse(request: web.Request) -> web.Response | None:
                if request.method == "PATCH" and next(refusals, False):
                    status = {"kind": "Status", "reason": "TooManyRequests", "message": "slow down"}
                    return web.json_response(status, status=429, headers={"Retry-After": "1"})
                return None

            faults.refuse = refuse
            started = asyncio.get_running_loop().time()
            await call(server, session("s"))
            assert asyncio.get_running_loop().time() - started >= 2


class TestActivity:
    async def test_a_command_of_five_minutes_outlives_an_idle_timeout_of_one(self) -> None:
        async with cluster(pool=1, idleTimeout="1m") as demo:
            server = await demo.replica()
            running = asyncio.create_task(call(server, session("s"), "wait"))
            await eventually(lambda: demo.agents.running["wait"] == 1)
            for _ in range(5):
                demo.world.clock.advance(60)
                await eventually(lambda: self._idle_seconds(demo) < 10)
                demo.world.poke()
                demo.world.controller.run()
                assert demo.state_of("s") == [names.STATE_ACTIVE]
            demo.agents.released.set()
            await running
            demo.world.clock.advance(130)
            demo.world.poke()
            demo.world.controller.run()
            assert demo.state_of("s") != [names.STATE_ACTIVE], "an idle session stays for ever"

    async def test_a_pod_in_use_is_stamped_at_most_every_sixth_of_the_idle_timeout(self) -> None:
        async with cluster(pool=1, idleTimeout="60s") as demo:
            server = await demo.replica()
            await call(server, session("s"))
            mark = demo.mark()
            for _ in range(20):
                demo.world.clock.advance(2)
                await call(server, session("s"))
                await asyncio.sleep(0.02)
            stamps = demo.requests_since(mark)
            assert set(stamps) == {"patch pods"}
            assert len(stamps) == 4

    async def test_a_session_that_may_be_expiring_is_renewed_before_its_command_runs(self) -> None:
        async with cluster(pool=1, idleTimeout="60s") as demo:
            server = await demo.replica()
            first = await call(server, session("s"))
            demo.world.clock.advance(90)
            mark = demo.mark()
            second = await call(server, session("s"))
            assert pod_of(first) == pod_of(second)
            assert demo.requests_since(mark)[:2] == ["list pods", "patch pods"]

    async def test_a_session_that_expired_unseen_begins_anew(self) -> None:
        async with faulty_cluster(pool=2, idleTimeout="60s") as (demo, _, url):
            server = await demo.replica(url)
            first = await call(server, session("s"))
            demo.world.clock.advance(200)
            demo.world.run()
            second = await call(server, session("s"))
            assert second.session is SessionState.NEW
            assert pod_of(first) != pod_of(second)

    async def test_a_held_session_is_stamped_although_no_command_runs(self) -> None:
        async with cluster(pool=1, idleTimeout="60s") as demo:
            server = await demo.replica()
            await call(server, session("s"))
            with server.hold(session("s")):
                for _ in range(4):
                    await asyncio.sleep(0.05)
                    demo.world.clock.advance(30)
                await asyncio.sleep(1.2)
                assert self._idle_seconds(demo) <= 60

    def _idle_seconds(self, demo: Cluster) -> float:
        from mcp_server.cluster.pods import read_pod

        [pod] = demo.pods_of("s")
        stamp = read_pod(pod).last_activity
        assert stamp is not None
        return (demo.world.clock() - stamp).total_seconds()


async def test_a_pool_at_rest_costs_no_writes() -> None:
    async with cluster(pool=3) as demo:
        for _ in range(2):
            await demo.replica()
        mark = demo.mark()
        await asyncio.sleep(0.5)
        assert demo.requests_since(mark) == []
