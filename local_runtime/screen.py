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
    reach: Sequence[str],
    audit_file: Path,
    unused: Sequence[str],
    ssh: SshAccess | None = None,
) -> str:
    """`reach` are the endpoints that sandboxes can reach, a line each, `audit_file` has a line for each of
    their requests, `unused` are fields of the instance without effect here, and `ssh` is the other way in."""
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
        "Claude Code": claude_code(access),
        "Cursor, ~/.cursor/mcp.json": _json({"mcpServers": {SERVER_NAME: _server(access, "cursor")}}),
        "VS Code, .vscode/mcp.json": _json(
            {"servers": {SERVER_NAME: {"type": "http", **_server(access, "vscode")}}}
        ),
        "Other clients": _json(
            {"mcpServers": {SERVER_NAME: {"type": "http", **_server(access, "my-agent")}}}
        ),
        "Try it": f"{curl(access)}\n{call(access)}",
    }
    if ssh is not None:
        blocks["SSH clients"] = f"{shlex.quote(access.program)} ssh-config {ssh.instance}"
    for title, text in blocks.items():
        lines += ["", f"{title}:", *(f"  {line}" for line in text.splitlines())]
    return "\n".join(
        [*lines, "", "Every X-Session-ID is a shell and a workspace of its own. Ctrl-C ends the server."]
    )


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


def unused_fields(instance: CliMcpInstance, *, ssh_served: bool = False) -> list[str]:
    """The fields that were given and mean something only in a cluster, or to --ssh."""
    spec = instance.spec
    of_spec = ("replicas", "server_container") if ssh_served else ("replicas", "server_container", "ssh")
    return [
        *(_path("spec", name) for name in of_spec if _given(spec, name)),
        *(_path("spec.sandbox", name) for name in _CLUSTER_ONLY if _given(spec.sandbox, name)),
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
