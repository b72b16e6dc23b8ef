"""Things that somebody deletes and that are made again, while sessions go on."""

from datetime import timedelta

import pytest

from hooks.repairs import MADE_TOGETHER, SAME_ADDRESS_FOR
from tests.hooks.test_reconcile import settled
from tests.hooks.world import ALLOWLIST, NAMESPACE, World
from tests.kube.objects import Object


@pytest.fixture
def world() -> World:
    made = World()
    made.admin_secrets()
    return made


PROXY = "cli-mcp-demo-proxy"
SPEC: Object = {"sandbox": {"warmPoolSize": 1}, "proxy": ALLOWLIST}


def address(world: World) -> str:
    return str(world.get("services", PROXY)["spec"]["clusterIP"])


def take(world: World, clusterip: str) -> None:
    """Somebody else gets an address that has just become free."""
    metadata = {"name": "somebody-else", "namespace": NAMESPACE}
    ports = [{"port": 80, "protocol": "TCP"}]
    spec = {"clusterIP": clusterip, "ports": ports, "type": "ClusterIP"}
    world.api.create({"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec})


def test_the_proxys_service_comes_back_with_the_address_that_sandboxes_know(world: World) -> None:
    settled(world, SPEC)
    (pod,) = world.pods()
    world.claim(pod, "s")
    world.run()
    before, uid = address(world), world.get("services", PROXY)["metadata"]["uid"]
    world.api.delete("services", NAMESPACE, PROXY)
    world.run()
    assert world.get("services", PROXY)["metadata"]["uid"] != uid
    assert address(world) == before
    assert world.condition()["status"] == "True"
    assert pod in world.pods()
    assert world.writes_at_rest() == []


def test_an_instance_without_sandboxes_takes_any_address(world: World) -> None:
    settled(world, {"sandbox": {"warmPoolSize": 0}, "proxy": ALLOWLIST})
    world.api.delete("services", NAMESPACE, PROXY)
    world.run()
    assert world.condition()["status"] == "True"
    assert world.writes_at_rest() == []


def test_an_address_that_is_lost_is_given_up_and_the_sessions_are_named(world: World) -> None:
    settled(world, SPEC)
    (pod,) = world.pods()
    world.claim(pod, "s")
    world.run()
    before = address(world)
    world.api.delete("services", NAMESPACE, PROXY)
    take(world, before)
    with pytest.raises(AssertionError, match="come to rest"):
        world.run(rounds=5)
    assert world.find("services", PROXY) is None
    world.clock.advance(SAME_ADDRESS_FOR.total_seconds() + 1)
    world.poke()
    world.run()
    assert address(world) != before
    condition = world.condition()
    assert (condition["status"], condition["reason"]) == ("True", "SessionsCutOff")
    assert pod in condition["message"]
    assert world.writes_at_rest() == []


@pytest.mark.parametrize(("later", "rolls"), [(timedelta(0), False), (MADE_TOGETHER * 2, True)])
def test_a_new_service_account_rolls_the_servers_whose_token_is_dead(
    world: World, later: timedelta, rolls: bool
) -> None:
    settled(world, SPEC)
    template = world.get("deployments.apps", "cli-mcp-demo")["spec"]["template"]
    world.clock.advance(later.total_seconds())
    world.api.delete("serviceaccounts", NAMESPACE, "cli-mcp-demo")
    world.run()
    account = world.get("serviceaccounts", "cli-mcp-demo")
    after = world.get("deployments.apps", "cli-mcp-demo")["spec"]["template"]
    assert (after != template) is rolls
    if rolls:
        assert account["metadata"]["uid"] in str(after["metadata"]["annotations"])
    assert world.writes_at_rest() == []
