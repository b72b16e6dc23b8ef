"""The routes of an instance: what proxy-config.json allows, joined with the credentials of the kubeconfig."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from cli_mcp.api.endpoint import Endpoint
from cli_mcp.kubeconfig import Kubeconfig, KubernetesServer
from cli_mcp.proxy_config import AllowlistRouteConfig, OwnSecrets, ProxyConfig


@dataclass(frozen=True, slots=True)
class AllowlistRoute:
    """A host that gets requests as they are, without any credential."""

    endpoint: Endpoint
    allow_upgrades: bool = False


@dataclass(frozen=True, slots=True)
class KubernetesRoute:
    """An API server that gets the credential of the kubeconfig, whatever the client sent."""

    server: KubernetesServer
    own_secrets: OwnSecrets | None = None

    @property
    def endpoint(self) -> Endpoint:
        return self.server.endpoint


Route = AllowlistRoute | KubernetesRoute
RouteTable = Mapping[Endpoint, Route]


class InvalidRoutes(Exception):
    """Configuration and kubeconfig do not fit together; the message says where."""


def build_routes(config: ProxyConfig, kubeconfig: Kubeconfig | None) -> RouteTable:
    """The table of all routes. Raises InvalidRoutes when a Kubernetes route has no credential."""
    servers = {
        (server.endpoint, server.path): server for server in (kubeconfig.servers if kubeconfig else ())
    }
    routes: list[Route] = [_allowlist_route(route) for route in config.allowlist]
    for route in config.kubernetes:
        server = servers.get((route.endpoint, route.path))
        if server is None:
            refused = "".join(f"; refused {entry}" for entry in (kubeconfig.refused if kubeconfig else ()))
            raise InvalidRoutes(
                f"the kubeconfig has no usable token for https://{route.endpoint}{route.path}{refused}"
            )
        routes.append(KubernetesRoute(server, config.own_secrets))
    return {route.endpoint: route for route in routes}


def withdrawn(before: RouteTable, after: RouteTable) -> set[Endpoint]:
    """Endpoints whose requests may no longer be what they were allowed to be. A new credential or a new
    authority of the same server withdraws nothing."""
    return {where for where, route in before.items() if not _covers(after.get(where), route)}


def narrowed(table: RouteTable, config: ProxyConfig) -> RouteTable:
    """What of `table` the configuration still allows; nothing is added to it."""
    listed = {route.endpoint: _allowlist_route(route) for route in config.allowlist}
    servers = {(route.endpoint, route.path) for route in config.kubernetes}
    kept: dict[Endpoint, Route] = {}
    for where, route in table.items():
        if isinstance(route, KubernetesRoute):
            if (where, route.server.path) in servers:
                kept[where] = replace(route, own_secrets=config.own_secrets or route.own_secrets)
        elif where in listed:
            kept[where] = AllowlistRoute(where, route.allow_upgrades and listed[where].allow_upgrades)
    return kept


def _covers(after: Route | None, before: Route) -> bool:
    if isinstance(after, AllowlistRoute) and isinstance(before, AllowlistRoute):
        return after.allow_upgrades or not before.allow_upgrades
    if isinstance(after, KubernetesRoute) and isinstance(before, KubernetesRoute):
        return after.server.path == before.server.path
    return False


def _allowlist_route(config: AllowlistRouteConfig) -> AllowlistRoute:
    return AllowlistRoute(config.endpoint, config.allow_upgrades)
