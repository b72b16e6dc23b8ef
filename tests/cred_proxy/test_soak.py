"""What hours of use leave behind: nothing. `make soak` sets CLI_MCP_SOAK, and takes as long as it takes."""

import asyncio
import gc
import logging
import os
import random
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from aiohttp import ClientResponse, StreamReader, web

from cred_proxy.client_connection import ClientConnection, ConnectProtocol
from cred_proxy.exchange import Exchange
from cred_proxy.upload import Upload
from tests.cred_proxy.harness import Client, Harness, eventually
from tests.cred_proxy.origin import OK, Origin, Received

SOAK = "CLI_MCP_SOAK" in os.environ
CONNECTIONS = 20_000 if SOAK else 600
REQUESTS = 5_000 if SOAK else 50
AT_ONCE = 16
SILENT_SECONDS = 600.0
# The allocator's own; in the short form, its first arenas.
GROWTH_BYTES = 8_000_000
PER_CONNECTION = (ConnectProtocol, ClientConnection, Exchange, Upload)


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def alive(kinds: tuple[type, ...]) -> list[str]:
    gc.collect()
    return [type(one).__name__ for one in gc.get_objects() if isinstance(one, kinds)]


async def respond(request: Received, writer: asyncio.StreamWriter) -> None:
    """What the path says: everything an origin can do to a client."""
    if request.target == "/silent":
        await writer.wait_closed()
    elif request.target == "/breaks":
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")
        await writer.drain()
        writer.transport.abort()
    elif request.target == "/malformed":
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n")
    elif request.target == "/large":
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n" + bytes(1_000_000))
    elif request.target == "/watch":
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n")
        await writer.wait_closed()
    else:
        writer.write(OK)


Stage = Callable[[Client, Origin, random.Random], Awaitable[object]]


def head(origin: Origin, path: str, method: str = "GET", more: str = "") -> bytes:
    return f"{method} {path} HTTP/1.1\r\nHost: {origin.endpoint}\r\n{more}\r\n".encode()


def begun(path: str) -> Stage:
    return lambda client, origin, _: client.request(head(origin, path), head_only=True)


async def whole(client: Client, origin: Origin, _: random.Random) -> None:
    for _again in range(2):
        assert (await client.request(head(origin, "/api"))).status == 200


async def broken(client: Client, origin: Origin, chance: random.Random) -> None:
    response = await client.request(head(origin, chance.choice(["/breaks", "/malformed"])))
    assert response.status == 502 or not response.complete


async def refused(client: Client, origin: Origin, _: random.Random) -> None:
    raw = b"GET / HTTP/1.1\r\nHost: evil.test\r\n\r\n"
    assert (await client.request(raw)).status == 421


# Where a client goes, from the first byte inside TLS on.
STAGES: dict[str, Stage] = {
    "at once": lambda client, origin, chance: client.send(b""),
    "in the head": lambda client, origin, chance: client.send(
        head(origin, "/api")[: chance.randrange(1, 20)]
    ),
    "before the answer": lambda client, origin, chance: client.send(head(origin, "/silent")),
    "in the body": lambda client, origin, chance: client.send(
        head(origin, "/api", "POST", "Content-Length: 9\r\n") + b"half"
    ),
    "in the chunks": lambda client, origin, chance: client.send(
        head(origin, "/api", "POST", "Transfer-Encoding: chunked\r\n") + b"5\r\nhal"
    ),
    "in pipelined requests": lambda client, origin, chance: client.send(5 * head(origin, "/api")),
    "in the answer": begun("/large"),
    "in a watch": begun("/watch"),
    "after a broken answer": broken,
    "after a refusal": refused,
    "properly": whole,
}
# Where it goes before that.
EARLY_STAGES = ("at once", "in the CONNECT", "after a refused CONNECT", "before the handshake", "in it")


async def live(harness: Harness, origin: Origin, chance: random.Random) -> None:
    """One connection, to where chance ends it: by a reset, or by an orderly end of what it sends."""
    stage = chance.choice([*STAGES, *EARLY_STAGES])
    connect = f"CONNECT {origin.endpoint} HTTP/1.1\r\n\r\n".encode()
    if stage in STAGES:
        async with await harness.tunnel(origin.endpoint) as client:
            await STAGES[stage](client, origin, chance)
            if chance.random() < 0.3:
                client.writer.close()
        return
    async with await harness.connect() as client:
        if stage == "in the CONNECT":
            await client.send(connect[: chance.randrange(1, len(connect))])
        elif stage == "after a refused CONNECT":
            assert (await client.request(b"CONNECT evil.test:443 HTTP/1.1\r\n\r\n")).status == 403
        elif stage != "at once":
            await client.request(connect, head_only=True)
            if stage == "in it":
                await client.send(b"\x16\x03\x01\x02\x00" + chance.randbytes(chance.randrange(200)))
        if chance.random() < 0.3:
            client.writer.write_eof()
            await asyncio.sleep(0.01)


async def test_connections_of_every_kind_leave_nothing_behind(
    harness: Harness, origin: Origin, caplog: pytest.LogCaptureFixture
) -> None:
    """Connections that are aborted at every stage: no descriptor, task, object or memory stays."""
    origin.respond = respond
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)

    async def several(count: int) -> None:
        for _ in range(count):
            await live(harness, origin, chance)

    async def at_once(count: int) -> None:
        await asyncio.gather(*(several(count // AT_ONCE) for _ in range(AT_ONCE)))
        await eventually(lambda: harness.proxy.open_connections == 0)
        harness.audit.clear()
        origin.requests.clear()
        origin.server_names.clear()
        gc.collect()

    await at_once(CONNECTIONS // 4)
    descriptors, tasks, memory = len(os.listdir("/proc/self/fd")), len(asyncio.all_tasks()), resident_bytes()
    for _ in range(3):
        await at_once(CONNECTIONS // 4)
    # Connections to the origin wait for the next request, at most as many as were needed at the same time.
    await eventually(lambda: len(asyncio.all_tasks()) <= tasks + AT_ONCE)
    await eventually(lambda: len(os.listdir("/proc/self/fd")) <= descriptors + 2 * AT_ONCE)
    await eventually(lambda: alive(PER_CONNECTION) == [])
    assert resident_bytes() - memory < GROWTH_BYTES
    errors = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    assert errors == []


async def test_many_requests_on_one_connection_leave_nothing_behind(harness: Harness, origin: Origin) -> None:
    origin.respond = respond
    async with await harness.tunnel(origin.endpoint) as client:
        for path in REQUESTS * ("/large", "/api"):
            assert (await client.request(head(origin, path))).complete
        kept = alive((StreamReader, web.BaseRequest, ClientResponse))
        assert origin.connections == 1
    assert len(kept) < 10, kept


@pytest.mark.skipif(not SOAK, reason="takes ten minutes; make soak")
async def test_a_watch_that_is_silent_for_ten_minutes_is_not_cut(
    harness: Harness, kubernetes: Origin
) -> None:
    async def stay_silent(request: Received, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        await asyncio.sleep(SILENT_SECONDS)
        writer.write(b"2\r\nok\r\n0\r\n\r\n")

    kubernetes.respond = stay_silent
    async with await harness.tunnel(kubernetes.endpoint) as client:
        started = time.monotonic()
        await client.send(head(kubernetes, "/api/v1/pods?watch=true"))
        await client.head()
        assert await client.reader.readuntil(b"0\r\n\r\n") == b"2\r\nok\r\n0\r\n\r\n"
        assert time.monotonic() - started >= SILENT_SECONDS
