"""Workspaces on real volumes: kept after their pod, found again, given to nobody else, deleted in time."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from cli_mcp import names
from tests.e2e.instances import Instance, is_ready, merged, new_namespace
from tests.e2e.node import nodes
from tests.e2e.operator import eventually, kubectl, objects
from tests.e2e.session_ends import watched_sessions
from tests.hooks.world import ALLOWLIST

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.e2e.mcp_client import McpClient
    from tests.e2e.operator import Object

IDLE_SECONDS = 6
# Half a minute longer than a session is kept when nobody uses it.
RETAIN_SECONDS = 100
MARGIN_SECONDS = 60
SYNC_SECONDS = 30
POOL = 2
CLAIMS = "persistentvolumeclaims"
UNCLAIMED = f"!{names.LABEL_SESSION_ID}"
SANDBOX = f"{names.LABEL_COMPONENT}={names.COMPONENT_SANDBOX}"


@pytest.fixture(scope="module", params=["WaitForFirstConsumer", "Immediate"])
def ready(
    request: pytest.FixtureRequest, system: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Instance]:
    """An instance on a storage class that binds volumes so, with a runtime class where there is one."""
    sandbox: Object = {
        "idleTimeout": f"{IDLE_SECONDS}s",
        "warmPoolSize": POOL,
        "workspace": {
            "persistent": True,
            "size": "64Mi",
            "retain": f"{RETAIN_SECONDS}s",
            "storageClassName": storage_class(request.param),
        },
    }
    for runtime_class in objects("", "runtimeclasses")[:1]:
        sandbox["runtimeClassName"] = runtime_class["metadata"]["name"]
    with new_namespace(
        tmp_path_factory.mktemp("workspaces"), f"workspaces-{request.param.lower()}"
    ) as instance:
        instance.create({"replicas": 2, "sandbox": sandbox, "proxy": ALLOWLIST})
        instance.wait_for("Ready", 120)
        yield instance


def storage_class(binding: str) -> str:
    for found in objects("", "storageclasses"):
        if found["volumeBindingMode"] == binding:
            return str(found["metadata"]["name"])
    pytest.skip(f"no storage class binds its volumes {binding}")


def workspaces(instance: Instance, session: str) -> list[Object]:
    return objects(instance.namespace, CLAIMS, f"{names.LABEL_SESSION_ID}={session}")


def workspace(instance: Instance, session: str) -> str:
    (found,) = workspaces(instance, session)
    return str(found["metadata"]["name"])


def mounted(pod: Object) -> str:
    (claim,) = [it["persistentVolumeClaim"] for it in pod["spec"]["volumes"] if "persistentVolumeClaim" in it]
    return str(claim["claimName"])


def call(client: McpClient, session: str, command: str) -> tuple[str, str]:
    """What it printed, and what it was to its session."""
    answer = client.bash_once_started(session, command)
    assert answer.exit_code == 0, answer.text
    return answer.stdout, answer.structured["session"]


def end(client: McpClient, session: str, **query: str) -> None:
    client.end(session, **query).raise_for_status()


def test_a_slot_of_the_pool_is_a_pod_with_a_volume_of_its_own(ready: Instance) -> None:
    pods = ready.component("sandbox")
    assert {mounted(pod) for pod in pods} == {pod["metadata"]["name"] for pod in pods}
    claims = {it["metadata"]["name"]: it for it in objects(ready.namespace, CLAIMS)}
    assert all(claims[mounted(pod)]["status"]["phase"] == "Bound" for pod in pods)
    expected = ready.spec["sandbox"].get("runtimeClassName")
    assert {pod["spec"].get("runtimeClassName") for pod in pods} == {expected}


def test_a_workspace_outlives_idle_expiry_by_its_time_and_goes_with_its_volume(ready: Instance) -> None:
    client = ready.client()
    with watched_sessions(ready.namespace) as ends:
        for session in ("comes-back", "stays-away"):
            assert call(client, session, f"echo {session} > file; KEPT=yes") == ("", "new")
        last_used = time.monotonic()
        name = workspace(ready, "comes-back")
        (left,) = workspaces(ready, "stays-away")
        for session in ("comes-back", "stays-away"):
            ends.wait_for(session, IDLE_SECONDS + MARGIN_SECONDS + SYNC_SECONDS)
        assert call(client, "comes-back", "cat file; echo [$KEPT]") == ("comes-back\n[]\n", "resumed")
    assert call(client, "comes-back", "cat file") == ("comes-back\n", "continued")
    (pod,) = ready.session_pods("comes-back")
    assert mounted(pod) == name

    eventually(lambda: not workspaces(ready, "stays-away"), RETAIN_SECONDS + SYNC_SECONDS)
    kept = time.monotonic() - last_used
    print(f"\na workspace was kept for {kept:.0f} s after its last use")
    assert kept >= RETAIN_SECONDS - 2
    volume = left["spec"]["volumeName"]
    eventually(lambda: not kubectl("get", "pv", volume, "--ignore-not-found"), 60)
    assert call(client, "stays-away", "ls") == ("", "new")


def test_a_session_that_is_ended_leaves_its_files_or_takes_them_along(ready: Instance) -> None:
    client = ready.client()
    call(client, "ended", "echo hello > file")
    end(client, "ended")
    assert call(client, "ended", "cat file") == ("hello\n", "resumed")
    name = workspace(ready, "ended")
    end(client, "ended", workspace="true")
    assert call(client, "ended", "ls") == ("", "new")
    (pod,) = ready.session_pods("ended")
    assert mounted(pod) != name
    eventually(lambda: not kubectl("-n", ready.namespace, "get", CLAIMS, name, "--ignore-not-found"), 60)


def test_another_owner_of_the_same_session_id_never_sees_the_files(ready: Instance) -> None:
    mine, theirs = ready.client(), ready.client(ready.make_caller("somebody-else"))
    call(mine, "shared", "echo mine > file")
    end(mine, "shared")
    assert call(theirs, "shared", "ls; echo theirs > other") == ("", "new")
    assert "belongs to another caller" in mine.bash("shared", "ls").text
    assert (
        len(
            {
                it["metadata"]["annotations"][names.ANNOTATION_SESSION_OWNER]
                for it in workspaces(ready, "shared")
            }
        )
        == 2
    )
    end(theirs, "shared", workspace="true")
    assert call(mine, "shared", "ls") == ("file\n", "resumed")


def test_files_outlive_a_container_that_is_killed_and_a_pod_that_is_taken_away(ready: Instance) -> None:
    client = ready.client()
    call(client, "restarted", "echo hello > file; KEPT=yes")
    (pod,) = ready.session_pods("restarted")
    with nodes() as all_nodes:
        all_nodes.kill(pod)
    eventually(lambda: ready.restarts("restarted") >= 1, 60)
    assert call(client, "restarted", "cat file; echo $KEPT") == ("hello\nyes\n", "continued")
    kubectl("-n", ready.namespace, "delete", "pod", pod["metadata"]["name"])
    assert call(client, "restarted", "cat file; echo [$KEPT]") == ("hello\n[]\n", "resumed")


def test_sessions_at_two_replicas_at_once_get_one_pod_and_one_workspace_each(ready: Instance) -> None:
    replicas = ready.replicas()
    sessions = [f"many-{number}" for number in range(2 * POOL)]

    def ask(client: McpClient, session: str) -> tuple[str, str]:
        return call(client, session, "hostname")

    for expected in ("new", "resumed"):
        with ThreadPoolExecutor(2 * len(sessions)) as threads:
            first, second = (list(threads.map(ask, [it] * len(sessions), sessions)) for it in replicas)
        assert [host for host, _ in first] == [host for host, _ in second]
        states = {state for _, state in (*first, *second)}
        assert expected in states
        assert states <= {expected, "continued"}
        for session in sessions:
            (pod,) = ready.session_pods(session)
            assert mounted(pod) == workspace(ready, session)
            end(replicas[0], session)


def test_a_pool_that_is_resized_and_rolled_leaves_no_volume_behind(ready: Instance) -> None:
    client = ready.client()
    call(client, "steady", "echo hello > file; KEPT=yes")

    def wait_for_slots(size: int, without: frozenset[str] = frozenset()) -> frozenset[str]:
        """Their uids, when so many unclaimed pods are Ready, each with a volume of its own, and no other
        volume is unclaimed; the session is used meanwhile."""
        found: frozenset[str] = frozenset()

        def is_so() -> bool:
            nonlocal found
            call(client, "steady", "true")
            pods = [it for it in objects(ready.namespace, "pods", f"{SANDBOX},{UNCLAIMED}") if is_ready(it)]
            found = frozenset(it["metadata"]["uid"] for it in pods)
            claims = [it["metadata"]["name"] for it in objects(ready.namespace, CLAIMS, UNCLAIMED)]
            return len(claims) == size and {*claims} == {*map(mounted, pods)} and found.isdisjoint(without)

        eventually(is_so)
        return found

    for size in (2 * POOL, POOL):
        ready.apply(merged(ready.spec, {"sandbox": {"warmPoolSize": size}}))
        old = wait_for_slots(size)
    ready.apply(merged(ready.spec, {"sandbox": {"env": [{"name": "COLOUR", "value": "green"}]}}))
    wait_for_slots(POOL, without=old)
    assert call(client, "steady", "cat file; echo $KEPT$COLOUR") == ("hello\nyes\n", "continued")
    assert call(client, "rolled", "echo $COLOUR") == ("green\n", "new")


def test_an_instance_takes_its_workspaces_along(ready: Instance) -> None:
    """The last of the module: nothing is left afterwards."""
    client = ready.client()
    call(client, "last", "echo hello > file")
    volumes = {
        it["spec"]["volumeName"] for it in objects(ready.namespace, CLAIMS) if "volumeName" in it["spec"]
    }
    kubectl("-n", ready.namespace, "delete", "climcpinstance", ready.name, "--timeout=120s")
    assert objects(ready.namespace, CLAIMS) == []
    assert ready.component("sandbox") == []
    eventually(lambda: volumes.isdisjoint(it["metadata"]["name"] for it in objects("", "pv")), 60)
