"""The `cli-mcp` command: a table of subcommands, each a module that is loaded only when it is called."""

import errno
import importlib
import os
import sys
from dataclasses import dataclass

from cli_mcp import __version__
from cli_mcp.exit_status import BROKEN_PIPE, FAILED, MEANINGS, NO_RESULT, OK, USAGE

# Of a write to stdout or stderr, which names no file.
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})


@dataclass(frozen=True, slots=True)
class Subcommand:
    """`module` has `main(arguments: list[str]) -> int`, the exit status, and parses its own arguments."""

    module: str
    summary: str


SUBCOMMANDS = {
    "local": Subcommand("local_runtime.main", "sandboxed shells over MCP on this machine"),
    "server": Subcommand("mcp_server.main", "the MCP server of an instance in a Kubernetes cluster"),
    "call": Subcommand("cli_mcp.client.call", "run one command in a session of a running server"),
    "shell": Subcommand("cli_mcp.client.shell", "an interactive prompt over the same tool"),
    "sessions": Subcommand("cli_mcp.client.sessions", "list your sessions of a running server, or end one"),
    "proxy": Subcommand("cred_proxy.main", "the credential proxy as a process of its own"),
    "ssh": Subcommand("ssh_gateway.main", "the SSH gateway as it runs in a cluster"),
    "ssh-config": Subcommand("ssh_gateway.config_command", "client configuration for an SSH gateway"),
    "hooks": Subcommand("hooks.main", "the reconcile webhooks that Metacontroller calls"),
    "render": Subcommand("hooks.render_command", "print the Kubernetes objects that an instance becomes"),
    "doctor": Subcommand("cli_mcp.doctor.command", "check an installation in a cluster"),
    "audit": Subcommand(
        "mcp_server.audit_command", "who sent which request, from what servers and proxies recorded"
    ),
    "validate": Subcommand("cli_mcp.validate", "check CliMcpInstance files"),
}


def main() -> int:
    """Entry point of the console script; returns the exit status.

    Wherever a subcommand writes, its reader may go away, and the disk behind a redirection may be full."""
    try:
        status = _exit_status(sys.argv[1:])
        if sys.stdout is not None:
            sys.stdout.flush()
        return status
    except BrokenPipeError:
        _drop_output()
        return BROKEN_PIPE
    except OSError as error:
        if error.errno not in _NO_ROOM or error.filename is not None:
            raise
        _drop_output()
        _complain(f"cli-mcp: cannot write the output: {os.strerror(error.errno)}")
        return NO_RESULT


def _exit_status(arguments: list[str]) -> int:
    """Of what ran; argparse ends --help and wrong arguments with an exception."""
    try:
        return run(arguments)
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
            return FAILED
        return int(end.code or OK)


def _drop_output() -> None:
    """What is left in the buffers would fail once more when the interpreter ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        if stream is None:
            continue
        try:
            stream.flush()
        except OSError:
            os.dup2(nowhere, stream.fileno())


def _complain(line: str) -> None:
    """On stderr, if that can be written to."""
    try:
        print(line, file=sys.stderr, flush=True)
    except OSError:
        _drop_output()


def run(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(usage())
        return OK if arguments else USAGE
    if arguments[0] in ("-V", "--version"):
        print(f"cli-mcp {__version__}")
        return OK
    name, *rest = arguments
    subcommand = SUBCOMMANDS.get(name)
    if subcommand is None:
        print(f"cli-mcp: {_no_subcommand(name)}. See cli-mcp --help", file=sys.stderr)
        return USAGE
    module = importlib.import_module(subcommand.module)
    status: int = module.main(rest)
    return status


def _no_subcommand(name: str) -> str:
    if "://" in name:
        return f"no subcommand {name!r}; to run a command there: cli-mcp call URL COMMAND"
    return f"no subcommand {name!r}; there is {', '.join(SUBCOMMANDS)}"


def usage() -> str:
    width = max(map(len, SUBCOMMANDS))
    lines = [f"  {name:<{width}}  {subcommand.summary}" for name, subcommand in SUBCOMMANDS.items()]
    statuses = [f"  {status:<{width}}  {meaning}" for status, meaning in MEANINGS.items()]
    return "\n".join(
        [
            "usage: cli-mcp SUBCOMMAND ...",
            "",
            *lines,
            "",
            "exit status:",
            *statuses,
            "",
            "cli-mcp SUBCOMMAND --help says more about each.",
        ]
    )
