"""Joining proxy-config.json with the credentials of the kubeconfig."""

import pytest

from cli_mcp.api.endpoint import Endpoint
from cli_mcp.kubeconfig import Kubeconfig, KubernetesServer, RefusedEntry, ServedContext
from cli_mcp.proxy_config import AllowlistRouteConfig, KubernetesRouteConfig, OwnSecrets, ProxyConfig
from cred_proxy.routes import AllowlistRoute, InvalidRoutes, KubernetesRoute, build_routes

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
