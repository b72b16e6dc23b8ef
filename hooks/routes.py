"""What the proxy is told to let through: the instance's targets joined with the non-secret part of its
kubeconfig.

A kubeconfig that went missing or bad takes no route away: the last good one stands until it is mended. A
target that the instance no longer lists goes at once.
"""

from dataclasses import dataclass
from functools import lru_cache

from cli_mcp import names
from cli_mcp.api.endpoint import Endpoint
from cli_mcp.api.instance import InstanceSpec, Proxy
from cli_mcp.kubeconfig import InvalidKubeconfig, Kubeconfig, dummy_kubeconfig, parse_kubeconfig
from cli_mcp.proxy_config import (
    AllowlistRouteConfig,
    InvalidProxyConfig,
    KubernetesRouteConfig,
    OwnSecrets,
    ProxyConfig,
    UpstreamConfig,
    parse_proxy_config,
)
from hooks.credentials import required_secrets
from hooks.generated import decoded_data
from hooks.problem import Problem, Reason
from hooks.wire import CONFIG_MAP, SECRET, HookRequest, Parent

_NO_KUBECONFIG = dummy_kubeconfig(Kubeconfig((), (), None), names.CA_PATH)
_CACHED_KUBECONFIGS = 256


@dataclass(frozen=True, slots=True)
class Routes:
    """The two keys of the proxy's ConfigMap. `reach` has a text for each endpoint that they let through to;
    `complete` says that every target has its routes. The proxy takes both over in place."""

    proxy_config: str
    kubeconfig: str
    reach: tuple[str, ...]
    complete: bool


def plan_routes(request: HookRequest, spec: InstanceSpec) -> tuple[Routes, list[Problem]]:
    """The routes, and what is wrong with the kubeconfig they come from."""
    proxy = spec.proxy
    if proxy is None:
        return _routes(ProxyConfig(), _NO_KUBECONFIG, complete=False), []
    if proxy.kubernetes_target is None:
        return _routes(_config(proxy), _NO_KUBECONFIG), []
    secret_name = proxy.kubernetes_target.secret_name or request.parent.names.kubeconfig
    own = _own_secrets(request.parent, spec, secret_name)
    kubeconfig, problems = _kubeconfig(request, secret_name)
    if kubeconfig is None or not kubeconfig.contexts:
        return _last_good(request, proxy, own), problems
    servers = tuple(
        KubernetesRouteConfig(host=server.endpoint.host, port=server.endpoint.port, path=server.path)
        for server in kubeconfig.servers
    )
    problems += [
        Problem(
            Reason.KUBECONFIG_INVALID,
            f"{where} is in an allowlist and in the kubeconfig of Secret {secret_name}; "
            "remove it from one of them",
        )
        for where in sorted(_allowlist(proxy).keys() & {route.endpoint for route in servers})
    ]
    problems += [
        Problem(
            Reason.KUBECONFIG_INVALID,
            f"the kubeconfig in Secret {secret_name} has the server {route.endpoint}, which is a pod's own "
            "loopback; write an address that pods reach, such as https://kubernetes.default.svc",
        )
        for route in servers
        if route.endpoint.is_loopback
    ]
    return _routes(_config(proxy, servers, own), dummy_kubeconfig(kubeconfig, names.CA_PATH)), problems


def _kubeconfig(request: HookRequest, secret_name: str) -> tuple[Kubeconfig | None, list[Problem]]:
    secret = request.related_object(SECRET, secret_name)
    if secret is None:
        return None, [
            Problem(
                Reason.SECRETS_NOT_FOUND,
                f"Secret {secret_name} is missing; create it with the key {names.KUBECONFIG_KEY}, "
                "a kubeconfig with bearer tokens",
            )
        ]
    text = decoded_data(secret).get(names.KUBECONFIG_KEY)
    if not text:
        return None, [
            Problem(
                Reason.SECRET_KEYS_INVALID,
                f"Secret {secret_name} has no key {names.KUBECONFIG_KEY}; put the kubeconfig there",
            )
        ]
    try:
        kubeconfig = _parsed(text)
    except InvalidKubeconfig as error:
        return None, [Problem(Reason.KUBECONFIG_INVALID, f"the kubeconfig in Secret {secret_name} {error}")]
    reasons = [str(entry) for entry in kubeconfig.refused]
    if not kubeconfig.contexts and not reasons:
        reasons = ["has no contexts; add one with cluster and user"]
    problems = [
        Problem(Reason.KUBECONFIG_INVALID, f"the kubeconfig in Secret {secret_name}: {'; '.join(reasons)}")
    ]
    return kubeconfig, problems if reasons else []


# Most syncs see the kubeconfig that the last one saw, and reading YAML and certificates is slow.
@lru_cache(maxsize=_CACHED_KUBECONFIGS)
def _parsed(text: str) -> Kubeconfig:
    return parse_kubeconfig(text)


def _own_secrets(parent: Parent, spec: InstanceSpec, kubeconfig_secret: str) -> OwnSecrets:
    """What the instance is made of: whoever has one of them is the instance, or logs in as anybody."""
    own = parent.names
    found = {kubeconfig_secret, own.proxy_ca, own.session_key, own.ssh_host_key}
    return OwnSecrets(
        namespace=parent.namespace, names=tuple(sorted(found | required_secrets(own, spec).keys()))
    )


def _config(
    proxy: Proxy, servers: tuple[KubernetesRouteConfig, ...] = (), own: OwnSecrets | None = None
) -> ProxyConfig:
    # An endpoint in both kinds of target is reported; meanwhile it is a Kubernetes server, with its path
    # rules.
    taken = {route.endpoint for route in servers}
    upstream = proxy.upstream
    return ProxyConfig(
        kubernetes=servers,
        allowlist=tuple(route for where, route in _allowlist(proxy).items() if where not in taken),
        upstream=UpstreamConfig(http_proxy=upstream.http_proxy, ca_bundle=upstream.ca_bundle)
        if upstream
        else UpstreamConfig(),
        own_secrets=own if servers else None,
    )


def _allowlist(proxy: Proxy) -> dict[Endpoint, AllowlistRouteConfig]:
    return {
        where: AllowlistRouteConfig(host=where.host, port=where.port, allow_upgrades=target.allow_upgrades)
        for target in proxy.targets
        for where in target.endpoints
    }


def _last_good(request: HookRequest, proxy: Proxy, own: OwnSecrets) -> Routes:
    """Today's allowlist with the Kubernetes routes that are in the cluster; without any it is not
    complete."""
    observed = request.child(CONFIG_MAP, request.parent.names.proxy)
    data = (observed or {}).get("data") or {}
    try:
        before = parse_proxy_config(data.get(names.PROXY_CONFIG_KEY, ""))
    except InvalidProxyConfig:
        before = ProxyConfig()  # there is none yet
    if not before.kubernetes or names.KUBECONFIG_KEY not in data:
        return _routes(_config(proxy), _NO_KUBECONFIG, complete=False)
    return _routes(_config(proxy, before.kubernetes, own), data[names.KUBECONFIG_KEY])


def _routes(config: ProxyConfig, kubeconfig: str, *, complete: bool = True) -> Routes:
    left_out = {"own_secrets"} if config.own_secrets is None else None
    written = config.model_dump_json(by_alias=True, exclude=left_out)
    return Routes(written, kubeconfig, config.reach(), complete)
