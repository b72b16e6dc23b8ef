"""Routes from targets and kubeconfig, and what stays when the kubeconfig goes bad."""

import json
from typing import Any

import pytest

from cli_mcp.api.instance import InstanceSpec
from cli_mcp.kubeconfig import DUMMY_TOKEN
from hooks.generated import encoded_data
from hooks.problem import Reason
from hooks.routes import Routes, plan_routes
from hooks.wire import CHILD_KINDS, CONFIG_MAP, SECRET, HookRequest, Parent
from tests.hooks.world import KUBECONFIG

PARENT = Parent({"metadata": {}}, "demo", "ns", "u", 1)
ALLOWLIST = {"type": "allowlist", "domains": ["pypi.org", "registry.example.com:5000"], "allowUpgrades": True}
PYPI_ROUTE = {"host": "pypi.org", "port": 443, "allowUpgrades": True}
REGISTRY_ROUTE = {"host": "registry.example.com", "port": 5000, "allowUpgrades": True}
API_ROUTE = {"host": "api.example.com", "port": 6443, "path": ""}


def plan(
    *targets: dict[str, Any],
    kubeconfig: Any = KUBECONFIG,
    before: Routes | None = None,
    secret: dict[str, str] | None = None,
    upstream: dict[str, Any] | None = None,
) -> tuple[Routes, list[tuple[Reason, str]]]:
    """`kubeconfig` None is a missing Secret; `before` what the cluster has."""
    proxy = {"targets": list(targets)} | ({"upstream": upstream} if upstream else {})
    spec = InstanceSpec.model_validate({"proxy": proxy} if targets else {})
    data = secret if secret is not None else {"kubeconfig": json.dumps(kubeconfig)}
    related = {} if kubeconfig is None else {"ns/cli-mcp-demo-kubeconfig": {"data": encoded_data(data)}}
    children: dict[str, dict[str, Any]] = {kind.key: {} for kind in CHILD_KINDS}
    if before:
        content = {"proxy-config.json": before.proxy_config, "kubeconfig": before.kubeconfig}
        children[CONFIG_MAP.key]["cli-mcp-demo-proxy"] = {"metadata": {}, "data": content}
    routes, problems = plan_routes(HookRequest(PARENT, children, {SECRET.key: related}), spec)
    return routes, [(problem.reason, problem.message) for problem in problems]


def config(routes: Routes) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(routes.proxy_config)
    return loaded


def test_an_allowlist_needs_no_kubeconfig() -> None:
    routes, problems = plan(ALLOWLIST, kubeconfig=None)
    assert config(routes) == {
        "version": 1,
        "kubernetes": [],
        "allowlist": [PYPI_ROUTE, REGISTRY_ROUTE],
        "upstream": {"httpProxy": None, "caBundle": None},
    }
    assert routes.complete
    assert problems == []


def test_a_kubernetes_target_brings_the_servers_and_a_kubeconfig_without_the_credential() -> None:
    routes, problems = plan({"type": "kubernetes"}, ALLOWLIST)
    assert config(routes)["kubernetes"] == [API_ROUTE]
    assert routes.complete
    assert problems == []
    assert DUMMY_TOKEN in routes.kubeconfig
    assert "the-real-token" not in routes.kubeconfig + routes.proxy_config


def test_the_proxy_is_told_which_secrets_are_the_instance_itself() -> None:
    generated = ["cli-mcp-demo-proxy-ca", "cli-mcp-demo-session-key", "cli-mcp-demo-ssh-host-key"]
    good, _ = plan({"type": "kubernetes"})
    expected = {
        "namespace": "ns",
        "names": sorted(["cli-mcp-demo-kubeconfig", "cli-mcp-demo-tls", *generated]),
    }
    assert config(good)["ownSecrets"] == expected
    named, _ = plan({"type": "kubernetes", "secretName": "robot"}, before=good, kubeconfig=None)
    assert config(named)["ownSecrets"]["names"] == sorted(["robot", "cli-mcp-demo-tls", *generated])
    assert "ownSecrets" not in config(plan(ALLOWLIST)[0])


def test_the_upstream_is_passed_on() -> None:
    routes, _ = plan(ALLOWLIST, upstream={"httpProxy": "http://proxy.example.com:3128"})
    assert config(routes)["upstream"]["httpProxy"] == "http://proxy.example.com:3128"


