"""`cli-mcp local`: sandboxed shells over MCP on this machine, for one CliMcpInstance file."""

import argparse
import asyncio
import contextlib
import ipaddress
import logging
import os
import shlex
import shutil
import signal
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry

from cli_mcp.api import quantity
from cli_mcp.api.document import UnreadableYaml, load_instance
from cli_mcp.api.instance import CliMcpInstance
from cli_mcp.api.problems import InvalidInstance
from cli_mcp.arguments import ArgumentParser
from cli_mcp.audit_budget import BudgetedLog
from cli_mcp.log_budget import limit_repetitions
from cli_mcp.program import (
    STOP_SIGNALS,
    CannotStart,
    allow_all_descriptors,
    cannot_listen,
    keep_out_of_garbage_collection,
    stop_events,
)
from cli_mcp.sandbox_environment import SYSTEM_FILES, with_defaults
from cli_mcp.state_dir import TOKEN_FILE, own_state_directory
from cred_proxy.audit import write_audit_to
from local_runtime import bubblewrap, cgroups, loop_devices, probe, screen, stdio
from local_runtime.audit_file import AuditFile
from local_runtime.cgroups import Cgroups, Limits
from local_runtime.egress import Egress, EgressProblem
from local_runtime.environment import (
    EnvironmentProblem,
    SecretFiles,
    instance_environment,
    overridden_names,
)
from local_runtime.images import NoImages
from local_runtime.probe import NotPossible
from local_runtime.sandbox import SandboxFactory, SandboxSettings
from local_runtime.sessions import LocalSessions, SessionLimits
from local_runtime.state import URL_FILE, StateDirectory, StateInUse
from local_runtime.stdio import UnusableInput
from local_runtime.tool_helper import tool_program
from mcp_server.app import build_app
from mcp_server.audit import write_calls_to
from mcp_server.authentication import Authenticator, NoAuthentication, StaticToken
from mcp_server.catalogue import Offering
from mcp_server.serving import serve
from mcp_server.settings import LOOPBACK_HOSTS, ServerSettings
from sandbox_agent import seccomp

if TYPE_CHECKING:
    from local_runtime.ssh import LocalSsh
    from ssh_gateway.access import Access

log = logging.getLogger("cli_mcp.local")

SAMPLE = Path(__file__).with_name("sample.yaml")
DRAIN_SECONDS = 10.0
# A pod has the limit of its node (podPidsLimit); threads count, and a JVM or a test runner has hundreds.
PROCESSES_PER_SESSION = 1024


@dataclass(frozen=True, slots=True)
class Arguments:
    file: Path | None
    """None is the sample that comes with the program."""
    host: str
    port: int
    state_dir: Path | None
    secrets_dir: Path | None
    token_file: Path | None
    no_auth: bool
    ssh: tuple[str, int] | None = None
    stdio: bool = False
    print_config: bool = False
    log_commands: bool = False


def main(arguments: Sequence[str]) -> int:
    """Exit status 0 after a signal, 1 when the server cannot start, 2 for wrong arguments."""
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s", level=logging.INFO, stream=sys.stderr)
    limit_repetitions()
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    parsed = parse_arguments(arguments)
    try:
        instance = read_instance(parsed.file)
        if parsed.print_config:
            print(_running_config(parsed, instance))
            return 0
        probe.check_platform()
        mounts = _own_mounts()
        asyncio.run(_run(parsed, instance, mounts))
    except (
        CannotStart,
        EgressProblem,
        EnvironmentProblem,
        StateInUse,
        NotPossible,
        UnusableInput,
    ) as error:
        print(f"cli-mcp local: {error}", file=sys.stderr)
        return 1
    return 0


