"""The first screen of local mode: how to connect, ready to paste, and what sandboxes can do. Pure text."""

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from cli_mcp.api.instance import CliMcpInstance
from ssh_gateway.access import Access as SshAccess

SERVER_NAME = "cli-mcp"
NO_REACH = "nothing: spec.proxy.targets lists no host"


@dataclass(frozen=True, slots=True)
class Access:
    """Where the server is and what it wants to see; `token` is None when it asks for none."""

    url: str
    token: str | None = None
    token_file: Path | None = None
    program: str = "cli-mcp"
    """What a person types to run this program again."""

    def headers(self, session: str) -> dict[str, str]:
        authorization = {} if self.token is None else {"Authorization": f"Bearer {self.token}"}
        return {**authorization, "X-Session-ID": session}


def first_screen(
    access: Access,
    *,
    stdio: Sequence[str],
    again: str,
    state_dir: Path | None = None,
    reach: Sequence[str],
    audit_file: Path,
    unused: Sequence[str],
    ssh: SshAccess | None = None,
) -> str:
    """`stdio` is the command that serves one client, `again` the one that prints the configurations of this
    server; `state_dir` was given by --state-dir. `reach` are the endpoints that sandboxes can reach, a line
    each, `audit_file` has a line for each of their requests, `unused` are fields of the instance without
    effect here, and `ssh` is the other way in."""
    lines = [
        f"Sandboxed shells over MCP: {access.url}",
        _field("token", [str(access.token_file or "none: every program on this machine may connect")]),
        _field("sandboxes reach", reach or [NO_REACH]),
        _field("audit log", [str(audit_file)]),
    ]
    if ssh is not None:
        lines.append(_field("SSH", [f"{ssh.host} port {ssh.port}, host key {ssh.fingerprint}"]))
    if unused:
        lines.append(_field("not used here", [", ".join(unused)]))
    blocks = {
        **stdio_clients(stdio),
        "This server, over HTTP": _json(
            {"mcpServers": {SERVER_NAME: {"type": "http", **_server(access, "my-agent")}}}
        ),
        "The same for each client": again,
        "Try it": f"{curl(access)}\n{call(access)}",
    }
    if ssh is not None:
        option = ["--state-dir", str(state_dir.absolute())] if state_dir is not None else []
        blocks["SSH clients"] = shlex.join([access.program, "ssh-config", *option, ssh.instance])
    return "\n".join(
        [
            *lines,
            *_blocks(blocks),
            "",
            "Every X-Session-ID is a shell and a workspace of its own. Ctrl-C ends the server.",
        ]
    )


def configuration(access: Access, stdio: Sequence[str]) -> str:
    """For each client, by either way, ready to paste; the token is in it."""
    blocks = {
        **stdio_clients(stdio),
        "Claude Code, over HTTP": claude_code(access),
        "Cursor, over HTTP": _json({"mcpServers": {SERVER_NAME: _server(access, "cursor")}}),
        "VS Code, over HTTP": _json(
            {"servers": {SERVER_NAME: {"type": "http", **_server(access, "vscode")}}}
        ),
        "Other clients, over HTTP": _json(
            {"mcpServers": {SERVER_NAME: {"type": "http", **_server(access, "my-agent")}}}
        ),
    }
    return "\n".join(_blocks(blocks)[1:])


def stdio_clients(command: Sequence[str]) -> dict[str, str]:
    """Configuration by client that starts `command` itself: a sandbox for each window, and no token."""
    server = {"command": command[0], "args": list(command[1:])}
    return {
        "Claude Code": f"claude mcp add {SERVER_NAME} -- {shlex.join(command)}",
        "Cursor, ~/.cursor/mcp.json": _json({"mcpServers": {SERVER_NAME: server}}),
        "VS Code, .vscode/mcp.json": _json({"servers": {SERVER_NAME: {"type": "stdio", **server}}}),
        "Other clients": _json({"mcpServers": {SERVER_NAME: server}}),
    }


def _blocks(blocks: Mapping[str, str]) -> list[str]:
    return [
        line
        for title, text in blocks.items()
        for line in ("", f"{title}:", *(f"  {line}" for line in text.splitlines()))
    ]


def _field(name: str, values: Sequence[str]) -> str:
    return "\n".join(f"  {label:<15}  {value}" for label, value in zip_longest([name], values, fillvalue=""))


def claude_code(access: Access) -> str:
    headers = [
        f"--header {shlex.quote(f'{name}: {value}')}" for name, value in access.headers("claude").items()
    ]
    return " ".join(["claude mcp add --transport http", SERVER_NAME, access.url, *headers])


def curl(access: Access) -> str:
    request = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "tools/call",
        "params": {"name": "bash", "arguments": {"command": "echo hello from $(whoami)"}},
    }
    headers = {
        "Content-Type": "application/json",
        "Accept": "application/json, text/event-stream",
        "X-Session-ID": "demo",
    }
    options = [f"-H {shlex.quote(f'{name}: {value}')}" for name, value in headers.items()]
    if access.token_file is not None:
        options.append(f'-H "Authorization: Bearer $(cat {shlex.quote(str(access.token_file))})"')
    return " ".join(["curl -sS", access.url, *options, "-d", shlex.quote(json.dumps(request))])


def call(access: Access) -> str:
    token = [] if access.token_file is None else ["--token-file", shlex.quote(str(access.token_file))]
    command = [shlex.quote(access.program), "call", access.url, *token, "--session demo"]
    return " ".join([*command, shlex.quote("echo hello")])


def limits_cpu(instance: CliMcpInstance) -> bool:
    """Whether the file itself says how much CPU time a sandbox gets."""
    return "cpu" in instance.spec.sandbox.resources.limits


def unused_fields(
    instance: CliMcpInstance, *, ssh_served: bool = False, cpu_limited: bool = True
) -> list[str]:
    """The fields that were given and mean something only in a cluster, to --ssh, or where control groups
    limit CPU time."""
    spec = instance.spec
    of_spec = ("replicas", "server_container") if ssh_served else ("replicas", "server_container", "ssh")
    return [
        *(_path("spec", name) for name in of_spec if _given(spec, name)),
        *(_path("spec.sandbox", name) for name in _CLUSTER_ONLY if _given(spec.sandbox, name)),
        *(["spec.sandbox.resources.limits.cpu"] if limits_cpu(instance) and not cpu_limited else []),
    ]


_CLUSTER_ONLY = (
    "image",
    "image_pull_policy",
    "runtime_class_name",
    "node_selector",
    "tolerations",
    "priority_class_name",
    "image_pull_secrets",
    "host_users",
    "dns",
    "isolation_test",
    "workspace",
)


def _given(model: object, field: str) -> bool:
    fields_set: set[str] = getattr(model, "model_fields_set")  # noqa: B009 - any pydantic model
    return field in fields_set


def _path(prefix: str, field: str) -> str:
    first, *others = field.split("_")
    return f"{prefix}.{first}{''.join(word.capitalize() for word in others)}"


def _server(access: Access, session: str) -> dict[str, object]:
    return {"url": access.url, "headers": access.headers(session)}


def _json(value: Mapping[str, object]) -> str:
    return json.dumps(value)
