"""Requests and responses on their way through the proxy, with well-behaved and hostile origins."""

import asyncio
import gzip
import hashlib
import time

import pytest

from cred_proxy.core import Limits
from tests.cred_proxy.harness import Client, Harness, allow, eventually
from tests.cred_proxy.origin import Origin, PrivateAuthority, Received, answer

MEGABYTE = 1_000_000


def request_for(
    origin: Origin, method: str = "GET", path: str = "/", *lines: str, body: bytes = b""
) -> bytes:
    head = [f"{method} {path} HTTP/1.1", f"Host: {origin.endpoint}", *lines]
    if body:
        head.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*head, "", ""]).encode() + body


async def test_a_request_reaches_an_allowlisted_origin_as_the_client_sent_it(
    harness: Harness, origin: Origin
) -> None:
    target = "/a%2Fb/../c;d//e\\f?q=%20&q=+%00&r"
    lines = ['X-Quoted: a="b c"; =d; e', "X-Twice: 1", "x-TWICE: 2", "X-Text: gr\u00fcn", "X-Empty:"]
    async with await harness.tunnel(origin.endpoint) as client:
        await client.request(request_for(origin, "PROPFIND", target, *lines, body=b"<xml/>"))
    (received,) = origin.requests
    assert received.line == f"PROPFIND {target} HTTP/1.1"
    assert received.body == b"<xml/>"
    assert received.fields == [
        ("Host", origin.endpoint),
        ("X-Quoted", 'a="b c"; =d; e'),
        ("X-Twice", "1"),
        ("X-Twice", "2"),
        ("X-Text", "gr\u00fcn".encode().decode("latin-1")),
        ("X-Empty", ""),
        ("Content-Length", "6"),
    ]


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "HEAD"])
async def test_a_request_without_a_body_stays_one(harness: Harness, origin: Origin, method: str) -> None:
    async with await harness.tunnel(origin.endpoint) as client:
        await client.request(request_for(origin, method), head_only=method == "HEAD")
    added = origin.requests[0].fields[1:]
    # RFC 9110 section 8.6: a request whose method anticipates a body says that there is none.
    assert added in ([], [("Content-Length", "0")])


async def test_a_response_reaches_the_client_as_the_origin_sent_it(harness: Harness, origin: Origin) -> None:
    compressed = gzip.compress(b"hello")
    origin.respond = answer(
        b"HTTP/1.1 299 Fine By Me\r\nContent-Encoding: gzip\r\nSet-Cookie: a=1\r\nSet-Cookie: b=2\r\n"
        b"X-Text: gr\xc3\xbcn\r\nContent-Length: %d\r\n\r\n%s" % (len(compressed), compressed)
    )
    async with await harness.tunnel(origin.endpoint) as client:
        response = await client.request(request_for(origin))
    assert (response.status, response.phrase, response.body) == (299, "Fine By Me", compressed)
    assert response.fields == [
        ("Content-Encoding", "gzip"),
        ("Set-Cookie", "a=1"),
        ("Set-Cookie", "b=2"),
        ("X-Text", "grün"),
        ("Content-Length", str(len(compressed))),
    ]


async def test_a_compressed_request_body_is_not_touched(harness: Harness, origin: Origin) -> None:
    compressed = gzip.compress(b"hello")
    async with await harness.tunnel(origin.endpoint) as client:
        await client.request(request_for(origin, "POST", "/", "Content-Encoding: gzip", body=compressed))
    assert origin.requests[0].body == compressed
    assert origin.requests[0].values("content-encoding") == ["gzip"]


async def test_a_redirect_is_passed_back_and_not_followed(harness: Harness, kubernetes: Origin) -> None:
    location = "https://evil.test/collect"
    kubernetes.respond = answer(
        f"HTTP/1.1 307 Go\r\nLocation: {location}\r\nContent-Length: 0\r\n\r\n".encode()
    )
    async with await harness.tunnel(kubernetes.endpoint) as client:
        response = await client.request(request_for(kubernetes, path="/api"))
    assert (response.status, response.value("location")) == (307, location)
    assert len(kubernetes.requests) == 1