def test_without_targets_there_are_no_routes() -> None:
    routes, problems = plan()
    assert config(routes)["allowlist"] == []
    assert not routes.complete
    assert problems == []


CERTIFICATE_USER = {"name": "robot", "user": {"client-certificate-data": "eA=="}}
BAD = [
    ("missing", {"kubeconfig": None}, Reason.SECRETS_NOT_FOUND, "create it with the key kubeconfig"),
    ("another key", {"secret": {"config": "x"}}, Reason.SECRET_KEYS_INVALID, "has no key kubeconfig"),
    ("no YAML", {"secret": {"kubeconfig": "{"}}, Reason.KUBECONFIG_INVALID, "is not valid YAML"),
    ("empty", {"kubeconfig": {}}, Reason.KUBECONFIG_INVALID, "has no contexts"),
    (
        "no bearer token",
        {"kubeconfig": KUBECONFIG | {"users": [CERTIFICATE_USER]}},
        Reason.KUBECONFIG_INVALID,
        'user "robot"',
    ),
]


@pytest.mark.parametrize(("broken", "reason", "text"), [case[1:] for case in BAD], ids=[c[0] for c in BAD])
def test_a_bad_kubeconfig_is_said_and_the_last_good_routes_stand(
    broken: dict[str, Any], reason: Reason, text: str
) -> None:
    first, [(said, message), *_] = plan({"type": "kubernetes"}, ALLOWLIST, **broken)
    assert said is reason
    assert text in message
    assert not first.complete, "without any good one before there is nothing to stand on"
    assert config(first)["allowlist"] == [PYPI_ROUTE, REGISTRY_ROUTE]
    good, _ = plan({"type": "kubernetes"}, ALLOWLIST)
    later, _ = plan({"type": "kubernetes"}, ALLOWLIST, before=good, **broken)
    assert later == good


def test_a_host_that_is_no_longer_listed_goes_though_the_kubeconfig_is_bad() -> None:
    good, _ = plan({"type": "kubernetes"}, ALLOWLIST)
    narrowed = {"type": "allowlist", "domains": ["pypi.org"]}
    later, _ = plan({"type": "kubernetes"}, narrowed, before=good, kubeconfig=None)
    assert [route["host"] for route in config(later)["allowlist"]] == ["pypi.org"]
    assert config(later)["kubernetes"] == [API_ROUTE]


def test_a_kubernetes_target_that_is_removed_goes_at_once() -> None:
    good, _ = plan({"type": "kubernetes"}, ALLOWLIST)
    later, _ = plan(ALLOWLIST, before=good, kubeconfig=None)
    assert config(later)["kubernetes"] == []


def test_contexts_that_can_be_served_are_and_the_others_are_named() -> None:
    mixed = KUBECONFIG | {
        "users": [*KUBECONFIG["users"], {"name": "admin", "user": {"exec": {"command": "x"}}}]
    }
    routes, [(reason, message)] = plan({"type": "kubernetes"}, kubeconfig=mixed)
    assert config(routes)["kubernetes"] == [API_ROUTE]
    assert routes.complete
    assert reason is Reason.KUBECONFIG_INVALID
    assert 'user "admin"' in message


def test_a_server_in_both_kinds_of_target_is_named_and_keeps_its_path_rules() -> None:
    both = {"type": "allowlist", "domains": ["api.example.com:6443", "pypi.org"]}
    routes, [(reason, message)] = plan({"type": "kubernetes"}, both)
    assert reason is Reason.KUBECONFIG_INVALID
    assert "api.example.com:6443 is in an allowlist and in the kubeconfig" in message
    assert config(routes)["kubernetes"] == [API_ROUTE]
    assert [route["host"] for route in config(routes)["allowlist"]] == ["pypi.org"]


@pytest.mark.parametrize("server", ["https://127.0.0.1:6443", "https://localhost:6443", "https://[::1]:6443"])
def test_a_server_on_loopback_is_refused_since_no_pod_can_reach_it_there(server: str) -> None:
    clusters = [{"name": "main", "cluster": {"server": server}}]
    _, [(reason, message)] = plan({"type": "kubernetes"}, kubeconfig=KUBECONFIG | {"clusters": clusters})
    assert reason is Reason.KUBECONFIG_INVALID
    assert server.removeprefix("https://") in message
    assert "https://kubernetes.default.svc" in message
