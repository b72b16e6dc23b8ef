"""The gate: closed until each of its preconditions has been observed."""

import copy
import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from hooks.children import fixed_children
from hooks.gate import closed_because
from hooks.wire import CHILD_KINDS, ENDPOINT_SLICE, HookRequest
from tests.hooks.test_children import INPUTS, PARENT, inputs

Objects = dict[str, dict[str, dict[str, Any]]]
SLICE = {
    "metadata": {
        "namespace": "ns",
        "name": "s",
        "labels": {"kubernetes.io/service-name": "cli-mcp-demo-proxy"},
    },
    "endpoints": [{"conditions": {"ready": True}}],
}
SECRET = {"metadata": {"name": "cli-mcp-demo-proxy-ca", "namespace": "ns"}}


def in_place() -> Objects:
    """Everything that the gate asks for, as children by kind and name."""
    children: Objects = {kind.key: {} for kind in CHILD_KINDS}
    for child in fixed_children(INPUTS):
        children[f"{child['kind']}.{child['apiVersion']}"][child["metadata"]["name"]] = copy.deepcopy(child)
    children["Secret.v1"] = {"cli-mcp-demo-proxy-ca": copy.deepcopy(SECRET)}
    return children


def reason(children: Objects, endpoints: dict[str, Any] = SLICE, **changes: Any) -> str | None:
    given = inputs(**changes)
    request = HookRequest(PARENT, children, {ENDPOINT_SLICE.key: {"ns/s": endpoints}})
    return closed_because(request, given, fixed_children(given))


def test_the_gate_opens_when_everything_is_in_place() -> None:
    assert reason(in_place()) is None


POLICY = "NetworkPolicy.networking.k8s.io/v1"
OBJECTS = [
    (POLICY, "cli-mcp-demo-sandbox"),
    (POLICY, "cli-mcp-demo-proxy"),
    ("ConfigMap.v1", "cli-mcp-demo-proxy"),
    ("ConfigMap.v1", "cli-mcp-demo-session-keys"),
    ("Secret.v1", "cli-mcp-demo-proxy-ca"),
    ("ServiceAccount.v1", "cli-mcp-demo-sandbox"),
]


@pytest.mark.parametrize(("kind", "name"), OBJECTS)
def test_the_gate_is_closed_without_each_of_its_objects(kind: str, name: str) -> None:
    children = in_place()
    del children[kind][name]
    assert reason(children) == f"{kind.partition('.')[0]} {name} is not there yet"


@pytest.mark.parametrize(("kind", "name"), OBJECTS)
def test_an_object_on_its_way_out_does_not_count(kind: str, name: str) -> None:
    children = in_place()
    children[kind][name]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert reason(children) == f"{kind.partition('.')[0]} {name} is not there yet"


def widen(policy: dict[str, Any]) -> None:
    policy["spec"]["egress"].append({})


def narrow_selector(policy: dict[str, Any]) -> None:
    policy["spec"]["podSelector"]["matchLabels"]["app"] = "x"


def only_ingress(policy: dict[str, Any]) -> None:
    policy["spec"]["policyTypes"] = ["Ingress"]


@pytest.mark.parametrize("name", ["cli-mcp-demo-sandbox", "cli-mcp-demo-proxy"])
@pytest.mark.parametrize("tamper", [widen, narrow_selector, only_ingress])
def test_a_policy_that_is_not_exactly_the_desired_one_closes_the_gate(
    name: str, tamper: Callable[[dict[str, Any]], None]
) -> None:
    children = in_place()
    tamper(children[POLICY][name])
    assert reason(children) == f"NetworkPolicy {name} is not what it should be yet"


def test_old_routes_close_the_gate() -> None:
    children = in_place()
    children["ConfigMap.v1"]["cli-mcp-demo-proxy"]["data"]["proxy-config.json"] = "old"
    assert reason(children) == "ConfigMap cli-mcp-demo-proxy is not what it should be yet"


def test_without_a_ready_proxy_the_gate_is_closed() -> None:
    unready = {**SLICE, "endpoints": [{"conditions": {"ready": False}}]}
    assert reason(in_place(), unready) == "no proxy pod of Deployment cli-mcp-demo-proxy is ready"


def test_without_the_proxys_address_only_sandboxes_with_dns_can_start() -> None:
    assert reason(in_place(), proxy_address=None) == "Service cli-mcp-demo-proxy has no address yet"


def test_without_targets_or_complete_routes_the_gate_is_closed() -> None:
    without = inputs(spec={"proxy": None})
    request = HookRequest(PARENT, in_place(), {ENDPOINT_SLICE.key: {"ns/s": SLICE}})
    assert "spec.proxy is missing" in (closed_because(request, without, fixed_children(without)) or "")
    incomplete = dataclasses.replace(INPUTS, routes=dataclasses.replace(INPUTS.routes, complete=False))
    assert "kubeconfig" in (closed_because(request, incomplete, fixed_children(incomplete)) or "")