def parse_arguments(arguments: Sequence[str]) -> Arguments:
    parser = ArgumentParser(prog="cli-mcp local", description="Sandboxed shells over MCP on this machine.")
    parser.add_argument(
        "file", type=Path, nargs="?", metavar="FILE", help="a CliMcpInstance file (default: a sample)"
    )
    parser.add_argument(
        "--stdio",
        action="store_true",
        help="speak MCP on stdin and stdout, for a client that starts this; its sandbox ends with it",
    )
    parser.add_argument(
        "--print-config",
        action="store_true",
        help="print what clients need to reach the server that runs, with its token, and end",
    )
    parser.add_argument(
        "--listen",
        type=listen_address,
        default=("127.0.0.1", 8080),
        metavar="HOST:PORT",
        help="loopback address (default 127.0.0.1:8080; port 0 takes any free one)",
    )
    parser.add_argument("--state-dir", type=Path, metavar="DIR", help=f"default {own_state_directory()}")
    parser.add_argument(
        "--secrets-dir", type=Path, metavar="DIR", help="keys of Secrets and ConfigMaps: files NAME/KEY"
    )
    parser.add_argument(
        "--ssh",
        type=ssh_address,
        metavar="HOST:PORT",
        help="let in by SSH, too, whom spec.ssh.routes says; keys are in the --secrets-dir",
    )
    parser.add_argument(
        "--log-commands",
        action="store_true",
        help="write the text of commands to the audit file, too; it may hold secrets",
    )
    who = parser.add_mutually_exclusive_group()
    who.add_argument("--token-file", type=Path, metavar="FILE", help="the token that clients must send")
    who.add_argument("--no-auth", action="store_true", help="let every program on this machine in")
    values = parser.parse_args(arguments)
    if values.stdio and (values.ssh or values.no_auth or values.token_file or values.print_config):
        parser.error("--stdio goes without --ssh, --token-file, --no-auth and --print-config")
    host, port = values.listen
    return Arguments(
        values.file,
        host,
        port,
        values.state_dir,
        values.secrets_dir,
        values.token_file,
        values.no_auth,
        values.ssh,
        values.stdio,
        values.print_config,
        values.log_commands,
    )


def listen_address(text: str) -> tuple[str, int]:
    """A loopback address and port. Raises argparse.ArgumentTypeError."""
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]") or "127.0.0.1"
    if not port.isdecimal() or int(port) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is no HOST:PORT")
    if host == "localhost":
        return "127.0.0.1", int(port)
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{host!r} is no IP address; give 127.0.0.1 or [::1]") from None
    if not address.is_loopback:
        raise argparse.ArgumentTypeError(
            f"{host} can be reached from other machines, and over plain HTTP the token could be read on the "
            "way. Listen on 127.0.0.1 and let an SSH tunnel or a TLS proxy forward to it"
        )
    return host, int(port)


def ssh_address(text: str) -> tuple[str, int]:
    """Any address of this machine and a port: SSH is made for networks. Raises argparse.ArgumentTypeError."""
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not port.isdecimal() or int(port) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is no HOST:PORT")
    return host or "127.0.0.1", int(port)


def read_instance(file: Path | None) -> CliMcpInstance:
    """Of the sample without a file. Raises CannotStart."""
    file = file or SAMPLE
    try:
        return load_instance(file.read_text())
    except OSError as error:
        raise CannotStart(f"{file}: {error.strerror}") from None
    except (UnreadableYaml, UnicodeDecodeError) as error:
        raise CannotStart(f"{file}: {error}") from None
    except InvalidInstance as error:
        raise CannotStart(f"{file} is not valid. 'cli-mcp validate {file}' says where:\n{error}") from None


def _own_mounts() -> str | None:
    """Why this process cannot mount what nobody else sees, if it cannot. Before the first thread."""
    if os.geteuid() != 0:
        return "it takes root"
    try:
        loop_devices.use_own_mount_namespace()
    except OSError as error:
        return error.strerror
    return None


