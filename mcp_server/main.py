"""`cli-mcp server`: the MCP server of one instance in a cluster."""

import argparse
import asyncio
import ipaddress
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import aiohttp
from lightkube.config.kubeconfig import SingleConfig
from prometheus_client import CollectorRegistry

from cli_mcp import names
from cli_mcp.arguments import ArgumentParser
from cli_mcp.audit_budget import BudgetedLog, lines_to
from cli_mcp.log_budget import limit_repetitions
from cli_mcp.program import (
    allow_all_descriptors,
    cannot_listen,
    keep_out_of_garbage_collection,
    listen_address,
    stop_events,
)
from mcp_server.agents.client import AgentClient
from mcp_server.agents.signing import CallSigner
from mcp_server.app import build_app
from mcp_server.audit import write_calls_to
from mcp_server.authentication import Authenticator
from mcp_server.cluster.kube_config import kube_config
from mcp_server.cluster.kubernetes import KubernetesApi, Resource
from mcp_server.cluster.path_checks import Neighbours, PathChecks, network_probes
from mcp_server.cluster.program import CANNOT_START, add_instance_options, issuer_of, namespace_of
from mcp_server.cluster.sessions import PodSessions
from mcp_server.cluster.watch import Watch
from mcp_server.cluster_metrics import ClusterMetrics
from mcp_server.review_cache import ReviewAuthenticator
from mcp_server.reviews import SelfReviews, TokenReviews
from mcp_server.serving import serve
from mcp_server.settings import LOOPBACK_HOSTS, ServerSettings
from mcp_server.tls import InvalidCertificate, ServerCertificate

# A pod has 330 s to end, of which its preStop hook sleeps 5; a command may take 300.
DRAIN_SECONDS = 315.0

_EPILOG = """\
In a pod all but --instance comes with the Deployment that the operator makes. On another machine:

  cli-mcp server --instance demo --namespace team --listen 127.0.0.1:8443 --session-keys session-keys.json

with KUBECONFIG or --kubeconfig; `make run-server INSTANCE=demo NAMESPACE=team` fetches the keys and does
that. The machine must reach the IP addresses of pods. Clients send a Kubernetes token:

  kubectl -n team create token cli-mcp-demo-client
"""

log = logging.getLogger("cli_mcp.server")


@dataclass(frozen=True, slots=True)
class Arguments:
    """`host` is "" for all addresses of the machine."""

    instance: str
    namespace: str | None
    host: str
    port: int
    tls_dir: Path | None
    session_keys: Path
    kubeconfig: Path | None
    token_review: bool
    allowed_origins: frozenset[str]


def main(arguments: Sequence[str]) -> int:
    """Exit status 0 after a signal, 1 when the server cannot start, 2 for wrong arguments."""
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s", level=logging.INFO, stream=sys.stderr)
    limit_repetitions()
    # Theirs have a line for each request.
    for name in ("uvicorn", "aiohttp"):
        logging.getLogger(name).setLevel(logging.WARNING)
    parsed = parse_arguments(arguments)
    allow_all_descriptors()
    keep_out_of_garbage_collection()
    try:
        asyncio.run(_run(parsed, os.environ))
    except (*CANNOT_START, InvalidCertificate) as error:
        print(f"cli-mcp server: {error}", file=sys.stderr)
        return 1
    return 0


