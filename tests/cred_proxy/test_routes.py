"""Joining proxy-config.json with the credentials of the kubeconfig."""

import pytest

from cli_mcp.api.endpoint import Endpoint
from cli_mcp.kubeconfig import Kubeconfig, KubernetesServer, RefusedEntry, ServedContext
from cli_mcp.proxy_config import AllowlistRouteConfig, KubernetesRouteConfig, OwnSecrets, ProxyConfig
from cred_proxy.routes import (
    AllowlistRoute,
    InvalidRoutes,
    KubernetesRoute,
    Route,
    build_routes,
    narrowed,
    withdrawn,
)

SERVER = KubernetesServer(Endpoint("api.example.com", 6443), "/k8s", "token")
KUBECONFIG = Kubeconfig(
    (ServedContext("x", "c", "u", None, SERVER),), (RefusedEntry('user "admin"', "has no token"),), "x"
)


def config(path: str = "/k8s") -> ProxyConfig:
    return ProxyConfig(
        kubernetes=(KubernetesRouteConfig(host="api.example.com", port=6443, path=path),),
        allowlist=(AllowlistRouteConfig(host="git.example.com", port=443, allow_upgrades=True),),
    )


def test_every_route_is_found_by_its_endpoint() -> None:
    git = Endpoint("git.example.com", 443)
    assert build_routes(config(), KUBECONFIG) == {
        git: AllowlistRoute(git, allow_upgrades=True),
        SERVER.endpoint: KubernetesRoute(SERVER),
    }


def test_every_kubernetes_route_knows_the_secrets_of_the_instance() -> None:
    own = OwnSecrets(namespace="team", names=("a",))
    routes = build_routes(config().model_copy(update={"own_secrets": own}), KUBECONFIG)
    assert routes[SERVER.endpoint] == KubernetesRoute(SERVER, own)


def test_a_server_of_the_kubeconfig_that_is_no_target_gets_no_route() -> None:
    assert build_routes(ProxyConfig(), KUBECONFIG) == {}


@pytest.mark.parametrize(("path", "kubeconfig"), [("/k8s", None), ("", KUBECONFIG), ("/other", KUBECONFIG)])
def test_a_kubernetes_route_without_a_credential_is_an_error(
    path: str, kubeconfig: Kubeconfig | None
) -> None:
    with pytest.raises(InvalidRoutes, match=f"https://api.example.com:6443{path}") as caught:
        build_routes(config(path), kubeconfig)
    assert ('user "admin": has no token' in str(caught.value)) == (kubeconfig is not None)


GIT = Endpoint("git.example.com", 443)
PLAIN, UPGRADES = AllowlistRoute(GIT), AllowlistRoute(GIT, allow_upgrades=True)
CLUSTER = KubernetesRoute(KubernetesServer(GIT, "/k8s", "token"))


@pytest.mark.parametrize(
    ("before", "after", "ends"),
    [
        (PLAIN, PLAIN, False),
        (PLAIN, None, True),
        (PLAIN, UPGRADES, False),
        (UPGRADES, PLAIN, True),
        (PLAIN, CLUSTER, True),
        (CLUSTER, PLAIN, True),
        (CLUSTER, None, True),
        (CLUSTER, KubernetesRoute(KubernetesServer(GIT, "/k8s", "rotated")), False),
        (CLUSTER, KubernetesRoute(KubernetesServer(GIT, "/other", "token")), True),
    ],
)
def test_requests_end_where_less_is_allowed_than_before(
    before: Route, after: Route | None, ends: bool
) -> None:
    assert withdrawn({GIT: before}, {GIT: after} if after else {}) == ({GIT} if ends else set())


def test_a_table_is_narrowed_to_what_the_configuration_still_has_and_gains_nothing() -> None:
    table = build_routes(config(), KUBECONFIG)
    assert narrowed(table, config()) == table
    assert narrowed(table, ProxyConfig()) == {}
    assert narrowed({}, config()) == {}
    assert narrowed(table, config("/other")).keys() == {GIT}
    assert narrowed({GIT: PLAIN}, config()) == {GIT: PLAIN}
    plain = ProxyConfig(allowlist=(AllowlistRouteConfig(host=GIT.host, port=GIT.port),))
    assert narrowed({GIT: UPGRADES}, plain) == {GIT: PLAIN}
    assert narrowed({GIT: CLUSTER}, config()) == {}
    own = OwnSecrets(namespace="ns", names=("a-new-one",))
    (kept,) = narrowed(
        {SERVER.endpoint: KubernetesRoute(SERVER)}, config().model_copy(update={"own_secrets": own})
    ).values()
    assert kept == KubernetesRoute(SERVER, own), "what is not to be read is not read from now on"
