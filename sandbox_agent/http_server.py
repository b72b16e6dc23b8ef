"""HTTP/1.1 for one application, on asyncio streams, with a bound on everything that a client may take.

A connection has one request at a time. While it has none, it may be closed in favour of a new one; so who
opens many connections and says nothing keeps nobody else out.
"""

import asyncio
import ipaddress
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Any, Protocol

from cli_mcp.agent_api import BODY_LIMIT_BYTES, RefusalKind
from sandbox_agent.http_head import RequestHead, parse_head
from sandbox_agent.refused import Refused

_BACKLOG = 128
_END_OF_HEAD = b"\r\n\r\n"
_END_OF_CHUNKS = b"0\r\n\r\n"
_LINGER_SECONDS = 1.0
_LINGER_READ_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """`request_seconds` run from a request's first byte to its last, `write_seconds` until a client has taken
    in a piece of an answer. `idle_seconds` is longer than clients keep idle connections, so that they close
    first and no request meets a connection that is being closed."""

    connections: int = 128
    connections_per_client: int = 32
    head_bytes: int = 16 << 10
    body_bytes: int = BODY_LIMIT_BYTES
    request_seconds: float = 10.0
    write_seconds: float = 10.0
    idle_seconds: float = 90.0


@dataclass(frozen=True, slots=True)
class Pieces:
    """A body as it comes, each piece a chunk of its own: those of `first`, then `last` with the end."""

    first: AsyncGenerator[bytes, None]
    last: Callable[[], Awaitable[bytes]]


@dataclass(frozen=True, slots=True)
class Response:
    """`on_sent` is called when the connection has taken all of it, and was not closed before."""

    status: int
    content_type: str
    body: bytes | Pieces
    on_sent: Callable[[], None] = lambda: None


Endpoint = Callable[[bytes], Awaitable[Response]]
"""Answers a request, given its body. Raises Refused. Cancelled when the client closes the connection."""


class Application(Protocol):
    def route(self, head: RequestHead) -> Endpoint:
        """Who answers this request. Raises Refused; then nothing of its body is read."""
        ...

    def refusal(self, refused: Refused) -> Response: ...


class HttpServer:
    """Made by `start`; `close` must follow."""

    def __init__(self, application: Application, limits: HttpLimits) -> None:
        self._application = application
        self._limits = limits
        self._connections: list[_Connection] = []  # the oldest first
        self._server: asyncio.Server | None = None

    @classmethod
    async def start(
        cls, application: Application, listening: socket.socket, limits: HttpLimits | None = None
    ) -> "HttpServer":
        server = cls(application, limits or HttpLimits())
        server._server = await asyncio.start_server(
            server._serve, sock=listening, limit=server._limits.head_bytes, backlog=_BACKLOG
        )
        return server

    async def close(self, grace_seconds: float) -> None:
        """Accept no more, and end all connections; those with a request after `grace_seconds` at most."""
        assert self._server is not None
        self._server.close()
        busy = [connection for connection in self._connections if not connection.idle]
        if answers := [connection.finish() for connection in busy]:
            await asyncio.wait(answers, timeout=grace_seconds)
        for connection in list(self._connections):
            connection.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = _Connection(self._application, self._limits, reader, writer)
        if not self._make_room(connection.client):
            await connection.refuse(
                Refused(RefusalKind.TOO_MANY_CONNECTIONS, "too many connections have a request")
            )
            return
        self._connections.append(connection)
        try:
            await connection.serve()
        finally:
            if connection in self._connections:
                self._connections.remove(connection)

    def _make_room(self, client: str) -> bool:
        """Whether one more connection fits, if need be in the place of the oldest idle one."""
        own = [connection for connection in self._connections if connection.client == client]
        if len(own) >= self._limits.connections_per_client:
            candidates = own
        elif len(self._connections) >= self._limits.connections:
            candidates = self._connections
        else:
            return True
        victim = next((connection for connection in candidates if connection.idle), None)
        if victim is None:
            return False
        self._connections.remove(victim)
        victim.abort()
        return True


