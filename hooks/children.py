"""The children of an instance besides its sandbox pods: which there are, and the values their templates get.

| changed in the spec | what follows |
|---|---|
| replicas | server (and proxy, at most two) scale and roll nothing; disruption budgets come and go |
| serverContainer | the server rolls |
| ssh | the gateway rolls when its Secrets change; routes and keys are read at each login |
| proxy | routes are read again, in place; the proxy rolls when it gets or loses its Secret with a kubeconfig,
  sandboxes when the kubeconfig that they see changes |
| sandbox.image, env, resources, placement, dns, isolationTest, workspace.size | a new pool hash: unclaimed
  sandboxes retire and are replaced, claimed ones keep what they started with |
| sandbox.warmPoolSize, idleTimeout, max*, workspace.retain, tools | nothing rolls; the server reads it |

A new token, CA, TLS certificate or session key rolls nothing either: mounted directories are read again.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cli_mcp import names
from cli_mcp.api import pod as pod_api
from cli_mcp.api.instance import InstanceSpec
from cli_mcp.session_keys import SessionKey
from hooks.canonical import canonical_resources
from hooks.generated import GeneratedSecret, encoded_data
from hooks.routes import Routes
from hooks.settings import Settings
from hooks.ssh import authorized_keys_secrets, host_key_secret, routes_json
from hooks.templates import render
from hooks.wire import (
    CONFIG_MAP,
    DEPLOYMENT,
    NETWORK_POLICY,
    POD_DISRUPTION_BUDGET,
    ROLE,
    ROLE_BINDING,
    SERVICE,
    SERVICE_ACCOUNT,
    ChildKind,
    Manifest,
    Parent,
)

# One proxy or gateway carries hundreds of sandboxes; the second is there for when a node goes.
MAX_PROXY_REPLICAS = 2
MAX_SSH_REPLICAS = 2
DEFAULT_SERVER_RESOURCES = pod_api.Resources(
    requests={"cpu": "100m", "memory": "192Mi"}, limits={"memory": "1Gi"}
)

Values = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Inputs:
    """All that the children follow from."""

    parent: Parent
    spec: InstanceSpec
    settings: Settings
    routes: Routes
    dns_addresses: list[str]
    proxy_address: str | None
    session_keys: list[SessionKey] | None
    """None until the Secret has been observed."""
    leaving_keys: Mapping[str, str] = field(default_factory=dict)
    """Public keys, by file name, that stay published for a while though the Secret does not have them."""
    ca_certificates: str | None = None
    """Of the proxy's authority; None until the Secret has been observed."""
    address_to_restore: str | None = None
    """The ClusterIP that the proxy's Service is to get back."""
    remade_server_account: str = ""
    remade_ssh_account: str = ""
    """The uids of ServiceAccounts whose Deployments have to roll."""


@dataclass(frozen=True, slots=True)
class Child:
    """A child with a name of its own. `values` are those that this template needs besides the common ones."""

    kind: ChildKind
    template: str
    name: Callable[[names.InstanceNames], str]
    values: Callable[[Inputs], Values] = lambda inputs: {}
    wanted: Callable[[Inputs], bool] = lambda inputs: True


def _budget(component: str) -> Callable[[Inputs], Values]:
    def values(inputs: Inputs) -> Values:
        by_component = {
            names.COMPONENT_SERVER: inputs.parent.names.server,
            names.COMPONENT_PROXY: inputs.parent.names.proxy,
            names.COMPONENT_SSH: inputs.parent.names.ssh,
        }
        return {"component": component, "name": by_component[component]}

    return values


def _several_replicas(inputs: Inputs) -> bool:
    return inputs.spec.replicas > 1


def _has_ssh(inputs: Inputs) -> bool:
    return inputs.spec.ssh is not None


def _has_several_ssh_replicas(inputs: Inputs) -> bool:
    return _has_ssh(inputs) and _several_replicas(inputs)


CHILDREN = (
    Child(CONFIG_MAP, "proxy-config-map", lambda n: n.proxy, lambda i: _routes_values(i.routes)),
    Child(
        CONFIG_MAP,
        "session-keys-config-map",
        lambda n: n.session_keys,
        lambda i: {"public_keys": _public_keys(i)},
        wanted=lambda i: i.session_keys is not None,
    ),
    Child(CONFIG_MAP, "path-config-map", lambda n: n.path_report),
    Child(
        CONFIG_MAP,
        "proxy-ca-config-map",
        lambda n: n.proxy_ca,
        lambda i: {"certificates": i.ca_certificates},
        wanted=lambda i: i.ca_certificates is not None,
    ),
    Child(SERVICE, "server-service", lambda n: n.server),
    Child(
        SERVICE,
        "proxy-service",
        lambda n: n.proxy,
        lambda i: {"address_to_restore": i.address_to_restore or ""},
    ),
    Child(SERVICE_ACCOUNT, "server-service-account", lambda n: n.server),
    Child(SERVICE_ACCOUNT, "proxy-service-account", lambda n: n.proxy),
    Child(SERVICE_ACCOUNT, "sandbox-service-account", lambda n: n.sandbox),
    Child(SERVICE_ACCOUNT, "client-service-account", lambda n: n.client),
    Child(DEPLOYMENT, "server-deployment", lambda n: n.server, lambda i: _server_values(i)),
    Child(DEPLOYMENT, "proxy-deployment", lambda n: n.proxy, lambda i: _proxy_values(i)),
    Child(NETWORK_POLICY, "server-network-policy", lambda n: n.server),
    Child(NETWORK_POLICY, "proxy-network-policy", lambda n: n.proxy, lambda i: _dns_values(i)),
    Child(NETWORK_POLICY, "sandbox-network-policy", lambda n: n.sandbox, lambda i: _dns_values(i)),
    Child(
        POD_DISRUPTION_BUDGET,
        "disruption-budget",
        lambda n: n.server,
        _budget(names.COMPONENT_SERVER),
        wanted=_several_replicas,
    ),
    Child(
        POD_DISRUPTION_BUDGET,
        "disruption-budget",
        lambda n: n.proxy,
        _budget(names.COMPONENT_PROXY),
        wanted=_several_replicas,
    ),
    Child(ROLE, "server-role", lambda n: n.server, lambda i: {"persistent": persistent(i.spec)}),
    Child(ROLE, "client-role", lambda n: n.client),
    Child(ROLE_BINDING, "server-role-binding", lambda n: n.server),
    Child(ROLE_BINDING, "client-role-binding", lambda n: n.client),
    Child(CONFIG_MAP, "ssh-config-map", lambda n: n.ssh, lambda i: _ssh_values(i), wanted=_has_ssh),
    Child(SERVICE, "ssh-service", lambda n: n.ssh, lambda i: _ssh_values(i), wanted=_has_ssh),
    Child(SERVICE_ACCOUNT, "ssh-service-account", lambda n: n.ssh, wanted=_has_ssh),
    Child(DEPLOYMENT, "ssh-deployment", lambda n: n.ssh, lambda i: _ssh_values(i), wanted=_has_ssh),
    Child(NETWORK_POLICY, "ssh-network-policy", lambda n: n.ssh, wanted=_has_ssh),
    Child(ROLE_BINDING, "ssh-role-binding", lambda n: n.ssh, wanted=_has_ssh),
    Child(
        POD_DISRUPTION_BUDGET,
        "disruption-budget",
        lambda n: n.ssh,
        _budget(names.COMPONENT_SSH),
        wanted=_has_several_ssh_replicas,
    ),
)