def parse_arguments(arguments: Sequence[str]) -> Arguments:
    parser = ArgumentParser(
        prog="cli-mcp server",
        description="The MCP server of one CliMcpInstance in a Kubernetes cluster.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_instance_options(parser)
    parser.add_argument(
        "--listen",
        type=listen_address,
        default=("", names.SERVER_PORT),
        metavar="[HOST]:PORT",
        help=f"default :{names.SERVER_PORT}, all addresses; without --tls-dir loopback only",
    )
    parser.add_argument(
        "--tls-dir", type=Path, metavar="DIR", help="tls.crt and tls.key; changed files are taken over"
    )
    parser.add_argument(
        "--token-review",
        action="store_true",
        help="take tokens made for this server alone, audience cli-mcp.redhat.com/NAMESPACE/INSTANCE; the "
        "server needs the ClusterRole system:auth-delegator",
    )
    parser.add_argument(
        "--allowed-origin",
        action="append",
        default=[],
        metavar="URL",
        help="scheme://host[:port] of a web page that may call; may be given again (default: none)",
    )
    values = parser.parse_args(arguments)
    host, port = values.listen
    if values.tls_dir is None and not is_loopback(host):
        parser.error(
            "callers' tokens must not cross a network in the clear: give --tls-dir, or "
            f"--listen 127.0.0.1:{port}"
        )
    return Arguments(
        values.instance,
        values.namespace,
        host,
        port,
        values.tls_dir,
        values.session_keys,
        values.kubeconfig,
        values.token_review,
        frozenset(values.allowed_origin),
    )


def is_loopback(host: str) -> bool:
    return host != "" and ipaddress.ip_address(host).is_loopback


def server_settings(arguments: Arguments) -> ServerSettings:
    """Host is checked on loopback only: load balancers and Routes have any name."""
    return ServerSettings(
        allowed_hosts=LOOPBACK_HOSTS if is_loopback(arguments.host) else None,
        allowed_origins=arguments.allowed_origins,
    )


async def _run(arguments: Arguments, environment: Mapping[str, str]) -> None:
    """Serve until a signal comes. Raises what CANNOT_START has, and InvalidCertificate."""
    stop, stop_now = stop_events()
    config = kube_config(arguments.kubeconfig)
    namespace = namespace_of(arguments.namespace, config, environment)
    registry = CollectorRegistry()
    metrics = ClusterMetrics(registry)
    agents = AgentClient(
        CallSigner(arguments.session_keys, issuer_of(environment)), on_error=metrics.agent_failed
    )
    certificate = ServerCertificate(arguments.tls_dir) if arguments.tls_dir else None
    audit_log = BudgetedLog(lines_to(sys.stdout))
    async with AsyncExitStack() as running:
        running.callback(audit_log.close)
        api = await running.enter_async_context(KubernetesApi.connected(config, metrics.kubernetes_request))
        authenticator = await _authenticator(arguments, config, namespace, metrics, running)
        sessions = PodSessions(
            api,
            agents,
            instance=arguments.instance,
            namespace=namespace,
            on_call=write_calls_to(audit_log),
        )
        backend = await running.enter_async_context(sessions.running())
        running.callback(agents.close)
        await _report_path(api, sessions, arguments.instance, namespace, environment, running)
        if certificate is not None:
            metrics.show_certificate(certificate)
            following = asyncio.create_task(certificate.follow())
            running.callback(following.cancel)
        try:
            await serve(
                build_app(
                    backend,
                    server_settings(arguments),
                    authenticator,
                    registry,
                    notice=lambda: certificate.problem if certificate else "",
                    offering=sessions.offering,
                ),
                arguments.host,
                arguments.port,
                drain_seconds=DRAIN_SECONDS,
                stop=stop,
                stop_now=stop_now,
                tls=certificate.context if certificate else None,
                on_bound=lambda port: log.info(
                    "instance %s in %s: serving MCP on port %d", arguments.instance, namespace, port
                ),
            )
        except OSError as error:
            raise cannot_listen(arguments.host, arguments.port, error) from None


async def _report_path(
    api: KubernetesApi,
    sessions: PodSessions,
    instance: str,
    namespace: str,
    environment: Mapping[str, str],
    running: AsyncExitStack,
) -> None:
    """Where this is a pod of the instance: another machine's view says nothing of it."""
    pod_name = environment.get("POD_NAME")
    if not pod_name:
        return
    neighbours = Neighbours()
    parts = f"{names.COMPONENT_PROXY},{names.COMPONENT_SERVER}"
    watch = Watch(
        api,
        Resource.core(namespace, "pods"),
        neighbours,
        labels=f"{names.LABEL_INSTANCE}={instance},{names.LABEL_COMPONENT} in ({parts})",
    )
    http = await running.enter_async_context(aiohttp.ClientSession(trust_env=False))
    checks = PathChecks(
        api,
        neighbours,
        names.InstanceNames(instance).path_report,
        namespace,
        pod_name,
        sessions.warm_addresses,
        network_probes(http),
    )
    for work in (watch.run(), checks.run()):
        running.callback(asyncio.create_task(work).cancel)


async def _authenticator(
    arguments: Arguments,
    config: SingleConfig,
    namespace: str,
    metrics: ClusterMetrics,
    running: AsyncExitStack,
) -> Authenticator:
    """By the callers' own tokens, sent by a client without any other credential, unless --token-review."""
    reviewing = config if arguments.token_review else config._replace(user=None)
    kind = TokenReviews if arguments.token_review else SelfReviews
    api = await running.enter_async_context(KubernetesApi.connected(reviewing))
    reviewer = kind(api, namespace, arguments.instance)
    return ReviewAuthenticator(reviewer, on_verdict=metrics.caller_reviewed)
