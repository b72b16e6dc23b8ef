"""What is read from Services, EndpointSlices and other people's NetworkPolicies."""

from typing import Any

import pytest

from cli_mcp import names
from hooks.network import dns_addresses, proxy_address, proxy_has_endpoint, widening_policies
from hooks.wire import (
    CHILD_KINDS,
    ENDPOINT_SLICE,
    NETWORK_POLICY,
    SERVICE,
    ChildKind,
    HookRequest,
    Manifest,
    Parent,
)

PARENT = Parent({"metadata": {}}, "demo", "ns", "uid-1", 1)


def request(
    children: dict[ChildKind, list[Manifest]], related: dict[ChildKind, list[Manifest]]
) -> HookRequest:
    return HookRequest(
        PARENT,
        {kind.key: {it["metadata"]["name"]: it for it in children.get(kind, ())} for kind in CHILD_KINDS},
        {
            kind.key: {f"{it['metadata']['namespace']}/{it['metadata']['name']}": it for it in objects}
            for kind, objects in related.items()
        },
    )


def service(name: str, namespace: str = "ns", **spec: Any) -> Manifest:
    return {"metadata": {"name": name, "namespace": namespace}, "spec": spec}


def test_dns_is_the_node_local_cache_and_the_addresses_of_the_clusters_dns() -> None:
    services = [
        service("kube-dns", "kube-system", clusterIP="10.96.0.10", clusterIPs=["10.96.0.10", "fd00::a"]),
        service("dns-default", "openshift-dns", clusterIP="172.30.0.10"),
    ]
    assert dns_addresses(request({}, {SERVICE: services})) == [
        "169.254.20.10/32",
        "10.96.0.10/32",
        "172.30.0.10/32",
        "fd00::a/128",
    ]
    assert dns_addresses(request({}, {})) == ["169.254.20.10/32"]


@pytest.mark.parametrize(
    ("spec", "address"),
    [
        ({"clusterIP": "10.0.0.1"}, "10.0.0.1"),
        ({"clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1", "fd00::1"]}, "10.0.0.1"),
        ({"clusterIP": "None"}, None),
        ({}, None),
    ],
)
def test_the_proxys_address_is_its_services_own(spec: dict[str, Any], address: str | None) -> None:
    assert proxy_address(request({SERVICE: [service("cli-mcp-demo-proxy", **spec)]}, {})) == address


def endpoint_slice(*ready: bool | None, owner: str = "cli-mcp-demo-proxy") -> Manifest:
    return {
        "metadata": {"name": "s", "namespace": "ns", "labels": {"kubernetes.io/service-name": owner}},
        "endpoints": [{"conditions": {} if it is None else {"ready": it}} for it in ready],
    }


@pytest.mark.parametrize(
    ("slices", "has"),
    [
        ([], False),
        ([endpoint_slice()], False),
        ([endpoint_slice(False, False)], False),
        ([endpoint_slice(False, True)], True),
        ([endpoint_slice(None)], True),
        ([endpoint_slice(True, owner="cli-mcp-other-proxy")], False),
        ([{"metadata": {"name": "s", "namespace": "ns"}, "endpoints": None}], False),
    ],
)
def test_the_proxy_is_there_when_one_of_its_endpoints_is_ready(slices: list[Manifest], has: bool) -> None:
    assert proxy_has_endpoint(request({}, {ENDPOINT_SLICE: slices})) is has


def policy(selector: Any, egress: Any, **metadata: Any) -> Manifest:
    return {
        "metadata": {"name": "p", "namespace": "ns", **metadata},
        "spec": {"podSelector": selector, "egress": egress},
    }


OPEN: list[Any] = [{}]
IN_DEMO = {"matchLabels": {names.LABEL_INSTANCE: "demo"}}


def expression(key: str, operator: str, *values: str) -> Manifest:
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


@pytest.mark.parametrize(
    ("other", "widens"),
    [
        (policy({}, OPEN), True),
        (policy(None, OPEN), True),
        (policy({}, []), False),
        (policy({}, None), False),
        (policy(IN_DEMO, OPEN), True),
        (policy({"matchLabels": {"app": "web"}}, OPEN), False),
        (policy({"matchLabels": {names.LABEL_COMPONENT: "proxy"}}, OPEN), False),
        (policy({"matchLabels": {names.LABEL_SESSION_ID: "s"}}, OPEN), True),
        (policy(expression(names.LABEL_COMPONENT, "In", "sandbox", "x"), OPEN), True),
        (policy(expression(names.LABEL_COMPONENT, "In", "x"), OPEN), False),
        (policy(expression(names.LABEL_COMPONENT, "NotIn", "sandbox"), OPEN), False),
        (policy(expression(names.LABEL_COMPONENT, "NotIn", "proxy"), OPEN), True),
        (policy(expression("app", "Exists"), OPEN), False),
        (policy(expression("app", "DoesNotExist"), OPEN), True),
        (policy(expression("app", "NotIn", "x"), OPEN), True),
        (policy(expression(names.LABEL_STATE, "In", "active"), OPEN), True),
        (policy(expression("app", "SomethingNew"), OPEN), True),
        (policy({}, OPEN, namespace="other"), False),
        (policy({}, OPEN, ownerReferences=[{"uid": "uid-1", "controller": True}]), False),
        (policy({}, OPEN, ownerReferences=[{"uid": "uid-2", "controller": True}]), True),
    ],
)
def test_a_policy_widens_when_it_lets_a_sandbox_out(other: Manifest, widens: bool) -> None:
    assert bool(widening_policies(request({}, {NETWORK_POLICY: [other]}))) is widens