async def _run(arguments: Arguments, instance: CliMcpInstance, no_mounts: str | None) -> None:
    """Serve until a signal comes. Raises CannotStart, EgressProblem, EnvironmentProblem, StateInUse,
    NotPossible."""
    _prepare_process()
    variables = instance.spec.sandbox.env
    files = SecretFiles(arguments.secrets_dir)
    environment = instance_environment(variables, files)
    for name in overridden_names(variables):
        log.warning("spec.sandbox.env: %s is set by cli-mcp itself; the value in the file is not used", name)
    root = arguments.state_dir or own_state_directory()
    try:
        state = (
            StateDirectory.open_for_stdio(root)
            if arguments.stdio
            else StateDirectory.open(root / instance.metadata.name)
        )
    except OSError as error:
        raise CannotStart(
            f"the state directory {root} cannot be used: {error.strerror} ({error.filename}); "
            "choose another one with --state-dir"
        ) from None
    state = _with_file_systems(state, instance, no_mounts)
    try:
        registry = CollectorRegistry()
        ssh = _local_ssh(arguments, instance, state)
        audit_file = AuditFile(state.audit_file)
        audit = BudgetedLog(audit_file.write_line)
        egress = Egress(instance, files, state, audit=write_audit_to(audit), registry=registry)
        try:
            await _serve(arguments, instance, state, egress, environment, registry, ssh, audit)
        finally:
            await egress.close()
            audit.close()
            audit_file.close()
    finally:
        if arguments.stdio:
            state.destroy()
        else:
            state.close()


async def _serve(
    arguments: Arguments,
    instance: CliMcpInstance,
    state: StateDirectory,
    egress: Egress,
    environment: dict[str, str],
    registry: CollectorRegistry,
    ssh: "LocalSsh | None",
    audit: BudgetedLog,
) -> None:
    own_uids = os.geteuid() == 0
    probe.check_state(state, own_uids=own_uids)
    groups = _control_groups(state)
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(asyncio.to_thread, groups.remove)
        typed_tools = ssh is not None or set(instance.spec.tools) != {"bash"}
        settings = _settings(instance, state, environment, own_uids=own_uids, typed_tools=typed_tools)
        factory = SandboxFactory(state, groups, egress, settings)
        stack.push_async_callback(factory.close)
        await probe.check_sandbox(
            factory,
            hidden=(
                state.path,
                Path.home(),
                Path(sys.prefix),
                *([arguments.file.resolve()] if arguments.file else []),
            ),
        )
        sessions = LocalSessions(
            state,
            factory,
            session_limits(instance),
            warm_pool_size=instance.spec.sandbox.warm_pool_size,
            remark=egress.problem,
            on_call=write_calls_to(audit, with_commands=arguments.log_commands),
        )
        sessions.start()
        stack.push_async_callback(sessions.close)
        unused = screen.unused_fields(
            instance, ssh_served=ssh is not None, cpu_limited="cpu" in groups.controllers
        )
        await _serve_sessions(arguments, instance, state, egress, sessions, registry, ssh, audit, unused)


async def _serve_sessions(
    arguments: Arguments,
    instance: CliMcpInstance,
    state: StateDirectory,
    egress: Egress,
    sessions: LocalSessions,
    registry: CollectorRegistry,
    ssh: "LocalSsh | None",
    audit: BudgetedLog,
    unused: Sequence[str],
) -> None:
    def offering() -> Offering:
        per_caller = instance.spec.default_session == "perCaller"
        commands = instance.spec.sandbox.command_limits
        return Offering(instance.spec.tools, egress.reach.config.reach(), per_caller, commands)

    stop, stop_now = stop_events(_stop_signals())
    if arguments.stdio:
        app = build_app(sessions, ServerSettings(), NoAuthentication(), registry, offering=offering)
        await stdio.serve(app, offering, sessions.hold, stop)
        return
    token, token_file = _token(arguments, state)
    authenticator: Authenticator = NoAuthentication() if token is None else StaticToken(token)
    settings = ServerSettings(allowed_hosts=LOOPBACK_HOSTS | {arguments.host})
    app = build_app(sessions, settings, authenticator, registry, offering=offering)

    def announce(port: int) -> None:
        host = f"[{arguments.host}]" if ":" in arguments.host else arguments.host
        access = screen.Access(f"http://{host}:{port}/mcp", token, token_file, _typed_program())
        state.url_file.write_text(f"{access.url}\n")
        print(
            screen.first_screen(
                access,
                stdio=_stdio_command(arguments),
                again=shlex.join(
                    [access.program, "local", *_instance_arguments(arguments), "--print-config"]
                ),
                state_dir=arguments.state_dir,
                reach=egress.reach.config.reach(),
                audit_file=state.audit_file,
                unused=unused,
                ssh=ssh_access,
            ),
            flush=True,
        )

    ssh_access: Access | None = None
    async with contextlib.AsyncExitStack() as stack:
        if ssh is not None and arguments.ssh is not None:
            gateway = ssh.gateway(app, sessions, offering, audit)
            serving = gateway.serving(
                *arguments.ssh, drain_seconds=DRAIN_SECONDS, stop=stop, stop_now=stop_now
            )
            with _cannot_listen("--ssh", *arguments.ssh):
                ssh_access = ssh.publish(arguments.ssh[0], await stack.enter_async_context(serving))
        with _cannot_listen("--listen", arguments.host, arguments.port):
            await serve(
                app,
                arguments.host,
                arguments.port,
                drain_seconds=DRAIN_SECONDS,
                stop=stop,
                stop_now=stop_now,
                on_bound=announce,
            )


