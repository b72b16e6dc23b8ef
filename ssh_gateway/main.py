"""`cli-mcp ssh`: the SSH gateway of one instance in a cluster, with the MCP server's session code in it."""

import asyncio
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from cli_mcp.arguments import ArgumentParser
from cli_mcp.audit_budget import BudgetedLog, lines_to
from cli_mcp.log_budget import limit_repetitions
from cli_mcp.names import SSH_PORT
from cli_mcp.program import (
    allow_all_descriptors,
    cannot_listen,
    keep_out_of_garbage_collection,
    listen_address,
    stop_events,
)
from mcp_server.agents.client import AgentClient
from mcp_server.agents.signing import CallSigner
from mcp_server.audit import write_calls_to
from mcp_server.calls import RunningCalls
from mcp_server.catalogue import ALL_GROUPS, offer
from mcp_server.cluster.kube_config import kube_config
from mcp_server.cluster.kubernetes import KubernetesApi
from mcp_server.cluster.program import CANNOT_START, add_instance_options, issuer_of, namespace_of
from mcp_server.cluster.sessions import PodSessions
from mcp_server.metrics import Metrics
from mcp_server.tool_calls import ToolCalls
from ssh_gateway.audit import write_audit_to
from ssh_gateway.authorization import Authorizer, routes_in
from ssh_gateway.gateway import SESSION_HINT, Gateway
from ssh_gateway.host_key import HostKeyProblem, load_host_key

# A pod has 330 s to end, of which its preStop hook sleeps 5; a command may take 300, answers some more.
DRAIN_SECONDS = 310.0
_PROGRESS_INTERVAL_SECONDS = 1.0

log = logging.getLogger("cli_mcp.ssh")


@dataclass(frozen=True, slots=True)
class Arguments:
    """`listen` is an address, "" for all of them, and a port."""

    instance: str
    namespace: str | None
    listen: tuple[str, int]
    routes: Path
    authorized_keys_dir: Path
    host_key: Path
    session_keys: Path
    kubeconfig: Path | None


def main(arguments: Sequence[str]) -> int:
    """Exit status 0 after a signal, 1 when the gateway cannot start, 2 for wrong arguments."""
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s", level=logging.INFO, stream=sys.stderr)
    limit_repetitions()
    parsed = parse_arguments(arguments)
    allow_all_descriptors()
    keep_out_of_garbage_collection()
    try:
        asyncio.run(_run(parsed, os.environ))
    except (*CANNOT_START, HostKeyProblem) as error:
        print(f"cli-mcp ssh: {error}", file=sys.stderr)
        return 1
    return 0


def parse_arguments(arguments: Sequence[str]) -> Arguments:
    parser = ArgumentParser(
        prog="cli-mcp ssh",
        description="The SSH gateway of one CliMcpInstance. In a pod all arguments come with the Deployment "
        "that the operator makes. Audit records go to stdout, messages to stderr.",
    )
    add_instance_options(parser)
    parser.add_argument(
        "--listen",
        type=listen_address,
        default=("", SSH_PORT),
        metavar="[HOST]:PORT",
        help=f"default :{SSH_PORT}",
    )
    parser.add_argument(
        "--routes", type=Path, required=True, metavar="FILE", help="ssh-routes.json; read at each login"
    )
    parser.add_argument(
        "--authorized-keys-dir",
        type=Path,
        required=True,
        metavar="DIR",
        help="has NAME/authorized_keys for each Secret that a route names; read at each login",
    )
    parser.add_argument(
        "--host-key", type=Path, required=True, metavar="FILE", help="Ed25519, without a passphrase"
    )
    return Arguments(**vars(parser.parse_args(arguments)))


async def _run(arguments: Arguments, environment: Mapping[str, str]) -> None:
    """Serve until a signal comes. Raises what CANNOT_START has, and HostKeyProblem."""
    stop, stop_now = stop_events()
    host_key = load_host_key(arguments.host_key)
    config = kube_config(arguments.kubeconfig)
    namespace = namespace_of(arguments.namespace, config, environment)
    agents = AgentClient(CallSigner(arguments.session_keys, issuer_of(environment)))
    audit_log = BudgetedLog(lines_to(sys.stdout))
    async with AsyncExitStack() as running:
        running.callback(audit_log.close)
        api = await running.enter_async_context(KubernetesApi.connected(config))
        sessions = PodSessions(
            api,
            agents,
            instance=arguments.instance,
            namespace=namespace,
            on_call=write_calls_to(audit_log),
        )
        backend = await running.enter_async_context(sessions.running())
        running.callback(agents.close)
        calls = RunningCalls()
        metrics = Metrics(
            sessions=backend.session_count, warm_sandboxes=backend.warm_count, running_calls=calls.__len__
        )
        gateway = Gateway(
            ToolCalls(backend, calls, metrics, progress_interval_seconds=_PROGRESS_INTERVAL_SECONDS),
            offer(lambda: replace(sessions.offering(), groups=ALL_GROUPS), SESSION_HINT),
            calls,
            backend.hold,
            Authorizer(routes_in(arguments.routes), arguments.authorized_keys_dir, lambda: datetime.now(UTC)),
            host_key,
            write_audit_to(audit_log),
        )
        host, port = arguments.listen
        try:
            await gateway.serve(
                host,
                port,
                drain_seconds=DRAIN_SECONDS,
                stop=stop,
                stop_now=stop_now,
                on_bound=lambda bound: log.info(
                    "instance %s in %s: serving SSH on port %d, host key %s",
                    arguments.instance,
                    namespace,
                    bound,
                    host_key.fingerprint,
                ),
            )
        except OSError as error:
            raise cannot_listen(host, port, error) from None
