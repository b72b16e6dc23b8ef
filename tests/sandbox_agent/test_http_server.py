"""What clients of the server may take, and what they get: real sockets, an application of the test."""

import asyncio
import socket
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from cli_mcp.agent_api import REFUSAL_STATUS, RefusalKind
from sandbox_agent.http_head import RequestHead
from sandbox_agent.http_server import Endpoint, HttpLimits, HttpServer, Pieces, Response, client_of, listen
from sandbox_agent.refused import Refused

GET = b"GET /%b HTTP/1.1\r\nHost: x\r\n\r\n"
POST = b"POST /%b HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b"
LIMITS = HttpLimits(request_seconds=0.5, write_seconds=1.0, body_bytes=100_000)


class Echo:
    """/echo sends the body back, /slow waits, /stream sends lines, /no is refused by the answer."""

    def __init__(self) -> None:
        self.begun = 0
        self.cancelled = 0
        self.sent = 0
        self.go_on = asyncio.Event()

    def route(self, head: RequestHead) -> Endpoint:
        endpoints = {
            "/echo": self.echo,
            "/slow": self.slow,
            "/stream": self.stream,
            "/no": self.no,
            "/bug": self.bug,
        }
        if head.path not in endpoints:
            raise Refused(RefusalKind.NOT_FOUND, "no such path")
        return endpoints[head.path]

    def refusal(self, refused: Refused) -> Response:
        return Response(REFUSAL_STATUS[refused.kind], "text/plain", refused.kind.encode())

    async def echo(self, body: bytes) -> Response:
        return Response(200, "text/plain", body or b"empty")

    async def slow(self, body: bytes) -> Response:
        self.begun += 1
        try:
            await self.go_on.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return Response(200, "text/plain", b"slow")

    async def stream(self, body: bytes) -> Response:
        return Response(200, "text/plain", Pieces(self._pieces(), self._last), self._count_sent)

    async def _pieces(self) -> AsyncGenerator[bytes, None]:
        self.begun += 1
        try:
            yield b"first\n"
            await self.go_on.wait()
            yield b"x" * 1_000
        except (asyncio.CancelledError, GeneratorExit):
            self.cancelled += 1
            raise

    async def _last(self) -> bytes:
        return b"last\n"

    def _count_sent(self) -> None:
        self.sent += 1

    async def no(self, body: bytes) -> Response:
        raise Refused(RefusalKind.UNAUTHORIZED, "no")

    async def bug(self, body: bytes) -> Response:
        raise ZeroDivisionError