@contextlib.contextmanager
def _cannot_listen(option: str, host: str, port: int) -> Iterator[None]:
    """Raises CannotStart in place of the OSError of an address that cannot be had."""
    try:
        yield
    except OSError as error:
        raise cannot_listen(host, port, error, option) from None


def _local_ssh(arguments: Arguments, instance: CliMcpInstance, state: StateDirectory) -> "LocalSsh | None":
    """What --ssh needs; None without it. Raises CannotStart."""
    if arguments.ssh is None:
        return None
    # It brings an SSH library: a quarter of a second for those who asked for it.
    from local_runtime.ssh import LocalSsh, SshProblem

    try:
        return LocalSsh(instance, arguments.secrets_dir, state)
    except SshProblem as error:
        raise CannotStart(str(error)) from None


def _settings(
    instance: CliMcpInstance,
    state: StateDirectory,
    environment: dict[str, str],
    *,
    own_uids: bool,
    typed_tools: bool,
) -> SandboxSettings:
    """Raises OSError."""
    program = bubblewrap.find_bubblewrap()
    system = bubblewrap.system_files()
    return SandboxSettings(
        program=state.program_for_sandboxes(program) if own_uids else program,
        system=system,
        read_only={
            inside: state.write_system_file(Path(inside).name, text)
            for inside, text in {**bubblewrap.ACCOUNT_FILES, **SYSTEM_FILES}.items()
        },
        environment=with_defaults({"PATH": bubblewrap.DEFAULT_PATH, **environment}),
        seccomp=seccomp.filter_program(),
        limits=resource_limits(instance),
        workspace_bytes=instance.spec.sandbox.limits.ephemeral_storage_bytes,
        own_uids=own_uids,
        output_bytes=instance.spec.sandbox.command_limits.output_bytes,
        tools=tool_program(system, state.system, own_uids=own_uids) if typed_tools else None,
    )


def resource_limits(instance: CliMcpInstance) -> Limits:
    resources = instance.spec.sandbox.effective_resources
    return Limits(
        memory_bytes=instance.spec.sandbox.limits.memory_bytes,
        processes=PROCESSES_PER_SESSION,
        cpu_shares=cgroups.cpu_shares(quantity.parse_millicores(resources.requests["cpu"])),
        # The default is for many pods on a node, not for somebody's own machine.
        cpu_millicores=instance.spec.sandbox.limits.cpu_millicores if screen.limits_cpu(instance) else None,
    )


def session_limits(instance: CliMcpInstance) -> SessionLimits:
    sandbox = instance.spec.sandbox
    return SessionLimits(
        idle_seconds=sandbox.idle_timeout_seconds,
        lifetime_seconds=sandbox.max_lifetime_seconds,
        sessions=sandbox.max_sessions,
        sessions_per_owner=sandbox.max_sessions_per_owner,
    )


def _with_file_systems(
    state: StateDirectory, instance: CliMcpInstance, no_mounts: str | None
) -> StateDirectory:
    try:
        if no_mounts is not None:
            raise NoImages(no_mounts)
        return state.with_file_systems(instance.spec.sandbox.limits.ephemeral_storage_bytes)
    except NoImages as reason:
        log.warning(
            "no workspace can have a file system of its own here (%s): what a session writes is measured, "
            "and it can be over its limit for a moment before it is stopped",
            reason,
        )
        return state


