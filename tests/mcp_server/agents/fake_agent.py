"""An agent that answers what a test wants it to, on a real socket."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from cli_mcp.agent_api import (
    CANCEL_PATH,
    HEALTH_PATH,
    REFUSAL_STATUS,
    Accepted,
    AgentIdentity,
    Finished,
    Health,
    Refusal,
    RefusalKind,
    RunEvent,
)
from cli_mcp.agent_json import encode_health, encode_refusal, encode_run_event
from cli_mcp.execution import Outcome, StreamOutput
from cli_mcp.session_keys import SessionKey, SessionKeys
from mcp_server.agents.agent import AgentAddress
from mcp_server.agents.client import AgentClient
from mcp_server.agents.signing import CallSigner

POD_UID = "0a4f6b1e-0000-4000-8000-000000000001"
BOOT = "0123456789abcdef0123456789abcdef"
OTHER_BOOT = "f" * 32
AGENT = AgentAddress(POD_UID, "127.0.0.1")
DONE = Finished(
    Outcome(0, StreamOutput(b"hi\n", total_bytes=3), StreamOutput(b""), duration_ms=3, cwd="/workspace"),
    first=True,
)


@dataclass
class Request:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def claims(self) -> dict[str, Any]:
        """Unverified."""
        token = self.headers["authorization"].removeprefix("Bearer ")
        claims: dict[str, Any] = jwt.decode(token, options={"verify_signature": False})
        return claims


Answering = Callable[[Request, asyncio.StreamWriter], Awaitable[None]]
"""Writes an answer; the connection stays open unless it closes it."""


@dataclass
class FakeAgent:
    """`health` and `cancellation` are honest unless given; `answer` answers the rest."""

    answer: Answering
    boot: str = BOOT
    health: bytes | None = None
    cancellation: bytes = b""
    port: int = 0
    requests: list[Request] = field(default_factory=list)
    connections: int = 0
    _writers: set[asyncio.StreamWriter] = field(default_factory=set)

    @property
    def runs(self) -> list[Request]:
        return [it for it in self.requests if it.path not in (HEALTH_PATH, CANCEL_PATH)]

    @property
    def cancelled(self) -> list[str]:
        return [json.loads(it.body)["jti"] for it in self.requests if it.path == CANCEL_PATH]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.add(writer)
        try:
            while True:
                request = await read_request(reader)
                self.requests.append(request)
                if request.path == HEALTH_PATH:
                    ready = encode_health(Health(AgentIdentity(POD_UID, self.boot)))
                    writer.write(self.health or with_length(200, ready))
                elif request.path == CANCEL_PATH:
                    writer.write(self.cancellation or with_length(200, b"{}"))
                else:
                    await self.answer(request, writer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    def hang_up(self) -> None:
        for writer in self._writers:
            writer.transport.abort()


async def read_request(reader: asyncio.StreamReader) -> Request:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = head.strip().split("\r\n")
    method, path, _ = first.split(" ")
    headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
    return Request(method, path, headers, await reader.readexactly(int(headers.get("content-length", "0"))))


@asynccontextmanager
async def running(agent: FakeAgent) -> AsyncIterator[FakeAgent]:
    server = await asyncio.start_server(agent.serve, "127.0.0.1", agent.port)
    agent.port = server.sockets[0].getsockname()[1]
    try:
        yield agent
    finally:
        server.close()
        agent.hang_up()
        await asyncio.sleep(0)


# --- answers


def with_length(status: int, body: bytes, content_type: str = "application/json", extra: str = "") -> bytes:
    head = (
        f"HTTP/1.1 {status} X\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\n{extra}\r\n"
    )
    return head.encode() + body


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/x-ndjson\r\nTransfer-Encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"
ACCEPTED = encode_run_event(Accepted(AgentIdentity(POD_UID, BOOT)))


def events(*lines: RunEvent | bytes, head: bytes = HEAD, end: bytes = END) -> bytes:
    """A run's answer, a chunk for each line, which begins with the acceptance."""
    encoded = [line if isinstance(line, bytes) else encode_run_event(line) for line in lines]
    return head + b"".join(map(chunk, (ACCEPTED, *encoded))) + end


def refusal(kind: RefusalKind, boot: str = BOOT, pod_uid: str = POD_UID) -> bytes:
    return with_length(
        REFUSAL_STATUS[kind], encode_refusal(Refusal(kind, "no", AgentIdentity(pod_uid, boot)))
    )


def saying(answer: bytes) -> Answering:
    async def say(request: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(answer)

    return say


# --- the client


def key_pair(kid: str = "ab12", published_at: datetime = datetime(2024, 1, 1, tzinfo=UTC)) -> SessionKey:
    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()
    return SessionKey(kid=kid, published_at=published_at, private_key=private, public_key=public)


def write_keys(file: Path, *keys: SessionKey) -> None:
    """Like the kubelet: the file is replaced, never written to."""
    new = file.with_suffix(".new")
    new.write_text(SessionKeys(keys=keys).model_dump_json(by_alias=True))
    new.replace(file)


def client_of(agent: FakeAgent, directory: Path) -> AgentClient:
    file = directory / "session-keys.json"
    if not file.exists():
        write_keys(file, key_pair())
    return AgentClient(CallSigner(file, "server-pod"), port=agent.port)


async def run(client: AgentClient, timeout_seconds: float = 5, agent: AgentAddress = AGENT) -> Finished:
    return await client.run(agent, "s1", "echo hi", timeout_seconds, lambda progress: None)