class Client:
    """One connection, byte for byte."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def answer(self) -> tuple[int, bytes]:
        """Status and body of an answer with a length."""
        head = await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), 5)
        fields = dict(line.split(b": ", 1) for line in head.split(b"\r\n")[1:-2])
        return int(head.split()[1]), await self.reader.readexactly(int(fields[b"Content-Length"]))

    async def rest(self, seconds: float = 5) -> bytes:
        """What comes until the server closes the connection."""
        try:
            return await asyncio.wait_for(self.reader.read(), seconds)
        except ConnectionResetError:
            return b""

    def close(self) -> None:
        self.writer.close()


class Site:
    def __init__(self, application: Echo, server: HttpServer, port: int) -> None:
        self.application = application
        self.server = server
        self.port = port
        self.clients: list[Client] = []

    async def connect(self, source: str | None = None, host: str = "127.0.0.1") -> Client:
        local = (source, 0) if source else None
        client = Client(*await asyncio.open_connection(host, self.port, local_addr=local))
        self.clients.append(client)
        return client


@asynccontextmanager
async def site(limits: HttpLimits = LIMITS) -> AsyncIterator[Site]:
    application = Echo()
    listening = listen(None, 0)
    server = await HttpServer.start(application, listening, limits)
    made = Site(application, server, listening.getsockname()[1])
    try:
        yield made
    finally:
        for client in made.clients:
            client.close()
        await server.close(1)


async def until(condition: Callable[[], object], seconds: float = 5) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


async def test_requests_follow_each_other_on_a_connection() -> None:
    async with site() as made:
        client = await made.connect()
        for _ in range(3):
            await client.send(POST % (b"echo", 5, b"hello"))
            assert await client.answer() == (200, b"hello")
            await client.send(GET % b"echo")
            assert await client.answer() == (200, b"empty")


async def test_a_request_may_come_in_pieces() -> None:
    async with site() as made:
        client = await made.connect()
        for byte in POST % (b"echo", 2, b"hi"):
            await client.send(bytes([byte]))
        assert await client.answer() == (200, b"hi")


async def test_pieces_of_an_answer_are_sent_as_they_come() -> None:
    async with site() as made:
        client = await made.connect()
        await client.send(GET % b"stream")
        await client.reader.readuntil(b"\r\n\r\n")
        assert await client.reader.readexactly(11) == b"6\r\nfirst\n\r\n"
        made.application.go_on.set()
        assert (
            await client.reader.readuntil(b"0\r\n\r\n")
            == b"3e8\r\n" + b"x" * 1_000 + b"\r\n5\r\nlast\n\r\n0\r\n\r\n"
        )
        assert made.application.sent == 1
        await client.send(GET % b"echo")
        assert await client.answer() == (200, b"empty")


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"nonsense\r\n\r\n", RefusalKind.MALFORMED),
        (GET % b"other", RefusalKind.NOT_FOUND),
        (POST % (b"echo", 100_001, b""), RefusalKind.TOO_LARGE),
        (b"POST /echo HTTP/1.1\r\nHost: x\r\n\r\n", RefusalKind.LENGTH_REQUIRED),
        (b"GET /echo HTTP/1.1\r\nX: " + b"a" * 20_000 + b"\r\n\r\n", RefusalKind.HEAD_TOO_LARGE),
        (b"a" * 100_000, RefusalKind.HEAD_TOO_LARGE),
        (b"GET /echo HTTP/1.1\r\nHost: x", RefusalKind.TOO_SLOW),
        (b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nhalf", RefusalKind.TOO_SLOW),
        (POST % (b"echo", 5, b"hello") + b"POST /echo", None),
        (POST % (b"echo\nTransfer-Encoding: chunked", 3, b"abc"), RefusalKind.MALFORMED),
    ],
)  # fmt: skip
async def test_what_is_refused_is_answered_and_ends_the_connection(
    data: bytes, kind: RefusalKind | None
) -> None:
    async with site() as made:
        client = await made.connect()
        await client.send(data)
        if kind is None:
            assert await client.answer() == (200, b"hello")
            assert await client.rest() == b""
            return
        assert await client.answer() == (REFUSAL_STATUS[kind], kind.encode())
        assert await client.rest() == b""


async def test_a_refused_body_does_not_cost_the_client_its_answer() -> None:
    async with site() as made:
        client = await made.connect()
        await client.send(POST % (b"other", 50_000, b"x" * 50_000))
        await asyncio.sleep(0.1)
        assert (await client.answer())[0] == 404


async def test_a_refusal_by_the_answer_leaves_the_connection_usable() -> None:
    async with site() as made:
        client = await made.connect()
        await client.send(POST % (b"no", 2, b"hi"))
        assert await client.answer() == (401, b"unauthorized")
        await client.send(GET % b"echo")
        assert await client.answer() == (200, b"empty")


async def test_a_second_request_before_the_answer_is_not_understood() -> None:
    """What a proxy in between might take for something else than we do."""
    async with site() as made:
        client = await made.connect()
        await client.send(GET % b"slow" + GET % b"echo")
        await until(lambda: made.application.begun)
        made.application.go_on.set()
        assert await client.answer() == (200, b"slow")
        assert await client.rest() == b""


@pytest.mark.parametrize("path", [b"slow", b"stream"])
async def test_an_answer_ends_when_its_client_is_gone(path: bytes) -> None:
    async with site() as made:
        client = await made.connect()
        await client.send(GET % path)
        await until(lambda: made.application.begun)
        await asyncio.sleep(0.05)
        client.writer.transport.abort()
        await until(lambda: made.application.cancelled)
        assert made.application.sent == 0


async def test_a_client_that_does_not_read_is_cut_off() -> None:
    async with site(HttpLimits(write_seconds=0.3, body_bytes=64 << 20)) as made:
        client = await made.connect()
        assert isinstance(client.writer.transport, asyncio.Transport)
        client.writer.transport.pause_reading()
        await client.send(POST % (b"echo", 32 << 20, b"x" * (32 << 20)))
        await until(lambda: not made.server._connections)


async def test_idle_connections_give_way_to_new_ones() -> None:
    async with site(HttpLimits(connections=10, connections_per_client=4)) as made:
        idle = [await made.connect(f"127.0.1.{n}") for n in range(4)]
        for client in idle[:2]:
            await client.send(b"GET /echo HT")  # slow as well
        for _ in range(20):
            client = await made.connect()
            await client.send(GET % b"echo")
            assert await client.answer() == (200, b"empty")
        assert await idle[0].rest() == b""
        assert len(made.server._connections) <= 10


async def test_only_connections_with_a_request_keep_new_ones_out() -> None:
    async with site(HttpLimits(connections=3, connections_per_client=3)) as made:
        for _ in range(3):
            client = await made.connect()
            await client.send(GET % b"slow")
        await until(lambda: made.application.begun == 3)
        late = await made.connect()
        assert await late.answer() == (503, b"too_many_connections")
        made.application.go_on.set()
        assert await made.clients[0].answer() == (200, b"slow")
        again = await made.connect()
        await again.send(GET % b"echo")
        assert await again.answer() == (200, b"empty")


@pytest.mark.parametrize(
    ("peer", "local", "client"),
    [
        ("10.0.0.7", "10.0.0.1", "10.0.0.7"),
        ("::ffff:10.0.0.7", "::ffff:10.0.0.1", "10.0.0.7"),
        ("127.0.0.1", "127.0.0.1", "this pod"),
        ("127.3.4.5", "10.0.0.1", "this pod"),
        ("::ffff:127.0.0.9", "::ffff:127.0.0.1", "this pod"),
        ("::1", "::1", "this pod"),
        ("10.0.0.1", "10.0.0.1", "this pod"),
        ("::ffff:10.0.0.1", "::ffff:10.0.0.1", "this pod"),
        ("fe80::1%eth0", "fe80::2%eth0", "fe80::1"),
    ],
)
def test_all_of_a_pods_own_connections_count_as_one_clients(peer: str, local: str, client: str) -> None:
    assert client_of(peer, local) == client


async def test_nobody_else_can_listen_where_the_server_does() -> None:
    async with site() as made:
        for family, address in (
            (socket.AF_INET, "0.0.0.0"),
            (socket.AF_INET, "127.0.0.1"),
            (socket.AF_INET6, "::"),
            (socket.AF_INET6, "::1"),
        ):
            for option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):
                with socket.socket(family) as thief:
                    thief.setsockopt(socket.SOL_SOCKET, option, 1)
                    with pytest.raises(OSError):
                        thief.bind((address, made.port))
                        thief.listen()


async def test_closing_lets_answers_end_and_cuts_the_rest_off() -> None:
    async with site() as made:
        idle, busy = await made.connect(), await made.connect()
        await busy.send(GET % b"slow")
        await until(lambda: made.application.begun)
        closing = asyncio.create_task(made.server.close(5))
        await asyncio.sleep(0.05)
        made.application.go_on.set()
        assert await busy.answer() == (200, b"slow")
        await asyncio.wait_for(closing, 5)
        assert await idle.rest() == b""
        with pytest.raises(OSError):
            await made.connect()


async def test_a_bug_in_an_answer_ends_one_connection() -> None:
    errors: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: errors.append(context))
    async with site() as made:
        client = await made.connect()
        await client.send(GET % b"bug")
        assert await client.rest() == b""
        assert isinstance(errors[0]["exception"], ZeroDivisionError)
        other = await made.connect()
        await other.send(GET % b"echo")
        assert await other.answer() == (200, b"empty")
