"""Related objects: never more than meant, also of an instance that cannot be read."""

from typing import Any

import pytest

from cli_mcp import names
from hooks.customize import customize
from hooks.wire import CHILD_KINDS, MalformedRequest

SSH = {
    "routes": [{"username": "a", "authorizedKeysSecret": "keys"}],
    "hostKeySecret": "host-key",
}


def ask(spec: Any) -> list[dict[str, Any]]:
    parent = {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "metadata": {"name": "demo", "namespace": "ns", "uid": "uid-1"},
        "spec": spec,
    }
    answer = customize({"controller": {}, "parent": parent})
    assert list(answer) == ["relatedResources"]
    rules: list[dict[str, Any]] = answer["relatedResources"]
    return rules


def secrets(spec: Any) -> list[str]:
    (rule,) = [rule for rule in ask(spec) if rule["resource"] == "secrets"]
    found: list[str] = rule["names"]
    return found


GENERATED = ["cli-mcp-demo-proxy-ca", "cli-mcp-demo-session-key", "cli-mcp-demo-ssh-host-key"]


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({}, ["cli-mcp-demo-tls"]),
        ({"proxy": {"targets": [{"type": "allowlist", "domains": ["a.example"]}]}}, ["cli-mcp-demo-tls"]),
        (
            {"proxy": {"targets": [{"type": "kubernetes"}]}},
            ["cli-mcp-demo-kubeconfig", "cli-mcp-demo-tls"],
        ),
        ({"proxy": {"targets": [{"type": "kubernetes", "secretName": "own"}]}}, ["cli-mcp-demo-tls", "own"]),
        ({"ssh": SSH}, ["cli-mcp-demo-tls", "host-key", "keys"]),
        ({"replicas": "many"}, ["cli-mcp-demo-tls"]),
        ("nonsense", ["cli-mcp-demo-tls"]),
    ],
)
def test_the_secrets_are_those_that_the_spec_names(spec: Any, expected: list[str]) -> None:
    assert secrets(spec) == sorted({*GENERATED, *expected})


def test_no_rule_selects_more_than_it_says() -> None:
    for rule in ask({}):
        assert rule["namespace"]
        assert bool(rule.get("names")) != bool(rule.get("labelSelector"))
        outside = rule["namespace"] != "ns"
        assert not outside or (rule["resource"], rule["names"]) in (
            ("services", ["kube-dns"]),
            ("services", ["dns-default"]),
        )


def test_foreign_policies_are_all_but_those_of_the_instance() -> None:
    (rule,) = [rule for rule in ask({}) if rule["resource"] == "networkpolicies"]
    assert rule["labelSelector"] == {
        "matchExpressions": [{"key": "controller-uid", "operator": "NotIn", "values": ["uid-1"]}]
    }


def test_every_kind_of_child_with_a_fixed_name_is_looked_at_by_name() -> None:
    shown = {rule["resource"] for rule in ask({})}
    assert shown == {kind.resource for kind in CHILD_KINDS} - {"pods", "persistentvolumeclaims"} | {
        "endpointslices"
    }


@pytest.mark.parametrize("body", [None, {}, {"parent": None}, {"parent": {"kind": "Pod"}}])
def test_a_malformed_request_fails(body: Any) -> None:
    with pytest.raises(MalformedRequest):
        customize(body)
