"""The end of an instance, step by step and as a whole."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from cli_mcp import names
from hooks.finalize import STOP_DEADLINE, finalize
from hooks.wire import CHILD_KINDS, MalformedRequest
from tests.hooks.world import ALLOWLIST, NAMESPACE, World
from tests.kube import controllers
from tests.kube.deletion import DeleteOptions

INSTANCES = "climcpinstances.cli-mcp.redhat.com"
NOW = datetime(2026, 1, 1, tzinfo=UTC)
KINDS = {kind.kind: kind for kind in CHILD_KINDS}


def observed(kind: str, name: str, *, applied: dict[str, Any] | None = None, **rest: Any) -> dict[str, Any]:
    api_version = KINDS[kind].api_version
    metadata: dict[str, Any] = {"name": name, "namespace": "ns"}
    content = {"apiVersion": api_version, "kind": kind, "metadata": metadata, **(applied or {})}
    annotations = {names.ANNOTATION_LAST_APPLIED: json.dumps(content)}
    extra = rest.pop("metadata", {})
    return {**content, **rest, "metadata": {**metadata, "annotations": annotations, **extra}}


def server(replicas: int = 1, status_replicas: int = 1, observed_generation: int = 3) -> dict[str, Any]:
    return observed(
        "Deployment",
        "cli-mcp-demo",
        applied={"spec": {"replicas": replicas, "paused": True}},
        metadata={"generation": 3},
        status={"observedGeneration": observed_generation}
        | ({"replicas": status_replicas} if status_replicas else {}),
    )


POD = observed("Pod", "p", applied={"spec": {"containers": []}})
CLAIM = observed("PersistentVolumeClaim", "p", applied={"spec": {}})
CONFIG = observed(
    "ConfigMap",
    "cli-mcp-demo",
    applied={"data": {"sandbox.json": json.dumps({"gate": {"open": True, "reason": ""}, "poolHash": "h"})}},
)


def answer(*children: dict[str, Any], deleted: timedelta | None = timedelta()) -> dict[str, Any]:
    """`deleted`: how long ago."""
    found: dict[str, dict[str, Any]] = {kind.key: {} for kind in CHILD_KINDS}
    for child in children:
        found[KINDS[child["kind"]].key][f"ns/{child['metadata']['name']}"] = child
    metadata = {"name": "demo", "namespace": "ns", "uid": "u", "generation": 1}
    if deleted is not None:
        metadata["deletionTimestamp"] = (NOW - deleted).strftime("%Y-%m-%dT%H:%M:%SZ")
    parent = {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "metadata": metadata,
        "spec": {"nonsense": ["that nobody can read"]},
    }
    return finalize({"parent": parent, "children": found, "related": {}, "finalizing": True}, NOW)


def returned(found: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    return [child for child in found["children"] if child["kind"] == kind]


def test_first_the_server_stops_and_the_gate_closes() -> None:
    found = answer(server(), POD, CLAIM, CONFIG)
    assert found["finalized"] is False
    assert found["resyncAfterSeconds"] == 5
    (deployment,) = returned(found, "Deployment")
    assert deployment["spec"] == {"replicas": 0, "paused": True}
    config = json.loads(returned(found, "ConfigMap")[0]["data"]["sandbox.json"])
    assert config == {"gate": {"open": False, "reason": "the instance is being deleted"}, "poolHash": "h"}
    assert len(returned(found, "Pod")) == len(returned(found, "PersistentVolumeClaim")) == 1


@pytest.mark.parametrize(
    ("deployment", "deleted", "sandboxes_stay"),
    [
        (server(replicas=1, status_replicas=1), timedelta(), True),
        (server(replicas=0, status_replicas=1), timedelta(), True),
        (server(replicas=0, status_replicas=0, observed_generation=2), timedelta(), True),
        (server(replicas=0, status_replicas=0), timedelta(), False),
        (None, timedelta(), False),
        (server(), STOP_DEADLINE - timedelta(seconds=1), True),
        (server(), STOP_DEADLINE, False),
        (server(), None, True),
    ],
    ids=[
        "not told yet",
        "pods still run",
        "not noticed yet",
        "stopped",
        "gone",
        "before the deadline",
        "after it",
        "without a deletion",
    ],
)
def test_sandboxes_go_when_nobody_can_claim_them_or_after_a_minute(
    deployment: dict[str, Any] | None, deleted: timedelta | None, sandboxes_stay: bool
) -> None:
    found = answer(*([deployment] if deployment else []), POD, CLAIM, deleted=deleted)
    assert bool(returned(found, "Pod")) is sandboxes_stay
    assert bool(returned(found, "PersistentVolumeClaim")) is sandboxes_stay
    assert found["finalized"] is False


def test_the_end_comes_when_sandboxes_are_gone_and_not_while_they_terminate() -> None:
    stopped = server(replicas=0, status_replicas=0)
    going = {**POD, "metadata": {**POD["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}}
    assert answer(stopped, going)["finalized"] is False
    assert answer(stopped)["finalized"] is True


def test_nothing_is_made_that_is_not_there() -> None:
    assert answer()["children"] == []


def test_the_condition_says_what_goes_on() -> None:
    assert "servers stop" in answer(server(), POD)["status"]["conditions"][0]["message"]
    assert "sandboxes go" in answer(POD)["status"]["conditions"][0]["message"]


def test_a_malformed_request_fails() -> None:
    with pytest.raises(MalformedRequest):
        finalize({}, NOW)


@pytest.fixture
def world() -> World:
    world = World()
    world.admin_secrets()
    world.apply({"sandbox": {"warmPoolSize": 2}, "proxy": ALLOWLIST})
    world.run()
    return world


def test_a_deleted_instance_goes_in_order(world: World) -> None:
    world.api.delete(INSTANCES, NAMESPACE, "demo")
    world.controller.run()
    assert world.get("deployments.apps", "cli-mcp-demo")["spec"]["replicas"] == 0
    assert world.sandbox_config()["gate"]["open"] is False
    assert len(world.pods()) == 2
    controllers.roll_out_deployments(world.api)
    world.controller.run()
    assert all("deletionTimestamp" in pod["metadata"] for pod in world.pods().values())
    assert world.find(INSTANCES, "demo") is not None
    world.run()
    assert world.find(INSTANCES, "demo") is None
    assert world.find("deployments.apps", "cli-mcp-demo-proxy") is None, "the rest is garbage"


def test_a_server_that_does_not_stop_holds_the_end_up_for_a_minute(world: World) -> None:
    world.api.delete(INSTANCES, NAMESPACE, "demo")
    world.controller.run()
    for _ in range(STOP_DEADLINE.seconds // 5 + 1):
        world.clock.advance(5)
        world.controller.deliver()
        world.controller.run()
    assert all("deletionTimestamp" in pod["metadata"] for pod in world.pods().values())


def test_deleting_during_a_rollout_ends(world: World) -> None:
    world.apply({"sandbox": {"warmPoolSize": 3, "image": "registry.example.com/new:1"}, "proxy": ALLOWLIST})
    world.controller.deliver()
    world.controller.sync_next()
    world.api.delete(INSTANCES, NAMESPACE, "demo")
    world.run()
    assert world.find(INSTANCES, "demo") is None
    assert world.pods() == {}


def test_a_deleted_namespace_does_not_wedge(world: World) -> None:
    world.api.delete("namespaces", "", NAMESPACE)
    world.run(rounds=80)
    assert world.api.objects(INSTANCES, NAMESPACE) == []


def test_a_foreground_deletion_ends_too(world: World) -> None:
    world.api.delete(INSTANCES, NAMESPACE, "demo", DeleteOptions(propagation="Foreground"))
    world.run(rounds=80)
    assert world.api.objects(INSTANCES, NAMESPACE) == []