class _Connection:
    def __init__(
        self,
        application: Application,
        limits: HttpLimits,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self._application = application
        self._limits = limits
        self._reader = reader
        self._writer = writer
        self.client = client_of(writer.get_extra_info("peername")[0], writer.get_extra_info("sockname")[0])
        self.idle = True
        self._last = False
        self._task = asyncio.current_task()
        accepted = writer.get_extra_info("socket")
        # asyncio does not set it on a socket from create_server: an outcome, sent after its acceptance, would
        # wait for the peer's delayed acknowledgement: 40 ms.
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # A peer that vanished with its node is noticed while there is something to send to it, tcp(7).
        milliseconds = round(limits.write_seconds * 1000)
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)

    def abort(self) -> None:
        self._writer.transport.abort()

    def finish(self) -> asyncio.Task[Any]:
        """Take no more requests after this one. Returns what ends with the connection."""
        assert self._task is not None
        self._last = True
        return self._task

    async def serve(self) -> None:
        """Answer requests until there are no more."""
        try:
            while await self._serve_one() and not self._last:
                self.idle = True
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            pass  # the client went away, or is too slow
        finally:
            await self._close()

    async def refuse(self, refused: Refused) -> None:
        """Answer with a refusal whatever comes, and close."""
        try:
            await self._send(self._application.refusal(refused), keep_alive=False)
            await self._linger()
        except (OSError, TimeoutError):
            pass  # the client does not want to know
        finally:
            await self._close()

    async def _serve_one(self) -> bool:
        """Whether another request may follow."""
        async with asyncio.timeout(self._limits.idle_seconds):
            first = await self._reader.read(1)
        if not first:
            return False
        try:
            async with asyncio.timeout(self._limits.request_seconds):
                head, endpoint, body = await self._request(first)
        except TimeoutError:
            refused = Refused(RefusalKind.TOO_SLOW, "the request took too long to come")
        except asyncio.LimitOverrunError:
            refused = Refused(
                RefusalKind.HEAD_TOO_LARGE, f"a head of more than {self._limits.head_bytes} bytes"
            )
        except Refused as error:
            refused = error
        else:
            return (
                await self._while_connected(self._answer(endpoint, body, head.keep_alive)) and head.keep_alive
            )
        self.idle = True
        await self._send(self._application.refusal(refused), keep_alive=False)
        await self._linger()
        return False

    async def _request(self, first: bytes) -> tuple[RequestHead, Endpoint, bytes]:
        head = parse_head(first + await self._reader.readuntil(_END_OF_HEAD))
        endpoint = self._application.route(head)
        if head.body_bytes > self._limits.body_bytes:
            raise Refused(RefusalKind.TOO_LARGE, f"a body of more than {self._limits.body_bytes} bytes")
        self.idle = False
        return head, endpoint, await self._reader.readexactly(head.body_bytes)

    async def _while_connected(self, answer: Coroutine[Any, Any, None]) -> bool:
        """Run `answer`; it is cancelled when the client closes the connection. Returns whether the connection
        is still good: a client that sends more before it has the answer is not understood."""
        answering = asyncio.create_task(answer)
        hearing = asyncio.create_task(self._reader.read(1))
        try:
            await asyncio.wait((answering, hearing), return_when=asyncio.FIRST_COMPLETED)
            if not answering.done() and not hearing.result():
                return False
            await answering
            return not hearing.done()
        finally:
            answering.cancel()
            hearing.cancel()
            await asyncio.gather(answering, hearing, return_exceptions=True)

    async def _answer(self, endpoint: Endpoint, body: bytes, keep_alive: bool) -> None:
        try:
            response = await endpoint(body)
        except Refused as refused:
            response = self._application.refusal(refused)
        await self._send(response, keep_alive)

    async def _send(self, response: Response, keep_alive: bool) -> None:
        framing, body = "Transfer-Encoding: chunked", b""
        if isinstance(response.body, bytes):
            framing, body = f"Content-Length: {len(response.body)}", response.body
        head = (
            f"HTTP/1.1 {response.status} {'OK' if response.status == 200 else 'Refused'}\r\n"
            f"Content-Type: {response.content_type}\r\n"
            f"Connection: {'keep-alive' if keep_alive else 'close'}\r\n"
            f"{framing}\r\n\r\n"
        )
        unsent = head.encode() + body
        if isinstance(response.body, Pieces):
            async with aclosing(response.body.first) as pieces:
                async for piece in pieces:
                    await self._write(unsent + _chunk(piece))
                    unsent = b""
            unsent += _chunk(await response.body.last()) + _END_OF_CHUNKS
        await self._write(unsent)
        response.on_sent()

    async def _write(self, data: bytes) -> None:
        self._writer.write(data)
        async with asyncio.timeout(self._limits.write_seconds):
            await self._writer.drain()

    async def _linger(self) -> None:
        """Take in for a moment what still comes. Closing with something unread resets the connection, and the
        client would lose the answer, RFC 9112 section 9.6."""
        self._writer.write_eof()
        try:
            async with asyncio.timeout(_LINGER_SECONDS):
                while await self._reader.read(_LINGER_READ_BYTES):
                    pass
        except TimeoutError:
            pass  # long enough

    async def _close(self) -> None:
        self._writer.close()
        try:
            async with asyncio.timeout(self._limits.write_seconds):
                await self._writer.wait_closed()
        except (OSError, TimeoutError):
            self.abort()


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def listen(host: str | None, port: int) -> socket.socket:
    """A socket that listens on that address, by default on all of IPv4 and IPv6. Raises OSError."""
    if host is not None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=_BACKLOG)
    if socket.has_dualstack_ipv6():
        with suppress(OSError):  # a node without IPv6; when it is about the port, the next says so
            return socket.create_server(
                ("::", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=_BACKLOG
            )
    return socket.create_server(("0.0.0.0", port), backlog=_BACKLOG)  # noqa: S104 - a pod's Service port


def client_of(peer: str, local: str) -> str:
    """What counts as one client: an address; and this pod itself, by whichever of its addresses it comes."""
    address = _address(peer)
    return "this pod" if address.is_loopback or address == _address(local) else str(address)


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    address = ipaddress.ip_address(text.partition("%")[0])
    return getattr(address, "ipv4_mapped", None) or address
