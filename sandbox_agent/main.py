"""The process that runs in every sandbox pod, as pid 1: serves the MCP server's signed calls.

Exit status: 143 after SIGTERM, 77 when the pod is not isolated, 1 when it cannot work at all.
"""

import argparse
import asyncio
import logging
import os
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from cli_mcp.execution import SandboxUnavailable
from cli_mcp.names import ISOLATION_FAILED_EXIT_CODE, WORKSPACE_PATH
from cli_mcp.program import keep_out_of_garbage_collection
from sandbox_agent import http_server, pid_one, seccomp
from sandbox_agent.agent import POD_UID_VARIABLE, Agent, AgentOptions, NotIsolated
from sandbox_agent.ed25519 import Ed25519Unavailable
from sandbox_agent.http_server import HttpServer
from sandbox_agent.reaper import Reaper

_log = logging.getLogger(__name__)

STOPPED_EXIT_CODE = 128 + signal.SIGTERM
"""As if the signal had ended it: of a container that ends with 0 the kubelet says that it succeeded, and
nothing of the eviction that it was ended for."""
_IPV6_ADDRESSES = Path("/proc/net/if_inet6")
_THREADS = 4
_LAST_ANSWERS_SECONDS = 1.0


def main(arguments: Sequence[str]) -> int:
    """Entry point; returns the exit status."""
    options = _parser().parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s", stream=sys.stderr)
    if options.install is not None:
        return _install(options.install)
    if not os.environ.get(POD_UID_VARIABLE):
        _log.error("the environment variable %s is missing: the uid of this pod", POD_UID_VARIABLE)
        return 1
    agent_options = AgentOptions(
        options.public_keys, options.state_dir, options.workspace, options.isolation_test
    )
    try:
        pid_one.protect()
        seccomp.load(seccomp.filter_program(families=seccomp.families_of_pod(_ipv6_addresses())))
        keep_out_of_garbage_collection()
        return asyncio.run(serve(options.listen, agent_options, os.environ))
    except NotIsolated as error:
        _log.error("%s", error)
        return ISOLATION_FAILED_EXIT_CODE
    except (OSError, Ed25519Unavailable, SandboxUnavailable, seccomp.UnsupportedArchitecture) as error:
        _log.error("the agent cannot work: %s", error)
        return 1


async def serve(
    address: tuple[str | None, int], options: AgentOptions, environment: Mapping[str, str]
) -> int:
    """Serve until told to stop. Raises what Agent and its make_ready raise."""
    loop = asyncio.get_running_loop()
    loop.set_default_executor(_started_threads(_THREADS))
    stop = asyncio.Event()
    pid_one.on_stop(lambda: loop.call_soon_threadsafe(stop.set))
    agent = Agent(options, environment)
    server = await HttpServer.start(agent.api, http_server.listen(*address))
    reaper = Reaper()
    stopped = asyncio.create_task(stop.wait())
    ready = asyncio.create_task(agent.make_ready())
    try:
        await asyncio.wait((stopped, ready), return_when=asyncio.FIRST_COMPLETED)
        if ready.done():
            ready.result()
            _log.info("ready")
            await stopped
        return STOPPED_EXIT_CODE
    finally:
        ready.cancel()
        await asyncio.gather(ready, return_exceptions=True)
        await agent.close()
        await server.close(_LAST_ANSWERS_SECONDS)
        reaper.close()


def _ipv6_addresses() -> str:
    try:
        return _IPV6_ADDRESSES.read_text()
    except FileNotFoundError:  # a kernel without IPv6
        return ""


def _started_threads(count: int) -> ThreadPoolExecutor:
    """All of them now: later the sandbox may have taken every process that the pod may have."""
    executor = ThreadPoolExecutor(count, thread_name_prefix="disk")
    all_there = threading.Barrier(count + 1)
    for _ in range(count):
        executor.submit(all_there.wait)
    all_there.wait()
    return executor


def _install(destination: Path) -> int:
    from sandbox_agent.install import HOME, install  # of no use to the agent itself

    try:
        install(HOME, destination)
    except OSError as error:
        _log.error("the agent cannot be copied to %s: %s", destination, error)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="sandbox-agent", description="The agent in a sandbox pod of cli-mcp."
    )
    parser.add_argument(
        "--listen", type=_address, default=(None, 8090), metavar="[HOST]:PORT", help="default :8090"
    )
    parser.add_argument(
        "--public-keys",
        type=Path,
        default=Path("/etc/cli-mcp/session-keys"),
        metavar="DIR",
        help="<kid>.pem, a file for each key that may sign calls",
    )
    parser.add_argument(
        "--state-dir", type=Path, default=Path("/run/cli-mcp"), metavar="DIR", help="outlives this process"
    )
    parser.add_argument(
        "--workspace", type=Path, default=Path(WORKSPACE_PATH), metavar="DIR", help="where the shell starts"
    )
    parser.add_argument(
        "--isolation-test",
        metavar="PROXYHOST",
        help="serve no call until nothing but the proxy can be reached",
    )
    parser.add_argument("--install", type=Path, metavar="DIR", help="copy the agent's files there, and exit")
    return parser


def _address(text: str) -> tuple[str | None, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal() or not 0 <= int(port) <= 65535:
        raise argparse.ArgumentTypeError("[HOST]:PORT expected")
    return host.removeprefix("[").removesuffix("]") or None, int(port)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
