"""How a client gets in: known_hosts, ssh_config(5) and the configuration of MCP clients. Pure text.

`ssh.json` in the state directory of local mode has the same facts for `cli-mcp ssh-config`.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

ACCESS_FILE = "ssh.json"
SERVER_NAME = "cli-mcp"


@dataclass(frozen=True, slots=True)
class Access:
    """Where the gateway of `instance` is, and its host key: `type base64` and fingerprint. `username` is one
    that a route admits, or a word that stands for it."""

    instance: str
    host: str
    port: int
    public_key: str
    fingerprint: str
    username: str

    @property
    def alias(self) -> str:
        """What ssh_config(5) calls it."""
        return f"cli-mcp-{self.instance}"


class _AccessFile(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    version: Literal[1] = 1
    instance: str
    host: str
    port: int
    public_key: str
    fingerprint: str
    username: str


class MalformedAccess(Exception):
    """ssh.json is not what local mode writes."""


def to_json(access: Access) -> str:
    return _AccessFile(
        instance=access.instance,
        host=access.host,
        port=access.port,
        public_key=access.public_key,
        fingerprint=access.fingerprint,
        username=access.username,
    ).model_dump_json()


def from_json(text: str) -> Access:
    """Raises MalformedAccess."""
    try:
        found = _AccessFile.model_validate_json(text)
    except ValidationError as error:
        raise MalformedAccess(str(error)) from None
    return Access(**found.model_dump(exclude={"version"}))


def known_hosts(access: Access) -> str:
    """A port other than 22 belongs to the name (sshd(8), SSH_KNOWN_HOSTS FILE FORMAT)."""
    name = access.host if access.port == 22 else f"[{access.host}]:{access.port}"
    return f"{name} {access.public_key}"


def ssh_config(access: Access, identity_file: str) -> str:
    """A Host block: this key and no other, this host key and no question, nothing but the session."""
    options = {
        "HostName": access.host,
        "Port": access.port,
        "User": access.username,
        "IdentityFile": f'"{identity_file}"' if " " in identity_file else identity_file,
        "IdentitiesOnly": "yes",
        "HostKeyAlgorithms": "ssh-ed25519",
        "StrictHostKeyChecking": "yes",
        "BatchMode": "yes",
        "RequestTTY": "no",
        "ForwardAgent": "no",
        "ForwardX11": "no",
        "ClearAllForwardings": "yes",
        "ControlPath": "none",
        "ServerAliveInterval": 30,
    }
    return "\n".join([f"Host {access.alias}", *(f"    {name} {value}" for name, value in options.items())])


def mcp_clients(access: Access) -> dict[str, str]:
    """Configuration by client, for a Host block as above; one line each."""
    server = {"command": "ssh", "args": [access.alias]}
    return {
        "Claude Code": f"claude mcp add {SERVER_NAME} -- ssh {access.alias}",
        "Cursor, ~/.cursor/mcp.json": json.dumps({"mcpServers": {SERVER_NAME: server}}),
        "VS Code, .vscode/mcp.json": json.dumps({"servers": {SERVER_NAME: {"type": "stdio", **server}}}),
        "Other clients": json.dumps({"mcpServers": {SERVER_NAME: server}}),
    }


def described(access: Access, identity_file: str) -> str:
    """All of it, each with the file that it goes into."""
    blocks = {
        f"~/.ssh/known_hosts, host key {access.fingerprint}": known_hosts(access),
        "~/.ssh/config": ssh_config(access, identity_file),
        **mcp_clients(access),
    }
    return "\n\n".join(f"# {title}\n{text}" for title, text in blocks.items())


def example_username(usernames: Sequence[str | None]) -> str:
    """The first user name that is spelled out, or the word for one."""
    return next((name for name in usernames if name is not None), "USERNAME")
