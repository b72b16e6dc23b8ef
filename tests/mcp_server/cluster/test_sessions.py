"""Sessions of a cluster, from a call to the pod that its command ran in."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from cli_mcp import names
from cli_mcp.execution import ExecutionError, NotSessionOwner, SandboxUnavailable, SessionEnded
from mcp_server.agents.agent import AgentLost, AgentUnreachable
from mcp_server.backend import SessionState
from mcp_server.cluster import commands, search
from tests.hooks.world import NAMESPACE
from tests.kube import controllers
from tests.kube.clock import timestamp
from tests.mcp_server.cluster.harness import call, cluster, eventually, pod_of, session

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from mcp_server.audit import CallRecord
    from mcp_server.cluster.sessions import PodSessions
    from tests.mcp_server.cluster.harness import Cluster


@pytest.fixture
async def demo() -> AsyncIterator[Cluster]:
    async with cluster(pool=2) as it:
        yield it
        assert it.agents.broken_rules == []


@pytest.fixture
async def server(demo: Cluster) -> PodSessions:
    return await demo.replica()


async def test_a_session_gets_a_warm_pod_and_keeps_it(demo: Cluster, server: PodSessions) -> None:
    first = await call(server, session("s"))
    second = await call(server, session("s"))
    assert (first.session, second.session) == (SessionState.NEW, SessionState.CONTINUED)
    assert pod_of(first) == pod_of(second)
    [pod] = demo.pods_of("s")
    metadata = pod["metadata"]
    assert metadata["name"].startswith("cli-mcp-demo-pool-")
    assert metadata["labels"][names.LABEL_STATE] == names.STATE_ACTIVE
    assert metadata["annotations"][names.ANNOTATION_SESSION_OWNER] == "somebody"
    assert metadata["annotations"][names.ANNOTATION_LAST_ACTIVITY] == timestamp(demo.world.clock())


async def test_a_warm_call_makes_no_request_to_the_api(demo: Cluster, server: PodSessions) -> None:
    await call(server, session("s"))
    await eventually(lambda: server.session_count() == 1)
    mark = demo.mark()
    for _ in range(50):
        await call(server, session("s"))
    assert demo.requests_since(mark) == []


async def test_a_claim_of_a_warm_pod_costs_three_requests(demo: Cluster, server: PodSessions) -> None:
    mark = demo.mark()
    await call(server, session("s"))
    assert demo.requests_since(mark) == ["patch pods", "list pods", "patch pods"]


async def test_another_replica_continues_a_session(demo: Cluster, server: PodSessions) -> None:
    other = await demo.replica()
    first = await call(server, session("s"))
    second = await call(other, session("s"))
    assert pod_of(first) == pod_of(second)
    assert second.session is SessionState.CONTINUED


async def test_a_session_belongs_to_its_owner(demo: Cluster, server: PodSessions) -> None:
    await call(server, session("s"))
    other = await demo.replica()
    for replica in (server, other):
        with pytest.raises(NotSessionOwner):
            await call(replica, session("s", owner="somebody else"))
        with pytest.raises(NotSessionOwner):
            await replica.end(session("s", owner="somebody else"), delete_workspace=False)
    assert demo.state_of("s") == [names.STATE_ACTIVE]


async def test_without_a_warm_pod_one_is_made_for_the_session(demo: Cluster, server: PodSessions) -> None:
    async with demo.starting_pods():
        ran = await asyncio.gather(*(call(server, session(f"s{number}")) for number in range(4)))
    assert len({pod_of(it) for it in ran}) == 4
    made = [name for name in demo.world.pods() if "-s-" in name]
    assert len(made) == 2
    demo.world.poke()
    mark = demo.mark()
    demo.world.controller.run()
    writes = [entry for entry in demo.world.writes_since(mark) if "-s-" in entry]
    assert writes == [], "Metacontroller rewrites a pod that the server has made"


async def test_a_pod_that_is_made_is_claimed_from_birth(demo: Cluster, server: PodSessions) -> None:
    for number in range(2):
        await call(server, session(f"warm{number}"))
    waiting = asyncio.create_task(call(server, session("s")))
    await eventually(lambda: demo.state_of("s") == [names.STATE_ACTIVE])
    [pod] = demo.pods_of("s")
    metadata = pod["metadata"]
    uid, name = metadata["labels"]["controller-uid"], metadata["name"]
    assert metadata["annotations"][names.ANNOTATION_LAST_APPLIED] == (
        '{"apiVersion":"v1","kind":"Pod","metadata":{"labels":{"controller-uid":"UID"},"name":"NAME",'
        '"namespace":"default"}}'
    ).replace("UID", uid).replace("NAME", name)
    assert metadata["ownerReferences"][0]["kind"] == names.KIND
    assert not waiting.done()
    demo.start_pods()
    assert (await waiting).session is SessionState.NEW


async def test_two_hundred_sessions_opened_at_two_replicas_each_get_one_pod_each() -> None:
    async with cluster(pool=20) as demo, demo.starting_pods():
        replicas = [await demo.replica() for _ in range(3)]
        keys = [session(f"s{number}") for number in range(200)]
        calls = [
            call(replicas[(number + offset) % 3], key) for number, key in enumerate(keys) for offset in (0, 1)
        ]
        ran = await asyncio.gather(*calls)
        for number, key in enumerate(keys):
            assert pod_of(ran[2 * number]) == pod_of(ran[2 * number + 1]), key
            assert demo.state_of(key.id).count(names.STATE_ACTIVE) == 1, key
        assert len({pod_of(it) for it in ran}) == 200
        assert demo.agents.broken_rules == []


class TestEnding:
    async def test_delete_ends_a_running_command_at_any_replica(
        self, demo: Cluster, server: PodSessions
    ) -> None:
        other = await demo.replica()
        running = asyncio.create_task(call(server, session("s"), "wait"))
        await eventually(lambda: demo.agents.running["wait"] == 1)
        await other.end(session("s"), delete_workspace=False)
        with pytest.raises(SessionEnded, match=r"^session ended by DELETE$"):
            await running
        assert demo.agents.interrupted == ["wait"]

    async def test_delete_retires_before_it_deletes(self, demo: Cluster, server: PodSessions) -> None:
        await call(server, session("s"))
        [before] = demo.pods_of("s")
        mark = demo.mark()
        await server.end(session("s"), delete_workspace=False)
        assert demo.requests_since(mark) == ["list pods", "patch pods", "list pods", "delete pods"]
        [pod] = demo.pods_of("s")
        assert pod["metadata"]["labels"][names.LABEL_STATE] == names.STATE_RETIRING
        assert pod["metadata"]["deletionGracePeriodSeconds"] == 5
        assert pod["metadata"]["uid"] == before["metadata"]["uid"]

    async def test_after_delete_the_session_begins_anew(self, demo: Cluster, server: PodSessions) -> None:
        first = await call(server, session("s"))
        await server.end(session("s"), delete_workspace=False)
        second = await call(server, session("s"))
        assert second.session is SessionState.NEW
        assert pod_of(first) != pod_of(second)

    async def test_a_session_that_nobody_knows_can_be_ended(self, server: PodSessions) -> None:
        await server.end(session("unknown"), delete_workspace=False)


class TestWhatIsLost:
    async def test_a_session_whose_pod_is_gone_begins_anew_and_says_so(
        self, demo: Cluster, server: PodSessions
    ) -> None:
        first = await call(server, session("s"))
        [pod] = demo.pods_of("s")
        demo.world.api.delete("pods", NAMESPACE, pod["metadata"]["name"])
        await eventually(lambda: server.session_count() == 0)
        second = await call(server, session("s"))
        assert second.session is SessionState.NEW
        assert pod_of(first) != pod_of(second)

    async def test_an_evicted_pod_ends_the_running_command_with_the_reason(
        self, demo: Cluster, server: PodSessions
    ) -> None:
        running = asyncio.create_task(call(server, session("s"), "wait"))
        await eventually(lambda: demo.agents.running["wait"] == 1)
        [pod] = demo.pods_of("s")
        status = {**pod["status"], "phase": "Failed", "reason": "Evicted"}
        demo.world.api.update({**pod, "status": status}, "status")
        with pytest.raises(SessionEnded, match="Evicted"):
            await running
        assert (await call(server, session("s"))).session is SessionState.NEW
        assert sorted(demo.state_of("s")) == [names.STATE_ACTIVE, names.STATE_RETIRING]

    async def test_a_first_call_that_died_with_its_replica_leaves_the_session_a_new_one(
        self, demo: Cluster, server: PodSessions
    ) -> None:
        other = await demo.replica()
        running = asyncio.create_task(call(server, session("s"), "wait"))
        await eventually(lambda: demo.agents.running["wait"] == 1)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert (await call(other, session("s"))).session is SessionState.NEW

    async def test_a_first_command_that_cannot_have_run_does_not_begin_the_session(
        self, demo: Cluster, server: PodSessions
    ) -> None:
        demo.agents.fail_with(AgentUnreachable("refused"), once=True)
        assert (await call(server, session("s"))).session is SessionState.NEW
        assert (await call(server, session("s"))).session is SessionState.CONTINUED

    async def test_of_first_calls_at_the_same_time_one_is_new(
        self, demo: Cluster, server: PodSessions
    ) -> None:
        results = await asyncio.gather(*(call(server, session("s")) for _ in range(3)))
        assert sorted(it.session for it in results) == ["continued", "continued", "new"]

    async def test_a_claim_that_a_replica_left_behind_is_finished_by_the_next_call(
        self, demo: Cluster, server: PodSessions
    ) -> None:
        name = next(iter(demo.world.pods()))
        demo.world.claim(name, "s")
        labels = {names.LABEL_STATE: names.STATE_CLAIMING}
        annotations = {names.ANNOTATION_SESSION_OWNER: "somebody"}
        demo.world.api.patch(
            "pods", NAMESPACE, name, {"metadata": {"labels": labels, "annotations": annotations}}
        )
        await eventually(lambda: server.warm_count() == 1)
        assert (await call(server, session("s"))).session is SessionState.NEW
        assert [pod["metadata"]["name"] for pod in demo.pods_of("s")] == [name]

    async def test_a_container_that_ran_out_of_memory_is_named_in_the_next_result(
        self, demo: Cluster, server: PodSessions
    ) -> None:
        await call(server, session("s"))
        [pod] = demo.pods_of("s")
        killed = {"exitCode": 137, "reason": "OOMKilled", "finishedAt": "2026-01-01T00:00:02Z"}
        container = {
            "name": "sandbox",
            "restartCount": 1,
            "state": {"running": {}},
            "lastState": {"terminated": killed},
        }
        with_restart = {**pod["status"], "containerStatuses": [container]}
        asyncio.get_running_loop().call_later(
            0.1, demo.world.api.update, {**pod, "status": with_restart}, "status"
        )
        demo.agents.fail_with(AgentLost("the connection broke"), once=True)
        with pytest.raises(ExecutionError, match=r"container ended out of memory \(OOMKilled"):
            await call(server, session("s"))
        told = (await call(server, session("s"), "in a new shell")).outcome.notes
        [note] = told
        assert "out of memory (OOMKilled" in note
        assert "2026-01-01T00:00:02Z" in note
        assert (await call(server, session("s"), "in a new shell")).outcome.notes == ()


class TestAgents:
    async def test_an_agent_that_cannot_be_reached_is_asked_again_after_a_look_at_its_pod(
        self, demo: Cluster, server: PodSessions
    ) -> None:
        await call(server, session("s"))
        demo.agents.fail_with(AgentUnreachable("nobody there"), once=True)
        mark = demo.mark()
        assert (await call(server, session("s"))).session is SessionState.CONTINUED
        assert demo.requests_since(mark) == ["list pods"]

    async def test_an_agent_that_stays_unreachable_is_an_error_in_its_own_words(
        self, demo: Cluster, server: PodSessions
    ) -> None:
        demo.agents.fail_with(AgentUnreachable("the sandbox refuses: it serves another session"))
        with pytest.raises(AgentUnreachable, match="it serves another session"):
            await call(server, session("s"))

    async def test_a_command_whose_connection_breaks_is_never_run_again(
        self, demo: Cluster, server: PodSessions, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(commands, "_EXPLANATION_SECONDS", 0.1)
        demo.agents.fail_with(AgentLost("what became of it is unknown"))
        with pytest.raises(AgentLost, match="unknown"):
            await call(server, session("s"))
        assert len(demo.agents.runs) == 1

    async def test_a_connection_that_breaks_since_the_pod_goes_is_the_end_of_the_session(
        self, demo: Cluster, server: PodSessions
    ) -> None:
        await call(server, session("s"))
        [pod] = demo.pods_of("s")
        demo.agents.fail_with(AgentLost("broken"), once=True)
        asyncio.get_running_loop().call_later(
            0.1, demo.world.api.delete, "pods", NAMESPACE, pod["metadata"]["name"]
        )
        with pytest.raises(SessionEnded, match="its sandbox was deleted"):
            await call(server, session("s"))

    async def test_an_agent_that_is_told_to_stop_leaves_it_to_the_cluster_to_say_why(
        self, demo: Cluster, server: PodSessions
    ) -> None:
        await call(server, session("s"))
        [pod] = demo.pods_of("s")
        evicted = {**pod["status"], "phase": "Failed", "reason": "Evicted", "message": "the disk is full"}
        demo.agents.fail_with(SessionEnded("the sandbox is being shut down"), once=True)
        asyncio.get_running_loop().call_later(
            0.1, demo.world.api.update, {**pod, "status": evicted}, "status"
        )
        with pytest.raises(SessionEnded, match=r"Evicted: the disk is full"):
            await call(server, session("s"))

    async def test_an_agent_is_met_while_its_pod_is_claimed_and_a_claim_does_not_wait_for_it(
        self, demo: Cluster, server: PodSessions
    ) -> None:
        demo.agents.ready = lambda agent: False
        first = await asyncio.wait_for(call(server, session("s")), 2)
        assert demo.agents.met == [pod_of(first)]
        await call(server, session("s"))
        assert demo.agents.met == [pod_of(first)]

    async def test_typed_tools_are_called_in_the_sessions_pod(
        self, demo: Cluster, server: PodSessions
    ) -> None:
        first = await server.call_tool(session("s"), "read_file", {"path": "a"}, 10)
        second = await server.call_tool(session("s"), "read_file", {"path": "b"}, 10)
        assert first.result == {"name": "read_file", "path": "a"}
        assert (first.session, second.session) == (SessionState.NEW, SessionState.CONTINUED)

    async def test_each_call_that_reached_a_pod_is_recorded(self, demo: Cluster) -> None:
        calls: list[CallRecord] = []
        events: list[str] = []
        server = await demo.replica(on_call=calls.append, on_event=events.append)
        ran = await call(server, session("s"))
        await server.end(session("s"), delete_workspace=False)
        [record] = calls
        assert (record.owner, record.session_id, record.pod_uid) == ("somebody", "s", pod_of(ran))
        assert record.pod_ip.startswith("10.244.")
        assert events == ["claimed", "retired"]

    async def test_a_pod_that_somebody_planted_gets_no_command(
        self, demo: Cluster, server: PodSessions
    ) -> None:
        [name, _] = sorted(demo.world.pods())
        planted = demo.world.get("pods", name)
        labels = {names.LABEL_SESSION_ID: "s", names.LABEL_STATE: names.STATE_ACTIVE}
        metadata = {
            "name": "planted",
            "namespace": NAMESPACE,
            "labels": {**planted["metadata"]["labels"], **labels},
            "annotations": {
                names.ANNOTATION_SESSION_OWNER: "somebody",
                names.ANNOTATION_LAST_ACTIVITY: timestamp(demo.world.clock()),
            },
        }
        container = {"name": "sandbox", "image": "example.com/trap:1"}
        spec = {"containers": [container], "serviceAccountName": "default"}
        made = demo.world.api.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
        demo.start_pods()
        await eventually(lambda: server._cache.usable("s") is not None)
        assert server.session_count() == 0
        assert pod_of(await call(server, session("s"))) != made["metadata"]["uid"]


class TestRefusals:
    async def test_a_server_that_has_read_nothing_yet_is_not_ready(
        self, demo: Cluster, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(search, "FIND_SECONDS", 0.3)
        async with demo.temporary_replica("http://127.0.0.1:1") as server:
            assert not server.readiness().ready
            with pytest.raises(SandboxUnavailable, match="no sandbox could be had"):
                await asyncio.wait_for(call(server, session("s")), 60)

    async def test_a_closed_gate_refuses_new_sessions_and_serves_the_others(
        self, demo: Cluster, server: PodSessions
    ) -> None:
        await call(server, session("s"))
        demo.world.api.delete("networkpolicies.networking.k8s.io", NAMESPACE, "cli-mcp-demo-sandbox")
        demo.world.hooks_are_down = False
        demo.world.controller.deliver()
        demo.world.controller.sync_next()
        await eventually(lambda: "no new sessions" in server.readiness().detail)
        with pytest.raises(SandboxUnavailable, match="NetworkPolicy cli-mcp-demo-sandbox is not there yet"):
            await call(server, session("new"))
        await call(server, session("s"))
        assert server.readiness().ready

    async def test_a_full_quota_is_quoted(self, demo: Cluster, server: PodSessions) -> None:
        def quota(new: dict[str, object], old: object) -> list[tuple[str, str]]:
            return [("spec", "exceeded quota: team, see 10.0.0.7:443")] if old is None else []

        demo.world.api.rules["Pod"] = quota
        for number in range(2):
            await call(server, session(f"warm{number}"))
        with pytest.raises(SandboxUnavailable, match=r"exceeded quota: team, see \(address\)") as refused:
            await call(server, session("s"))
        assert "10.0.0.7" not in str(refused.value)

    async def test_limits_are_never_exceeded_by_replicas_that_admit_at_the_same_time(self) -> None:
        async with cluster(pool=5, maxSessions=6, maxSessionsPerOwner=4) as demo, demo.starting_pods():
            replicas = [await demo.replica() for _ in range(3)]
            keys = [session(f"s{number}", owner=f"owner{number % 3}") for number in range(24)]
            ran = await asyncio.gather(
                *(call(replicas[number % 3], key) for number, key in enumerate(keys)), return_exceptions=True
            )
            refused = [it for it in ran if isinstance(it, BaseException)]
            assert len(refused) == 24 - 6
            assert all(isinstance(it, SandboxUnavailable) and "maxSessions" in str(it) for it in refused)
            active = [key.id for key in keys if names.STATE_ACTIVE in demo.state_of(key.id)]
            assert len(active) == 6


class TestStarting:
    async def test_what_a_sandbox_waits_for_is_said_when_the_wait_is_over(self) -> None:
        async with cluster(pool=0) as demo:
            server = await demo.replica(start_seconds=0.3)
            with pytest.raises(SandboxUnavailable, match=r"waits for a node\. It stays reserved"):
                await call(server, session("s"))
            async with demo.starting_pods():
                assert (await call(server, session("s"))).session is SessionState.NEW
            assert len(demo.pods_of("s")) == 1

    async def test_an_image_that_cannot_be_pulled_is_said_at_once_and_the_pod_given_up(self) -> None:
        async with cluster(pool=0) as demo:
            server = await demo.replica()
            running = asyncio.create_task(call(server, session("s")))
            await eventually(lambda: demo.state_of("s") == [names.STATE_ACTIVE])
            controllers.schedule_pods(demo.world.api)
            [pod] = demo.pods_of("s")
            waiting = {"reason": "ImagePullBackOff", "message": "dial tcp 127.0.0.1:9: refused"}
            container = {"name": "sandbox", "restartCount": 0, "state": {"waiting": waiting}}
            demo.world.api.update(
                {**pod, "status": {**pod["status"], "containerStatuses": [container]}}, "status"
            )
            with pytest.raises(SandboxUnavailable, match=r"image, which cannot be pulled.*\(address\)"):
                await running
            assert demo.state_of("s") == [names.STATE_RETIRING]

    async def test_the_agent_is_asked_before_the_kubelet_says_that_it_is_ready(self) -> None:
        async with cluster(pool=0) as demo:
            server = await demo.replica()
            running = asyncio.create_task(call(server, session("s")))
            await eventually(lambda: demo.state_of("s") == [names.STATE_ACTIVE])
            controllers.schedule_pods(demo.world.api)
            controllers.start_pods(demo.world.api, ready=lambda pod: False)
            assert (await running).session is SessionState.NEW
            await call(server, session("s"))

    async def test_a_pod_that_is_deleted_while_it_starts_is_replaced(self) -> None:
        async with cluster(pool=0) as demo:
            server = await demo.replica()
            running = asyncio.create_task(call(server, session("s")))
            await eventually(lambda: demo.state_of("s") == [names.STATE_ACTIVE])
            [pod] = demo.pods_of("s")
            demo.world.api.delete("pods", NAMESPACE, pod["metadata"]["name"])
            async with demo.starting_pods():
                assert (await running).session is SessionState.NEW