@pytest.mark.parametrize(
    ("method", "raw", "body"),
    [
        ("HEAD", b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n", b""),
        ("GET", b"HTTP/1.1 204 No Content\r\n\r\n", b""),
        ("GET", b'HTTP/1.1 304 Not Modified\r\nETag: "x"\r\n\r\n', b""),
        ("GET", b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", b""),
        (
            "GET",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nX-T: 1\r\n\r\n",
            b"abc",
        ),
        (
            "GET",
            b"HTTP/1.1 103 Early\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
            b"ok",
        ),
        (
            "GET",
            200 * b"HTTP/1.1 100 Continue\r\n\r\n" + b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
            b"ok",
        ),
    ],
)
async def test_every_framing_of_a_response_leaves_the_connection_usable(
    harness: Harness, origin: Origin, method: str, raw: bytes, body: bytes
) -> None:
    origin.respond = answer(raw)
    async with await harness.tunnel(origin.endpoint) as client:
        for _ in range(2):
            response = await client.request(request_for(origin, method), head_only=method == "HEAD")
            assert response.body == body
            assert response.complete
    if method == "HEAD":
        assert response.value("content-length") == "1000"


async def test_a_response_that_ends_with_the_connection_is_whole(harness: Harness, origin: Origin) -> None:
    async def respond(request: Received, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.0 200 OK\r\n\r\nthe end is the end")
        await writer.drain()
        writer.close()
        await asyncio.sleep(5)

    origin.respond = respond
    async with await harness.tunnel(origin.endpoint) as client:
        response = await client.request(request_for(origin))
    assert (response.body, response.complete) == (b"the end is the end", True)


async def test_an_http_1_0_client_gets_a_response_without_chunks(harness: Harness, origin: Origin) -> None:
    origin.respond = answer(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n")
    async with await harness.tunnel(origin.endpoint) as client:
        response = await client.request(f"GET / HTTP/1.0\r\nHost: {origin.endpoint}\r\n\r\n".encode())
    assert response.value("transfer-encoding") is None
    assert response.body == b"abc"


@pytest.mark.parametrize(
    "raw",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nonly this",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nonly this\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nonly this\r\nzz\r\n",
    ],
)
async def test_a_response_that_breaks_off_breaks_off_for_the_client_too(
    harness: Harness, origin: Origin, raw: bytes
) -> None:
    async def respond(request: Received, writer: asyncio.StreamWriter) -> None:
        head, _, rest = raw.partition(b"\r\n\r\n")
        writer.write(head + b"\r\n\r\n")
        await asyncio.sleep(0.05)
        writer.write(rest)
        await writer.drain()
        await asyncio.sleep(0.05)
        writer.transport.abort()

    origin.respond = respond
    async with await harness.tunnel(origin.endpoint) as client:
        response = await client.request(request_for(origin))
        assert not response.complete
    assert harness.audit[-1].reason == "cut-off"


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\x00\x01\x02\x03\r\n\r\n",
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nabcdef",
        b"HTTP/1.1 200 OK\r\nX: " + 100_000 * b"a" + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + 5_000 * b"X: y\r\n" + b"\r\n",
        b"HTTP/1.1 101 Switching\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\nfree bytes",
    ],
)
async def test_what_is_no_response_becomes_a_bad_gateway(
    harness: Harness, origin: Origin, raw: bytes
) -> None:
    async def respond(request: Received, writer: asyncio.StreamWriter) -> None:
        writer.write(raw)
        await writer.drain()
        writer.close()

    origin.respond = respond
    async with await harness.tunnel(origin.endpoint) as client:
        response = await client.request(request_for(origin, "POST", body=b"x"))
        assert (response.status, response.phrase) == (502, "upstream broke the connection")


async def test_control_characters_in_a_response_head_make_no_second_header(
    harness: Harness, origin: Origin
) -> None:
    origin.respond = answer(
        b"HTTP/1.1 200 O\x7fK\r\nX-A: a\x0bb\r\nX-B: \xff\r\nX-C: fine\r\nContent-Length: 2\r\n\r\nok"
    )
    async with await harness.tunnel(origin.endpoint) as client:
        response = await client.request(request_for(origin))
    assert response.status in (200, 502)
    assert not {"X-A", "X-B"} & {name for name, _ in response.fields}


async def test_expect_100_continue_is_answered_once_the_request_is_accepted(
    harness: Harness, origin: Origin
) -> None:
    head = "PUT /x HTTP/1.1\r\nHost: {}\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n"
    async with await harness.tunnel(origin.endpoint) as client:
        await client.send(head.format(origin.endpoint).encode())
        assert (await client.head()).status == 100
        response = await client.request(b"hello")
        assert response.status == 200
        refused = await client.request(head.format("evil.test").encode())
        assert refused.status == 421
    assert [request.body for request in origin.requests] == [b"hello"]
    assert origin.requests[0].values("expect") == []


async def test_a_connection_is_reused_on_both_sides_also_after_refusals(
    harness: Harness, origin: Origin
) -> None:
    async with await harness.tunnel(origin.endpoint) as client:
        for host, status in [(origin.endpoint, 200), ("evil.test", 421)] * 3:
            response = await client.request(f"GET / HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
            assert response.status == status
    assert len(origin.requests) == 3
    assert origin.connections == 1


async def test_large_bodies_stream_in_both_directions(harness: Harness, origin: Origin) -> None:
    body = bytes(range(256)) * (24 * MEGABYTE // 256)

    async def respond(request: Received, writer: asyncio.StreamWriter) -> None:
        writer.write(f"HTTP/1.1 200 OK\r\nContent-Length: {len(request.body)}\r\n\r\n".encode())
        writer.write(request.body)

    origin.respond = respond
    digest = hashlib.sha256(body).digest()
    for framing in ("length", "chunked"):
        async with await harness.tunnel(origin.endpoint) as client:
            if framing == "length":
                sending = asyncio.create_task(client.send(request_for(origin, "PUT", body=body)))
            else:
                chunked = b"".join(
                    b"%x\r\n%s\r\n" % (len(body[i : i + MEGABYTE]), body[i : i + MEGABYTE])
                    for i in range(0, len(body), MEGABYTE)
                )
                head = request_for(origin, "PUT", "/", "Transfer-Encoding: chunked")
                sending = asyncio.create_task(client.send(head + chunked + b"0\r\n\r\n"))
            response = await client.response()
            await sending
        assert hashlib.sha256(response.body).digest() == digest
        assert hashlib.sha256(origin.requests[-1].body).digest() == digest
        await eventually(lambda: bool(harness.audit))
        record = harness.audit.pop()
        assert (record.bytes_up, record.bytes_down) == (len(body), len(body))


async def test_a_client_that_does_not_read_holds_the_origin_back(harness: Harness, origin: Origin) -> None:
    sent = 0

    async def respond(request: Received, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 200000000\r\n\r\n")
        for _ in range(200):
            writer.write(MEGABYTE * b"x")
            await writer.drain()
            sent += MEGABYTE

    origin.respond = respond
    async with await harness.tunnel(origin.endpoint) as client:
        await client.send(request_for(origin))
        await client.head()
        previous = -1
        async with asyncio.timeout(20):
            while sent != previous:  # until nothing moves any more
                previous = sent
                await asyncio.sleep(0.3)
        # What fits into the socket buffers of four connections and our own, but far from all of it.
        assert sent < 60 * MEGABYTE
    await eventually(lambda: origin.open_connections == 0)


async def test_an_origin_that_does_not_read_holds_the_client_back(harness: Harness, origin: Origin) -> None:
    async def respond(request: Received, writer: asyncio.StreamWriter) -> None:
        pass

    origin.respond = respond
    reading = asyncio.Event()

    async def never(reader: asyncio.StreamReader, connection: int) -> Received | None:
        await reader.readuntil(b"\r\n\r\n")
        await reading.wait()
        return None

    origin._read = never  # type: ignore[method-assign]
    sent = 0
    async with await harness.tunnel(origin.endpoint) as client:
        await client.send(request_for(origin, "PUT", "/", "Content-Length: 200000000"))
        with pytest.raises(TimeoutError):
            for _ in range(200):
                async with asyncio.timeout(1):
                    await client.send(MEGABYTE * b"x")
                sent += MEGABYTE
    assert sent < 60 * MEGABYTE
    reading.set()


@pytest.mark.parametrize("fields", [0, 1, 4])
async def test_requests_pipelined_behind_a_busy_one_do_not_pile_up(
    harness: Harness, origin: Origin, fields: int
) -> None:
    async def respond(request: Received, writer: asyncio.StreamWriter) -> None:
        await asyncio.Event().wait()

    request = request_for(origin, "GET", "/", *(f"X-{number}: {7000 * 'x'}" for number in range(fields)))
    burst = request * (MEGABYTE // len(request))
    sent = 0
    async with await harness.tunnel(origin.endpoint) as client:
        assert (await client.request(request)).status == 200
        origin.respond = respond
        with pytest.raises(TimeoutError):
            for _ in range(40):
                async with asyncio.timeout(1):
                    await client.send(burst)
                sent += 1
    # One is served, one is read ahead, the rest is in the buffers of sockets.
    assert sent < 16


async def test_an_event_reaches_the_client_when_it_happens(harness: Harness, kubernetes: Origin) -> None:
    sent_at: list[float] = []

    async def respond(request: Received, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        await asyncio.sleep(0.5)
        for _ in range(3):
            sent_at.append(time.monotonic())
            writer.write(b"6\r\nevent\n\r\n")
            await asyncio.sleep(0.2)
        writer.write(b"0\r\n\r\n")

    kubernetes.respond = respond
    async with await harness.tunnel(kubernetes.endpoint) as client:
        started = time.monotonic()
        await client.send(request_for(kubernetes, path="/api/v1/pods?watch=true"))
        await client.head()
        # The head comes before any event, or a client could not tell that its watch is set up.
        assert time.monotonic() - started < 0.5
        delays = []
        for number in range(3):
            await client.reader.readuntil(b"event\n\r\n")
            delays.append(time.monotonic() - sent_at[number])
    assert min(delays) < 0.1


async def test_a_watch_that_is_silent_longer_than_any_client_may_be_is_not_cut(
    kubernetes: Origin, origin_authority: PrivateAuthority, tmp_path_factory: pytest.TempPathFactory
) -> None:
    limits = Limits(keepalive_seconds=0.3, client_stall_seconds=0.3, connect_head_seconds=0.3)

    async def respond(request: Received, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        await asyncio.sleep(1.5)
        writer.write(b"2\r\nok\r\n0\r\n\r\n")

    kubernetes.respond = respond
    directory = tmp_path_factory.mktemp("silent")
    async with (
        Harness(directory, origin_authority, (), kubernetes, limits=limits) as harness,
        await harness.tunnel(kubernetes.endpoint) as client,
    ):
        response = await client.request(request_for(kubernetes, path="/api/v1/pods?watch=true"))
    assert (response.body, response.complete) == (b"ok", True)


async def test_a_client_that_leaves_ends_its_request_to_the_origin(
    harness: Harness, kubernetes: Origin
) -> None:
    async def respond(request: Received, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        await writer.drain()
        await asyncio.Event().wait()

    kubernetes.respond = respond
    client = await harness.tunnel(kubernetes.endpoint)
    await client.send(request_for(kubernetes, path="/api/v1/pods?watch=true"))
    await client.head()
    client.abort()
    await eventually(lambda: harness.proxy.open_connections == 0)
    await eventually(lambda: len(harness.audit) == 1)
    assert harness.audit[0].reason == "client-gone"


async def test_an_answer_that_comes_before_the_body_is_complete_reaches_the_client(
    harness: Harness, origin: Origin
) -> None:
    too_large = b"HTTP/1.1 413 Too Large\r\nContent-Length: 3\r\nConnection: close\r\n\r\nbig"

    async def refuse_early(reader: asyncio.StreamReader, connection: int) -> Received | None:
        await reader.readuntil(b"\r\n\r\n")
        return Received("PUT / HTTP/1.1", [], b"", connection)

    origin._read = refuse_early  # type: ignore[method-assign]
    origin.respond = answer(too_large)
    async with await harness.tunnel(origin.endpoint) as client:
        await client.send(request_for(origin, "PUT", "/", "Content-Length: 1000000") + b"the beginning")
        response = await client.response()
        assert (response.status, response.body) == (413, b"big")


@pytest.mark.parametrize(
    ("host", "port", "status", "phrase"),
    [
        ("nowhere.invalid", 443, 502, "upstream name does not resolve"),
        ("closed.test", 1, 502, "upstream not reachable"),
    ],
)
async def test_an_origin_that_cannot_be_reached_is_named(
    origin: Origin,
    origin_authority: PrivateAuthority,
    tmp_path_factory: pytest.TempPathFactory,
    host: str,
    port: int,
    status: int,
    phrase: str,
) -> None:
    missing = Origin(host)
    missing.port = port
    directory = tmp_path_factory.mktemp("missing")
    async with (
        Harness(directory, origin_authority, (allow(missing),)) as harness,
        await harness.tunnel(missing.endpoint) as client,
    ):
        for _ in range(2):  # the connection to the proxy stays usable
            response = await client.request(request_for(missing).replace(b":443", b""))
            assert (response.status, response.phrase) == (status, phrase)
            assert f"{host}:{port}".encode() in response.body


async def test_an_origin_that_never_answers_times_out(
    origin: Origin, origin_authority: PrivateAuthority, tmp_path_factory: pytest.TempPathFactory
) -> None:
    async def respond(request: Received, writer: asyncio.StreamWriter) -> None:
        await asyncio.Event().wait()

    origin.respond = respond
    limits = Limits(upstream_idle_seconds=0.3)
    directory = tmp_path_factory.mktemp("mute")
    async with (
        Harness(directory, origin_authority, (allow(origin),), limits=limits) as harness,
        await harness.tunnel(origin.endpoint) as client,
    ):
        response = await client.request(request_for(origin))
    assert (response.status, response.phrase) == (504, "upstream timed out")


async def test_a_refusal_on_a_kubernetes_route_is_a_status_object(
    harness: Harness, kubernetes: Origin
) -> None:
    path = "/api/v1/namespaces/a/pods/p/exec?command=sh"
    upgrade = ("Connection: Upgrade", "Upgrade: SPDY/3.1")
    async with await harness.tunnel(kubernetes.endpoint) as client:
        plain = await client.request(request_for(kubernetes, "POST", path))
        upgraded = await client.request(request_for(kubernetes, "POST", path, *upgrade))
    for response in (plain, upgraded):
        assert response.status == 403
        assert b'"kind": "Status"' in response.body
        assert b"not available from a sandbox" in response.body
    assert kubernetes.connections == 0


async def _websocket(client: Client, origin: Origin) -> int:
    upgrade = (
        "Connection: Upgrade",
        "Upgrade: websocket",
        "Sec-WebSocket-Key: a2V5",
        "Sec-WebSocket-Version: 13",
    )
    await client.send(request_for(origin, "GET", "/socket", *upgrade) + b"early")
    return (await client.head()).status


async def test_a_websocket_passes_where_upgrades_are_allowed(
    origin: Origin, origin_authority: PrivateAuthority, tmp_path_factory: pytest.TempPathFactory
) -> None:
    received = bytearray()
    reader_of: list[asyncio.StreamReader] = []
    read = origin._read

    async def remember(reader: asyncio.StreamReader, connection: int) -> Received | None:
        reader_of.append(reader)
        return await read(reader, connection)

    async def respond(request: Received, writer: asyncio.StreamWriter) -> None:
        writer.write(
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\nhi!"
        )
        while chunk := await reader_of[-1].read(65536):
            received.extend(chunk)
            writer.write(chunk)
            await writer.drain()

    origin._read = remember  # type: ignore[method-assign]
    origin.respond = respond
    directory = tmp_path_factory.mktemp("websocket")
    async with Harness(directory, origin_authority, (allow(origin, upgrades=True),)) as harness:
        async with await harness.tunnel(origin.endpoint) as client:
            assert await _websocket(client, origin) == 101
            assert await client.reader.readexactly(8) == b"hi!early"
            payload = bytes(range(256)) * 8000
            sending = asyncio.create_task(client.send(payload))
            assert await client.reader.readexactly(len(payload)) == payload
            await sending
            # Bytes that look like a request are none any more.
            await client.send(request_for(origin, path="/smuggled"))
            await client.reader.readuntil(b"smuggled")
        await eventually(lambda: origin.open_connections == 0)
        await eventually(lambda: len(harness.audit) == 1)
        assert harness.audit[0].status == 101
        assert harness.audit[0].bytes_down > len(payload)
    assert len(origin.requests) == 1


async def test_an_origin_may_decline_a_websocket(
    origin: Origin, origin_authority: PrivateAuthority, tmp_path_factory: pytest.TempPathFactory
) -> None:
    directory = tmp_path_factory.mktemp("declined")
    async with (
        Harness(directory, origin_authority, (allow(origin, upgrades=True),)) as harness,
        await harness.tunnel(origin.endpoint) as client,
    ):
        upgrade = ("Connection: Upgrade", "Upgrade: websocket")
        assert (await client.request(request_for(origin, "GET", "/", *upgrade))).status == 200
        assert (await client.request(request_for(origin))).status == 200