def fixed_children(inputs: Inputs) -> list[Manifest]:
    """The children of the table that this instance has."""
    common = common_values(inputs)
    return [
        render(child.template, common | child.values(inputs)) for child in CHILDREN if child.wanted(inputs)
    ]


def server_config_map(inputs: Inputs, sandbox_config: str) -> Manifest:
    """The ConfigMap with sandbox.json, apart from the others since it depends on whether they are there."""
    common = common_values(inputs)
    return render("server-config-map", common | {"sandbox_config": sandbox_config})


def generated_secret(parent: Parent, secret: GeneratedSecret) -> Manifest:
    return render(
        "generated-secret",
        identity_values(parent)
        | {
            "name": secret.name,
            "component": secret.component,
            "rotated_for": secret.rotated_for,
            "data": encoded_data(secret.data),
        },
    )


def identity_values(parent: Parent) -> Values:
    """What every template needs: whose child it makes."""
    return {"instance": parent.name, "namespace": parent.namespace, "uid": parent.uid}


def common_values(inputs: Inputs) -> Values:
    """What most templates need besides."""
    n = inputs.parent.names
    return identity_values(inputs.parent) | {
        "names": {
            field: getattr(n, field)
            for field in (
                "server",
                "proxy",
                "proxy_ca",
                "session_key",
                "session_keys",
                "path_report",
                "sandbox",
                "client",
                "ssh",
                "tls",
            )
        },
        "image": inputs.settings.image,
        "openshift": inputs.settings.platform == "openshift",
        "token_review": inputs.settings.caller_authentication == "token-review",
        "ssh": inputs.spec.ssh is not None,
    }


def _routes_values(routes: Routes) -> Values:
    return {"kubeconfig": routes.kubeconfig, "proxy_config": routes.proxy_config}


def _public_keys(inputs: Inputs) -> list[Values]:
    files = {key.file_name: key.public_key for key in inputs.session_keys or ()} | dict(inputs.leaving_keys)
    return [{"file": file, "pem": pem} for file, pem in files.items()]


def _server_values(inputs: Inputs) -> Values:
    container = inputs.spec.server_container
    given = container.resources if container else pod_api.Resources()
    return {
        "replicas": inputs.spec.replicas,
        "account_uid": inputs.remade_server_account,
        "server_image_pull_policy": (container and container.image_pull_policy) or "",
        "server_resources": resources(given.with_defaults(DEFAULT_SERVER_RESOURCES)),
    }


def _proxy_values(inputs: Inputs) -> Values:
    proxy = inputs.spec.proxy
    target = proxy and proxy.kubernetes_target
    secret = (target.secret_name or inputs.parent.names.kubeconfig) if target else ""
    return {
        "proxy_replicas": min(inputs.spec.replicas, MAX_PROXY_REPLICAS),
        "kubeconfig_secret": secret,
    }


def _ssh_values(inputs: Inputs) -> Values:
    ssh = inputs.spec.ssh
    if ssh is None:
        return {}
    container = inputs.spec.server_container
    return {
        "account_uid": inputs.remade_ssh_account,
        "ssh_replicas": min(inputs.spec.replicas, MAX_SSH_REPLICAS),
        "ssh_routes": routes_json(ssh),
        "server_image_pull_policy": (container and container.image_pull_policy) or "",
        "authorized_keys_secrets": authorized_keys_secrets(ssh),
        "host_key_secret": host_key_secret(inputs.parent.names, ssh),
        "service_type": ssh.service.type,
        "node_port": ssh.service.node_port,
    }


def _dns_values(inputs: Inputs) -> Values:
    return {"dns_addresses": inputs.dns_addresses, "cluster_dns": inputs.spec.sandbox.dns == "cluster"}


def persistent(spec: InstanceSpec) -> bool:
    return spec.sandbox.workspace.persistent


def resources(given: pod_api.Resources) -> dict[str, dict[str, str]]:
    """As a container has them."""
    return canonical_resources({"limits": given.limits, "requests": given.requests})
