"""A TLS server on loopback that writes down what reaches it, byte for byte, and answers as a test says."""

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from cli_mcp.authority import generate_authority
from cred_proxy.certificates import Authority, leaf_certificate, parse_authorities

if TYPE_CHECKING:
    from cryptography import x509

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


@dataclass(frozen=True)
class Received:
    """One request as the origin read it. `fields` keeps order and spelling."""

    line: str
    fields: list[tuple[str, str]]
    body: bytes
    connection: int

    @property
    def target(self) -> str:
        return self.line.split(" ")[1]

    def values(self, name: str) -> list[str]:
        return [value for key, value in self.fields if key.lower() == name.lower()]


Respond = Callable[[Received, asyncio.StreamWriter], Awaitable[None]]


def answer(raw: bytes) -> Respond:
    """Always the same bytes."""

    async def respond(request: Received, writer: asyncio.StreamWriter) -> None:
        writer.write(raw)

    return respond


@dataclass
class PrivateAuthority:
    """An authority of the test's own, with a server context for any host."""

    pem: str = ""
    authority: Authority = field(init=False)

    def __post_init__(self) -> None:
        now = datetime.now(UTC)
        self.pem, key = generate_authority("origin CA", now)
        self.authority = parse_authorities(self.pem, key, now)[0]

    def server_context(self, host: str, directory: Path) -> ssl.SSLContext:
        key = ec.generate_private_key(ec.SECP256R1())
        certificate: x509.Certificate = leaf_certificate(
            host, key.public_key(), self.authority, datetime.now(UTC)
        )
        file = directory / f"{host.replace(':', '_')}.pem"
        file.write_bytes(
            certificate.public_bytes(serialization.Encoding.PEM)
            + key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(file)
        return context


class Origin:
    """Reads plain HTTP/1.1 requests; `respond` may be exchanged while it runs."""

    def __init__(self, host: str = "origin.test") -> None:
        self.host = host
        self.requests: list[Received] = []
        self.incomplete = 0
        self.connections = 0
        self.server_names: list[str | None] = []
        self.respond: Respond = answer(OK)
        self.port = 0
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def endpoint(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def open_connections(self) -> int:
        return len(self._tasks)

    async def start(self, context: ssl.SSLContext, address: str = "127.0.0.1", port: int = 0) -> None:
        context.sni_callback = lambda connection, name, _: self.server_names.append(name)
        self._server = await asyncio.start_server(self._serve, address, port, ssl=context, limit=2**20)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        number = self.connections
        try:
            while (request := await self._read(reader, number)) is not None:
                self.requests.append(request)
                await self.respond(request, writer)
                await writer.drain()
        except (OSError, asyncio.CancelledError):
            pass  # the other side went, or the test is over
        finally:
            self._tasks.discard(task)
            writer.transport.abort()

    async def _read(self, reader: asyncio.StreamReader, connection: int) -> Received | None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError as error:
            self.incomplete += bool(error.partial)
            return None
        line, *lines = head.decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")
        fields = [(name, value.strip()) for name, _, value in (line.partition(":") for line in lines)]
        received = Received(line, fields, b"", connection)
        try:
            body = await _read_body(reader, received)
        except asyncio.IncompleteReadError:
            self.incomplete += 1
            return None
        return Received(line, fields, body, connection)


async def _read_body(reader: asyncio.StreamReader, request: Received) -> bytes:
    if request.values("transfer-encoding"):
        body = b""
        while size := int(await reader.readuntil(b"\r\n"), 16):
            body += await reader.readexactly(size)
            await reader.readexactly(2)
        trailer = await reader.readuntil(b"\r\n")
        assert trailer == b"\r\n", f"trailers reached the origin: {trailer!r}"
        return body
    lengths = request.values("content-length")
    return await reader.readexactly(int(lengths[0])) if lengths else b""
