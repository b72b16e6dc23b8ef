"""The `cli-mcp` command: a table of subcommands, each a module that is loaded only when it is called."""

import importlib
import sys
from dataclasses import dataclass

from cli_mcp import __version__


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
    "proxy": Subcommand("cred_proxy.main", "the credential proxy as a process of its own"),
    "ssh": Subcommand("ssh_gateway.main", "the SSH gateway as it runs in a cluster"),
    "ssh-config": Subcommand("ssh_gateway.config_command", "client configuration for an SSH gateway"),
    "hooks": Subcommand("hooks.main", "the reconcile webhooks that Metacontroller calls"),
    "render": Subcommand("hooks.render_command", "print the Kubernetes objects that an instance becomes"),
    "doctor": Subcommand("cli_mcp.doctor.command", "check an installation in a cluster"),
    "audit": Subcommand("mcp_server.audit_command", "who sent which request, from the logs of a cluster"),
    "validate": Subcommand("cli_mcp.validate", "check CliMcpInstance files"),
}


def main() -> int:
    """Entry point of the console script; returns the exit status."""
    return run(sys.argv[1:])


def run(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(usage())
        return 0 if arguments else 2
    if arguments[0] in ("-V", "--version"):
        print(f"cli-mcp {__version__}")
        return 0
    name, *rest = arguments
    subcommand = SUBCOMMANDS.get(name)
    if subcommand is None:
        print(f"cli-mcp: no subcommand {name!r}.\n\n{usage()}", file=sys.stderr)
        return 2
    module = importlib.import_module(subcommand.module)
    status: int = module.main(rest)
    return status


def usage() -> str:
    width = max(map(len, SUBCOMMANDS))
    lines = [f"  {name:<{width}}  {subcommand.summary}" for name, subcommand in SUBCOMMANDS.items()]
    return "\n".join(
        ["usage: cli-mcp SUBCOMMAND ...", "", *lines, "", "cli-mcp SUBCOMMAND --help says more about each."]
    )