def _control_groups(state: StateDirectory) -> Cgroups:
    """The control groups of this state directory; what cannot be limited is logged."""
    groups = cgroups.prepare(cgroups.group_name(state.path), cgroups.own_mounts())
    for controller, consequence in _WITHOUT.items():
        if controller not in groups.controllers:
            log.warning("no control group for %s can be made here: %s", controller, consequence)
    return groups


_WITHOUT = {
    "memory": "memory is limited for each process of a session, not for all of them together; memory that "
    "processes share (memfd, shared mappings, System V) and the buffers of sockets and pipes are not limited",
    "pids": "processes are limited by RLIMIT_NPROC alone",
    "cpu": "a busy session can slow down the others and the server",
}


def _running_config(arguments: Arguments, instance: CliMcpInstance) -> str:
    """What clients of the server that runs in the state directory need. Raises CannotStart."""
    directory = (arguments.state_dir or own_state_directory()) / instance.metadata.name
    try:
        url = (directory / URL_FILE).read_text().strip()
    except (OSError, UnicodeDecodeError):
        raise CannotStart(
            f"no server runs in {directory}; start it with the same arguments, without --print-config"
        ) from None
    token_file = arguments.token_file or directory / TOKEN_FILE
    try:
        token = None if arguments.no_auth else token_file.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise CannotStart(f"the token in {token_file} cannot be read: {error}") from None
    return screen.configuration(screen.Access(url, token), _stdio_command(arguments))


def _stdio_command(arguments: Arguments) -> list[str]:
    """What an MCP client starts, from whatever directory it is in."""
    program = shutil.which(sys.argv[0]) or sys.argv[0]
    return [str(Path(program).absolute()), "local", *_instance_arguments(arguments), "--stdio"]


def _instance_arguments(arguments: Arguments) -> list[str]:
    """Those that say which instance, and where its files are."""
    paths = {"--state-dir": arguments.state_dir, "--secrets-dir": arguments.secrets_dir}
    options = [word for name, path in paths.items() if path for word in (name, str(path.absolute()))]
    return [*([str(arguments.file.absolute())] if arguments.file else []), *options]


def _typed_program() -> str:
    """`cli-mcp` where the PATH leads here; otherwise as it was called, such as .venv/bin/cli-mcp."""
    found, called = shutil.which("cli-mcp"), sys.argv[0]
    return "cli-mcp" if found and Path(found).resolve() == Path(called).resolve() else called


def _token(arguments: Arguments, state: StateDirectory) -> tuple[str | None, Path | None]:
    """The token that clients must send, and its file. Raises CannotStart."""
    if arguments.no_auth:
        return None, None
    if arguments.token_file is None:
        return state.token(), state.token_file
    try:
        token = arguments.token_file.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise CannotStart(f"--token-file {arguments.token_file}: {error}") from None
    if not token or not token.isascii() or any(character.isspace() for character in token):
        raise CannotStart(
            f"--token-file {arguments.token_file}: the token must be one word of ASCII characters; "
            "make one with: openssl rand -hex 32"
        )
    return token, arguments.token_file.resolve()


def _stop_signals() -> list[signal.Signals]:
    """With SIGHUP, the closed terminal, unless nohup(1) had it ignored."""
    hung_up = [signal.SIGHUP] if signal.getsignal(signal.SIGHUP) == signal.SIG_DFL else []
    return [*STOP_SIGNALS, *hung_up]


def _prepare_process() -> None:
    # What nohup(1) or a script's `&` had this process ignore, its children would ignore too, and SIGINT could
    # end no command in a sandbox. A handler has no effect either, and is not inherited.
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, lambda *_: None)
    allow_all_descriptors()
    keep_out_of_garbage_collection()
    if sys.version_info < (3, 12):
        # The default would be a thread for every sandbox.
        watcher = asyncio.PidfdChildWatcher()
        watcher.attach_loop(asyncio.get_running_loop())
        asyncio.set_child_watcher(watcher)
