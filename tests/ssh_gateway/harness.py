"""A gateway on a real socket, in front of a backend without sandboxes, and clients of it."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import asyncssh

from cli_mcp.api.instance import SshRoute
from mcp_server.app import build_app, calls_of, tool_calls_of
from mcp_server.authentication import StaticToken
from mcp_server.catalogue import ALL_GROUPS, Offering, offer
from mcp_server.settings import ServerSettings
from ssh_gateway.admission import Limits
from ssh_gateway.audit import Event, SshRecord
from ssh_gateway.authorization import Authorizer
from ssh_gateway.gateway import SESSION_HINT, Gateway, GatewaySettings
from ssh_gateway.host_key import HostKey, load_or_make_host_key
from tests.mcp_server.fake_backend import FakeBackend

KEY = asyncssh.generate_private_key("ssh-ed25519")
OTHER_KEY = asyncssh.generate_private_key("ssh-ed25519")
SECRET = "agents"
ROUTES = (
    SshRoute(username="alice", authorizedKeysSecret=SECRET),
    SshRoute(usernamePattern="^agent-[a-z0-9]+$", authorizedKeysSecret=SECRET),
)


def public(key: asyncssh.SSHKey) -> str:
    """A line for authorized_keys."""
    return key.export_public_key().decode().strip()


@dataclass
class RunningGateway:
    port: int
    backend: FakeBackend
    host_key: HostKey
    gateway: Gateway
    keys_file: Path
    records: list[SshRecord]
    stop: asyncio.Event
    stop_now: asyncio.Event
    routes: list[SshRoute] = field(default_factory=lambda: list(ROUTES))

    def authorize(self, *lines: str) -> None:
        self.keys_file.write_text("".join(f"{line}\n" for line in lines))

    def reasons(self, event: Event) -> list[str | None]:
        return [record.reason for record in self.records if record.event is event]

    async def connect(
        self, username: str = "alice", keys: Sequence[Any] = (KEY,), **options: Any
    ) -> asyncssh.SSHClientConnection:
        """Log in, with nothing but `keys` (as asyncssh takes them), to exactly this host."""
        return await asyncssh.connect(
            "127.0.0.1",
            self.port,
            username=username,
            client_keys=list(keys) or None,
            known_hosts=asyncssh.import_known_hosts(f"[127.0.0.1]:{self.port} {self.host_key.public_key}"),
            agent_path=None,
            config=None,
            **options,
        )

    @asynccontextmanager
    async def client(self, username: str = "alice", **options: Any) -> AsyncIterator["LineClient"]:
        """A login that speaks MCP by hand."""
        async with await self.connect(username) as connection:
            process = await connection.create_process(encoding=None, **options)
            yield LineClient(connection, process)

    async def can_log_in(self, username: str = "alice", keys: Sequence[Any] = (KEY,), **options: Any) -> bool:
        try:
            connection = await self.connect(username, keys, **options)
        except (asyncssh.PermissionDenied, asyncssh.ConnectionLost):
            return False
        connection.abort()
        return True


async def log_in(
    host: str, port: int, username: str, key: asyncssh.SSHKey, known_hosts: str
) -> asyncssh.SSHClientConnection:
    """`known_hosts` are lines of such a file, sshd(8)."""
    return await asyncssh.connect(
        host,
        port,
        username=username,
        client_keys=[key],
        known_hosts=asyncssh.import_known_hosts(known_hosts),
        agent_path=None,
        config=None,
    )


@asynccontextmanager
async def speaking(logging_in: Awaitable[asyncssh.SSHClientConnection]) -> AsyncIterator["LineClient"]:
    """A client of MCP on a connection of its own."""
    async with await logging_in as connection:
        client = LineClient(connection, await connection.create_process(encoding=None))
        await client.initialize()
        yield client


@dataclass
class LineClient:
    connection: asyncssh.SSHClientConnection
    process: asyncssh.SSHClientProcess[bytes]
    last_id: int = 0

    def send(self, message: Mapping[str, Any]) -> None:
        self.process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")

    def request(self, method: str, **params: Any) -> int:
        self.last_id += 1
        self.send({"id": self.last_id, "method": method, "params": params})
        return self.last_id

    async def read(self) -> dict[str, Any]:
        async with asyncio.timeout(20):
            line = await self.process.stdout.readline()
        assert line, "the gateway has nothing more to say"
        message: dict[str, Any] = json.loads(line)
        return message

    async def initialize(self) -> dict[str, Any]:
        self.request(
            "initialize",
            protocolVersion="2025-06-18",
            capabilities={},
            clientInfo={"name": "test", "version": "1"},
        )
        answer = await self.read()
        self.send({"method": "notifications/initialized"})
        result: dict[str, Any] = answer["result"]
        return result

    def call(self, command: str) -> int:
        return self.request("tools/call", name="bash", arguments={"command": command})

    async def run(self, command: str) -> dict[str, Any]:
        self.call(command)
        answer = await self.read()
        result: dict[str, Any] = answer["result"]
        return result

    async def exit_status(self) -> int | None:
        async with asyncio.timeout(20):
            await self.process.wait_closed()
        return self.process.exit_status


@asynccontextmanager
async def running_gateway(
    directory: Path,
    *,
    backend: FakeBackend | None = None,
    limits: Limits | None = None,
    settings: GatewaySettings | None = None,
    authorized: Sequence[str] | None = None,
    drain_seconds: float = 10,
) -> AsyncIterator[RunningGateway]:
    backend = backend or FakeBackend()
    app = build_app(backend, ServerSettings(), StaticToken("unused"))
    records: list[SshRecord] = []
    routes = list(ROUTES)
    keys_file = directory / SECRET / "authorized_keys"
    keys_file.parent.mkdir(parents=True)
    host_key = load_or_make_host_key(directory / "host_key")
    gateway = Gateway(
        tool_calls_of(app),
        offer(lambda: Offering(ALL_GROUPS), SESSION_HINT),
        calls_of(app),
        backend.hold,
        Authorizer(lambda: tuple(routes), directory, lambda: datetime.now(UTC)),
        host_key,
        records.append,
        limits or Limits(),
        settings or GatewaySettings(),
    )
    stop, stop_now = asyncio.Event(), asyncio.Event()
    async with gateway.serving(
        "127.0.0.1", 0, drain_seconds=drain_seconds, stop=stop, stop_now=stop_now
    ) as port:
        running = RunningGateway(port, backend, host_key, gateway, keys_file, records, stop, stop_now, routes)
        running.authorize(*(authorized or (public(KEY),)))
        try:
            yield running
        finally:
            stop_now.set()
