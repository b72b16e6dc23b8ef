"""Sessions whose files outlive their pod."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from cli_mcp import names
from mcp_server.backend import SessionState
from tests.hooks.world import NAMESPACE
from tests.mcp_server.cluster.faults import before, faulty_cluster
from tests.mcp_server.cluster.harness import call, cluster, eventually, pod_of, session

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from mcp_server.cluster.sessions import PodSessions
    from tests.mcp_server.cluster.harness import Cluster

PERSISTENT = {"idleTimeout": "60s", "workspace": {"persistent": True, "retain": "1h"}}


@pytest.fixture
async def demo() -> AsyncIterator[Cluster]:
    async with cluster(pool=2, **PERSISTENT) as it:
        yield it
        assert it.agents.broken_rules == []


@pytest.fixture
async def server(demo: Cluster) -> PodSessions:
    return await demo.replica()


def workspaces(demo: Cluster, session_id: str = "s") -> list[str]:
    return [
        claim["metadata"]["name"]
        for claim in demo.world.api.objects("persistentvolumeclaims", NAMESPACE)
        if claim["metadata"]["labels"].get(names.LABEL_SESSION_ID) == session_id
    ]


def mounted(demo: Cluster, uid: str) -> str:
    [pod] = [it for it in demo.world.pods().values() if it["metadata"]["uid"] == uid]
    [volume] = [it for it in pod["spec"]["volumes"] if it["name"] == "workspace"]
    return str(volume["persistentVolumeClaim"]["claimName"])


async def expire(demo: Cluster, server: PodSessions) -> None:
    demo.world.clock.advance(200)
    demo.world.run()
    await eventually(lambda: server.session_count() == 0)


async def test_a_warm_pod_is_claimed_with_its_workspace(demo: Cluster, server: PodSessions) -> None:
    ran = await call(server, session("s"))
    assert ran.session is SessionState.NEW
    assert workspaces(demo) == [mounted(demo, pod_of(ran))]


async def test_a_pod_that_is_made_has_a_workspace_of_its_own(demo: Cluster, server: PodSessions) -> None:
    for number in range(2):
        await call(server, session(f"warm{number}"))
    async with demo.starting_pods():
        ran = await call(server, session("s"))
    assert ran.session is SessionState.NEW
    [workspace] = workspaces(demo)
    assert workspace == mounted(demo, pod_of(ran))
    assert "-s-" in workspace
    mark = demo.mark()
    demo.world.poke()
    demo.world.controller.run()
    assert [line for line in demo.world.writes_since(mark) if workspace in line] == []


async def test_a_session_is_resumed_with_its_files_after_it_expired(
    demo: Cluster, server: PodSessions
) -> None:
    first = await call(server, session("s"))
    [workspace] = workspaces(demo)
    await expire(demo, server)
    async with demo.starting_pods():
        second = await call(server, session("s"))
        third = await call(await demo.replica(), session("s"))
    assert (second.session, third.session) == (SessionState.RESUMED, SessionState.CONTINUED)
    assert pod_of(first) != pod_of(second) == pod_of(third)
    assert mounted(demo, pod_of(second)) == workspace
    await expire(demo, server)
    async with demo.starting_pods():
        again = await call(server, session("s"))
    assert again.session is SessionState.RESUMED
    assert mounted(demo, pod_of(again)) == workspace


async def test_a_workspace_is_not_given_to_another_owner_of_the_same_session_id(
    demo: Cluster, server: PodSessions
) -> None:
    await call(server, session("s"))
    [workspace] = workspaces(demo)
    await expire(demo, server)
    ran = await call(server, session("s", owner="another"))
    assert ran.session is SessionState.NEW
    assert mounted(demo, pod_of(ran)) != workspace


async def test_a_workspace_that_is_used_is_stamped_and_goes_a_while_after(
    demo: Cluster, server: PodSessions
) -> None:
    await call(server, session("s"))
    for _ in range(3):
        demo.world.clock.advance(30)
        await call(server, session("s"))
        await asyncio.sleep(0.05)
    await expire(demo, server)
    demo.world.clock.advance(3600 - 240)
    demo.world.poke()
    demo.world.run()
    assert len(workspaces(demo)) == 1, "kept for an hour from its last use on"
    demo.world.clock.advance(600)
    demo.world.poke()
    demo.world.run()
    assert workspaces(demo) == []


@pytest.mark.parametrize(("delete", "left"), [(False, 1), (True, 0)])
async def test_delete_keeps_the_files_unless_it_is_told_to_delete_them(
    demo: Cluster, server: PodSessions, delete: bool, left: int
) -> None:
    await call(server, session("s"))
    await server.end(session("s"), delete_workspace=delete)
    demo.world.run()
    assert len(workspaces(demo)) == left
    async with demo.starting_pods():
        ran = await call(server, session("s"))
    assert ran.session is (SessionState.NEW if delete else SessionState.RESUMED)


async def test_calls_at_two_replicas_resume_one_session_in_one_pod(
    demo: Cluster, server: PodSessions
) -> None:
    other = await demo.replica()
    keys = [session(f"s{number}") for number in range(4)]
    async with demo.starting_pods():
        for _ in range(2):
            ran = await asyncio.gather(*(call(it, key) for key in keys for it in (server, other)))
            for number, key in enumerate(keys):
                assert pod_of(ran[2 * number]) == pod_of(ran[2 * number + 1])
                assert len(workspaces(demo, key.id)) == 1
            await expire(demo, server)


def patch(demo: Cluster, kind: str, name: str, **labels: str) -> None:
    """What the hooks, or whoever else, does in between."""
    demo.world.api.patch(kind, NAMESPACE, name, {"metadata": {"labels": labels}})


async def test_a_workspace_that_was_taken_and_never_used_is_used_by_the_next_call_as_a_new_one() -> None:
    async with faulty_cluster(pool=1, **PERSISTENT) as (demo, faults, url), demo.starting_pods():
        [pool_pod] = demo.world.pods()
        retiring = {names.LABEL_STATE: names.STATE_RETIRING}
        faults.refuse = before("PATCH", "pods/", lambda: patch(demo, "pods", pool_pod, **retiring))
        server = await demo.replica(url)
        ran = await call(server, session("s"))
        assert mounted(demo, pod_of(ran)) == pool_pod
        assert workspaces(demo) == [pool_pod]
        assert ran.session is SessionState.NEW
        await expire(demo, server)
        assert (await call(server, session("s"))).session is SessionState.RESUMED


async def test_a_claim_that_breaks_off_after_the_workspace_goes_on_with_its_pod() -> None:
    async with faulty_cluster(pool=2, **PERSISTENT) as (demo, faults, url):
        async with demo.temporary_replica(url) as dying:
            await eventually(lambda: dying.warm_count() == 2)
            faults.refuse = before("PATCH", "pods/", faults.silent.set)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(call(dying, session("s")), 1)
        [workspace] = workspaces(demo)
        demo.world.run()
        ran = await call(await demo.replica(), session("s"))
        assert mounted(demo, pod_of(ran)) == workspace
        assert [pod["metadata"]["name"] for pod in demo.pods_of("s")] == [workspace]
        assert ran.session is SessionState.NEW


async def test_a_workspace_that_begins_to_retire_meanwhile_is_not_given_a_pod() -> None:
    async with faulty_cluster(pool=0, **PERSISTENT) as (demo, faults, url), demo.starting_pods():
        server = await demo.replica(url)
        await call(server, session("s"))
        [workspace] = workspaces(demo)
        await expire(demo, server)
        kind, retiring = "persistentvolumeclaims", {names.LABEL_STATE: names.STATE_RETIRING}
        faults.refuse = before("PATCH", kind, lambda: patch(demo, kind, workspace, **retiring))
        ran = await call(server, session("s"))
        assert mounted(demo, pod_of(ran)) != workspace
        assert ran.session is SessionState.NEW


async def test_two_replicas_that_are_the_first_to_run_something_both_find_the_workspace_new(
    demo: Cluster, server: PodSessions
) -> None:
    other = await demo.replica()
    ran = await asyncio.gather(*(call(it, session("s")) for it in (server, other)))
    assert SessionState.RESUMED not in {it.session for it in ran}
