"""`cli-mcp ssh-config INSTANCE`: what clients need to know about an instance's SSH gateway.

From the state directory of local mode, or with a namespace or KUBECONFIG from the cluster.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cli_mcp import names
from cli_mcp.arguments import ArgumentParser
from cli_mcp.state_dir import own_state_directory
from ssh_gateway.access import (
    ACCESS_FILE,
    Access,
    MalformedAccess,
    described,
    example_username,
    from_json,
    known_hosts,
    mcp_clients,
    ssh_config,
)

FORMATS: Mapping[str, Callable[[Access, str], str]] = {
    "all": described,
    "known-hosts": lambda access, identity: known_hosts(access),
    "ssh-config": ssh_config,
    "mcp-json": lambda access, identity: mcp_clients(access)["Other clients"],
}


class NotFound(Exception):
    """No gateway of that name, or none that can be told the way to; the message says what to do."""


@dataclass(frozen=True, slots=True)
class _Options:
    instance: str
    namespace: str | None
    state_dir: Path
    host: str | None
    port: int | None
    user: str | None
    identity: str
    format: str


def main(arguments: Sequence[str]) -> int:
    options = _Options(**vars(_parser().parse_args(arguments)))
    try:
        access = _overridden(find(options), options)
    except NotFound as error:
        print(f"cli-mcp ssh-config: {error}", file=sys.stderr)
        return 1
    print(FORMATS[options.format](access, options.identity))
    return 0


def _parser() -> ArgumentParser:
    parser = ArgumentParser(
        prog="cli-mcp ssh-config", description="Client configuration for an instance's SSH gateway."
    )
    parser.add_argument("instance", metavar="INSTANCE")
    parser.add_argument(
        "-n", "--namespace", help="look in the cluster of KUBECONFIG, in this namespace, and not here"
    )
    parser.add_argument(
        "--state-dir", type=Path, default=own_state_directory(), metavar="DIR", help="of `cli-mcp local`"
    )
    parser.add_argument("--host", help="the name or address by which clients reach the gateway")
    parser.add_argument("--port", type=int)
    parser.add_argument("--user", metavar="USERNAME", help="each user name has a sandbox of its own")
    parser.add_argument(
        "--identity", default="~/.ssh/id_ed25519", metavar="FILE", help="the client's private key"
    )
    parser.add_argument("--format", choices=tuple(FORMATS), default="all", help="one part, for scripts")
    return parser


def find(options: _Options) -> Access:
    """Raises NotFound."""
    file = options.state_dir / options.instance / ACCESS_FILE
    if options.namespace is None and file.is_file():
        try:
            return from_json(file.read_text())
        except (OSError, MalformedAccess) as error:
            raise NotFound(f"{file} cannot be read: {error}") from None
    return _in_cluster(options)


def _overridden(access: Access, options: _Options) -> Access:
    given = {"host": options.host, "port": options.port, "username": options.user}
    changes: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    return replace(access, **changes)


def _in_cluster(options: _Options) -> Access:
    """Raises NotFound."""
    # Not needed, and not loaded, on a machine without a cluster.
    import httpx2
    from lightkube import Client
    from lightkube.core.exceptions import ApiError, ConfigError
    from lightkube.generic_resource import create_namespaced_resource
    from lightkube.resources.core_v1 import Service

    instances = create_namespaced_resource(names.GROUP, names.VERSION, names.KIND, names.PLURAL)
    try:
        client = Client(namespace=options.namespace) if options.namespace else Client()
        found = dict(client.get(instances, options.instance))
        check_has_gateway(found)
        service = client.get(Service, names.InstanceNames(options.instance).ssh)
    except ConfigError as error:
        raise NotFound(
            f"there is no {options.state_dir / options.instance / ACCESS_FILE}, which "
            f"`cli-mcp local --ssh` writes, and no cluster to ask: {error}"
        ) from None
    except ApiError as error:
        raise NotFound(f"the cluster answers: {error.status.message}") from None
    except httpx2.HTTPError as error:
        raise NotFound(f"the cluster cannot be reached: {error}") from None
    return from_objects(found, service.to_dict(), host=options.host)


def check_has_gateway(instance: Mapping[str, Any]) -> None:
    """Raises NotFound."""
    if not instance["spec"].get("ssh"):
        raise NotFound(f"{instance['metadata']['name']} has no SSH gateway; add spec.ssh with a route to it")


def from_objects(instance: Mapping[str, Any], service: Mapping[str, Any], *, host: str | None) -> Access:
    """The way to the gateway of an instance and its Service as the API shows them. Raises NotFound."""
    name = instance["metadata"]["name"]
    published = (instance.get("status") or {}).get("ssh") or {}
    if "knownHosts" not in published or "hostKeyFingerprint" not in published:
        raise NotFound(f"{name} has no host key in status.ssh. Is spec.ssh set, and the instance Ready?")
    cluster_name, _, public_key = published["knownHosts"].partition(" ")
    reached_at, port = _way_in(service, cluster_name, host)
    routes = instance["spec"]["ssh"]["routes"]
    return Access(
        instance=name,
        host=reached_at,
        port=port,
        public_key=public_key,
        fingerprint=published["hostKeyFingerprint"],
        username=example_username([route.get("username") for route in routes]),
    )


def _way_in(service: Mapping[str, Any], cluster_name: str, host: str | None) -> tuple[str, int]:
    """Host and port by the Service's type. Raises NotFound."""
    ports = service["spec"]["ports"][0]
    match service["spec"].get("type", "ClusterIP"):
        case "LoadBalancer":
            ingress = ((service.get("status") or {}).get("loadBalancer") or {}).get("ingress") or [{}]
            address = host or ingress[0].get("hostname") or ingress[0].get("ip")
            if not address:
                raise NotFound("the load balancer has no address yet; try again, or give one with --host")
            return address, ports["port"]
        case "NodePort":
            if not host:
                raise NotFound("the gateway is at a port of every node; give a node's address with --host")
            return host, ports["nodePort"]
        case _:
            return host or cluster_name, ports["port"]
