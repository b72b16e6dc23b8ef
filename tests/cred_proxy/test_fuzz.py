"""Random bytes that resemble what clients and origins send, wherever the proxy reads some: nothing crashes,
hangs, grows or reaches what is not listed.

`CLI_MCP_FUZZ_SECONDS` lets each surface take longer than the second that it takes otherwise; `make fuzz`.
"""

import asyncio
import logging
import os
import random
import ssl
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cred_proxy.harness import TOKEN, Client, Harness, eventually
from tests.cred_proxy.origin import OK, Origin, Received, answer

SECONDS = float(os.environ.get("CLI_MCP_FUZZ_SECONDS", "1"))
PATIENCE_SECONDS = 0.2
AT_ONCE = 12
GROWTH_BYTES = 30_000_000

FIELDS = (
    *(b"Host: HOST\r\n", b"Host: evil.test\r\n", b"host: HOST\r\n"),
    *(b"Content-Length: 5\r\n", b"Content-Length: 0\r\n", b"Content-Length: 5, 5\r\n"),
    *(b"Transfer-Encoding: chunked\r\n", b"Transfer-Encoding: gzip\r\n", b"Transfer-Encoding : chunked\r\n"),
    *(b"Authorization: Bearer client\r\n", b"authorization:client\r\n", b"Impersonate-User: client\r\n"),
    *(b"Connection: Authorization\r\n", b"Connection: close\r\n", b"Connection: Upgrade\r\n"),
    *(b"Upgrade: websocket\r\n", b"Expect: 100-continue\r\n", b" folded\r\n"),
    *(b"X: " + bytes([byte]) + b"\r\n" for byte in (0xFF, 0, 11)),
)
LINE_ENDS = (b"\r\n", b"\n", b"\r", b"\r\n\r\n", b" ", b"\t", b"\0")
CHUNKS = (
    *(b"hello", b"5\r\nhello\r\n", b"0\r\n\r\n", b"5;ext\r\nhello\r\n", b"0\r\nX: y\r\n\r\n"),
    *(b"ffffffffffffffff\r\n", b"-1\r\n", b"0x5\r\n", b"5\nhello\n", 70_000 * b"x"),
)
REQUEST_LINES = (
    *(b"GET ", b"POST ", b"CONNECT ", b"TRACE ", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
    *(b"/", b"/api/v1/pods", b"//", b"%2e%2e", b"/api/v1/nodes/n/proxy/x", b"@evil.test"),
    *(b"https://evil.test/", b"evil.test:443", b" HTTP/1.1\r\n", b" HTTP/1.0\r\n", b" HTTP/2.0\r\n"),
)
STATUS_LINES = (
    *(b"HTTP/1.1 200 OK\r\n", b"HTTP/1.0 200\r\n", b"HTTP/1.1 101 X\r\n", b"HTTP/1.1 204 X\r\n"),
    *(b"HTTP/1.1 304 X\r\n", b"HTTP/1.1 100 X\r\n\r\n", b"HTTP/1.1 999 X\r\n", b"HTTP/2.0 200 X\r\n"),
)
# RFC 8446 section 5.1: type, version and length of a record.
RECORDS = tuple(
    bytes([kind, 3, 3, *length]) for kind in range(19, 25) for length in ((0, 0), (0, 9), (64, 1))
)

REQUESTS = (
    b"GET /api HTTP/1.1\r\nHost: HOST\r\nAuthorization: Bearer client\r\n\r\n"
    b"POST /api HTTP/1.1\r\nHost: HOST\r\nContent-Length: 5\r\n\r\nhello"
)
UPLOAD_HEAD = b"POST /api HTTP/1.1\r\nHost: HOST\r\nTransfer-Encoding: chunked\r\n\r\n"


@dataclass(frozen=True)
class Surface:
    """Where the proxy reads what it is sent: how far a client goes before it, what is right there, and what
    makes it wrong. `before` is sent as it is."""

    whole: bytes
    pieces: tuple[bytes, ...]
    tunnel: bool = True
    before: bytes = b""
    below_tls: bool = False

    def bytes(self, chance: random.Random, host: bytes) -> bytes:
        """Pieces in any order, or the whole with a few things wrong."""
        if chance.random() < 0.5:
            raw = b"".join(chance.choices(self.pieces, k=chance.randrange(1, 15)))
        else:
            raw = self.whole
            for _ in range(chance.randrange(1, 6)):
                at = chance.randrange(len(raw) + 1)
                wrong = chance.choice([*self.pieces, chance.randbytes(2), b""])
                raw = raw[:at] + wrong + raw[at + chance.randrange(3) :]
        return (self.before + raw).replace(b"HOST", host)


def client_hello() -> bytes:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    handshake = ssl.create_default_context().wrap_bio(incoming, outgoing, server_hostname="api.test")
    with pytest.raises(ssl.SSLWantReadError):
        handshake.do_handshake()
    return outgoing.read()


CONNECT = b"CONNECT HOST HTTP/1.1\r\nHost: HOST\r\n\r\n"
FROM_CLIENTS = {
    "CONNECT": Surface(CONNECT, (*REQUEST_LINES, *FIELDS, *LINE_ENDS, b"HOST"), tunnel=False),
    "handshake": Surface(client_hello(), RECORDS, tunnel=False, before=CONNECT),
    "TLS records": Surface(b"".join(RECORDS[:3]), RECORDS, below_tls=True),
    "requests": Surface(REQUESTS, (*REQUEST_LINES, *FIELDS, *LINE_ENDS, *CHUNKS)),
    "chunked body": Surface(b"".join(CHUNKS[1:3]), (*CHUNKS, *LINE_ENDS), before=UPLOAD_HEAD),
}
FROM_ORIGINS = {
    "response": Surface(OK, (*STATUS_LINES, *FIELDS, *LINE_ENDS, *CHUNKS)),
    "chunked response": Surface(
        b"5\r\nhello\r\n0\r\n\r\n",
        (*CHUNKS, *LINE_ENDS),
        before=b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
    ),
}


@pytest.fixture
def chance() -> random.Random:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    return random.Random(seed)


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def check(harness: Harness, origin: Origin, kubernetes: Origin, caplog: pytest.LogCaptureFixture) -> None:
    """What must hold at any time; forgets what was checked."""
    assert origin.connections == 0
    for request in kubernetes.requests:
        assert request.values("host") == [kubernetes.endpoint]
        assert request.values("authorization") == [f"Bearer {TOKEN}"]
        assert request.target.startswith("/")
        assert not request.target.startswith("/api/v1/nodes/n/proxy/")
        assert not request.values("impersonate-user")
    assert not [record for record in harness.audit if record.reason == "internal"]
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == []
    kubernetes.requests.clear()
    harness.audit.clear()
    caplog.clear()


async def repeat(one: Callable[[], Awaitable[None]], checked: Callable[[], None]) -> None:
    """Several at once, again and again until the time is over."""
    end = time.monotonic() + SECONDS

    async def several() -> None:
        while time.monotonic() < end:
            await one()
            checked()

    await asyncio.gather(*(several() for _ in range(AT_ONCE)))


async def read_to_the_end(client: Client) -> None:
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while await client.reader.read(65536):
                pass
    except (OSError, TimeoutError):
        pass  # the proxy ended it, or waits for the rest


async def check_that_it_still_works(harness: Harness, kubernetes: Origin) -> None:
    kubernetes.respond = answer(OK)
    async with await harness.tunnel(kubernetes.endpoint) as client:
        raw = f"GET /api HTTP/1.1\r\nHost: {kubernetes.endpoint}\r\nConnection: close\r\n\r\n"
        assert (await client.request(raw.encode())).body == b"ok"
    await eventually(lambda: harness.proxy.open_connections == 0)


@pytest.mark.parametrize("surface", FROM_CLIENTS.values(), ids=FROM_CLIENTS)
async def test_random_clients_reach_nothing_that_is_not_listed(
    harness: Harness,
    origin: Origin,
    kubernetes: Origin,
    caplog: pytest.LogCaptureFixture,
    chance: random.Random,
    surface: Surface,
) -> None:
    host = kubernetes.endpoint.encode()

    async def one() -> None:
        client = await (harness.tunnel(kubernetes.endpoint) if surface.tunnel else harness.connect())
        async with client:
            raw = surface.bytes(chance, host)
            try:
                if surface.below_tls:
                    os.write(client.writer.get_extra_info("socket").fileno(), raw)
                else:
                    at = chance.randrange(len(raw) + 1)
                    for part in (raw[:at], raw[at:]):
                        await client.send(part)
                        await asyncio.sleep(0)
            except OSError:
                return
            await read_to_the_end(client)

    def checked() -> None:
        check(harness, origin, kubernetes, caplog)

    await asyncio.gather(*(one() for _ in range(AT_ONCE)))
    memory = resident_bytes()
    await repeat(one, checked)
    await check_that_it_still_works(harness, kubernetes)
    assert resident_bytes() - memory < GROWTH_BYTES


@pytest.mark.parametrize("surface", FROM_ORIGINS.values(), ids=FROM_ORIGINS)
async def test_random_origins_get_nothing_past_the_framing_of_http(
    harness: Harness,
    origin: Origin,
    kubernetes: Origin,
    caplog: pytest.LogCaptureFixture,
    chance: random.Random,
    surface: Surface,
) -> None:
    async def respond(request: Received, writer: asyncio.StreamWriter) -> None:
        raw = surface.bytes(chance, b"evil.test")
        at = chance.randrange(len(raw) + 1)
        for part in (raw[:at], raw[at:]):
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(0)
        if chance.random() < 0.7:
            writer.close()

    async def one() -> None:
        async with await harness.tunnel(kubernetes.endpoint) as client:
            await client.send(f"GET /api HTTP/1.1\r\nHost: {kubernetes.endpoint}\r\n\r\n".encode())
            try:
                async with asyncio.timeout(PATIENCE_SECONDS):
                    response = await client.response()
            except (asyncio.IncompleteReadError, OSError, TimeoutError):
                return  # cut off, or the origin says no more
            assert all(
                name.isascii() and name.strip() == name and "\n" not in value and "\r" not in value
                for name, value in response.fields
            )

    def checked() -> None:
        check(harness, origin, kubernetes, caplog)

    kubernetes.respond = respond
    await asyncio.gather(*(one() for _ in range(AT_ONCE)))
    memory = resident_bytes()
    await repeat(one, checked)
    await check_that_it_still_works(harness, kubernetes)
    assert resident_bytes() - memory < GROWTH_BYTES
