"""Every way round the proxy that a client can write on the wire, and what reached the origin of it."""

import asyncio
import os
import socket
import ssl
from pathlib import Path

import pytest

from cred_proxy.core import Limits
from cred_proxy.proxy import ClientIdentity
from tests.cred_proxy.harness import TOKEN, Harness, allow, eventually
from tests.cred_proxy.origin import OK, Origin, PrivateAuthority, Received, answer
from tests.cred_proxy.test_kubernetes_path import DENIED, MALFORMED

CHUNKED = "Transfer-Encoding: chunked\r\n"
HOST = "Host: {host}\r\n"


@pytest.mark.parametrize(
    "head",
    [
        "CONNECT {name}:1 HTTP/1.1\r\n\r\n",
        "CONNECT 127.0.0.1:{port} HTTP/1.1\r\n\r\n",
        "CONNECT [::1]:{port} HTTP/1.1\r\n\r\n",
        "CONNECT localhost:{port} HTTP/1.1\r\n\r\n",
        "CONNECT {name}.:{port} HTTP/1.1\r\n\r\n",
        "CONNECT user@{name}:{port} HTTP/1.1\r\n\r\n",
        "CONNECT evil.test:{port} HTTP/1.1\r\nHost: {host}\r\n\r\n",
        "GET https://{host}/ HTTP/1.1\r\nHost: {host}\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: {host}\r\n\r\n",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        "GET /\r\n\r\n",
        "CONNECT {host} HTTP/1.1\r\n\r\nGET / HTTP/1.1\r\nHost: {host}\r\n\r\n",
        "CONNECT {host} HTTP/1.1\r\nX: " + 17_000 * "a" + "\r\n\r\n",
        "CONNECT {host} HTTP/1.1\r\n" + 4_000 * "X: y\r\n" + "\r\n",
    ],
)
async def test_no_other_head_opens_a_tunnel(harness: Harness, origin: Origin, head: str) -> None:
    async with await harness.connect() as client:
        raw = head.format(host=origin.endpoint, name=origin.host, port=origin.port).encode()
        response = await client.request(raw)
        assert 400 <= response.status < 500
        assert await client.is_closed()
    assert origin.connections == 0
    assert [record.event for record in harness.audit] == ["connect"]


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        # another host
        ("GET / HTTP/1.1\r\nHost: evil.test\r\n\r\n", 421),
        ("GET / HTTP/1.1\r\nHost: {name}\r\n\r\n", 421),
        ("GET / HTTP/1.1\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\n" + HOST + "Host: evil.test\r\n\r\n", 400),
        ("GET https://evil.test/ HTTP/1.1\r\n" + HOST + "\r\n", 400),
        ("GET https://{host}/ HTTP/1.1\r\n" + HOST + "\r\n", 400),
        ("GET @evil.test/ HTTP/1.1\r\n" + HOST + "\r\n", 400),
        ("GET evil.test HTTP/1.1\r\n" + HOST + "\r\n", 400),
        ("OPTIONS * HTTP/1.1\r\n" + HOST + "\r\n", 400),
        ("CONNECT evil.test:443 HTTP/1.1\r\n" + HOST + "\r\n", 405),
        ("TRACE / HTTP/1.1\r\n" + HOST + "\r\n", 405),
        # two ways to see where a request ends
        ("POST / HTTP/1.1\r\n" + HOST + "Content-Length: 3\r\n" + CHUNKED + "\r\n0\r\n\r\n", 400),
        ("POST / HTTP/1.1\r\n" + HOST + CHUNKED + "Content-Length: 3\r\n\r\n0\r\n\r\n", 400),
        ("POST / HTTP/1.1\r\n" + HOST + "Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc", 400),
        ("POST / HTTP/1.1\r\n" + HOST + "Content-Length: 3, 3\r\n\r\nabc", 400),
        ("POST / HTTP/1.1\r\n" + HOST + "Content-Length: +3\r\n\r\nabc", 400),
        ("POST / HTTP/1.1\r\n" + HOST + "Content-Length: 0x3\r\n\r\nabc", 400),
        ("POST / HTTP/1.1\r\n" + HOST + "Content-Length: -1\r\n\r\n", 400),
        ("POST / HTTP/1.1\r\n" + HOST + "Content-Length: 99999999999999999999\r\n\r\n", 400),
        ("POST / HTTP/1.1\r\n" + HOST + "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", 400),
        ("POST / HTTP/1.1\r\n" + HOST + "Transfer-Encoding: chunked, gzip\r\n\r\n0\r\n\r\n", 400),
        ("POST / HTTP/1.1\r\n" + HOST + "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501),
        ("POST / HTTP/1.1\r\n" + HOST + "Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n", 400),
        ("POST / HTTP/1.1\r\n" + HOST + "Transfer-Encoding: chunked\r\nTransfer-Encoding: x\r\n\r\n", 400),
        ("POST / HTTP/1.0\r\n" + HOST + CHUNKED + "\r\n0\r\n\r\n", 501),
        # lines that two parsers read differently
        ("GET / HTTP/1.1\r\n" + HOST + "Authorization : Bearer x\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\n" + HOST + " Authorization: Bearer x\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\n" + HOST + "X: a\r\n Authorization: Bearer x\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\n" + HOST + "\tX: a\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\n" + HOST + "X: a\0b\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\n" + HOST + "X\0: b\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\n" + HOST + "X: a\rAuthorization: Bearer x\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\n" + HOST + "X: a\nAuthorization: Bearer x\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\n" + HOST + "X: \xe9\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\n" + HOST + ": a\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\n" + HOST + "Authorization\r\n\r\n", 400),
        ("GET /a b HTTP/1.1\r\n" + HOST + "\r\n", 400),
        ("GET /\0 HTTP/1.1\r\n" + HOST + "\r\n", 400),
        ("GET /\xe9 HTTP/1.1\r\n" + HOST + "\r\n", 400),
        ("GET /#x HTTP/1.1\r\n" + HOST + "\r\n", 400),
        ("GET / HTTP/1.1 x\r\n" + HOST + "\r\n", 400),
        ("get / HTTP/1.1\r\n" + HOST + "\r\n", 400),
        ("GET / HTTP/2.0\r\n" + HOST + "\r\n", 505),
        ("GET / HTTP/1.2\r\n" + HOST + "\r\n", 400),
        ("GET /\r\n\r\n", 505),
        ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
        ("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
        # too much of it
        ("GET / HTTP/1.1\r\n" + HOST + "X: " + 20_000 * "a" + "\r\n\r\n", 400),
        ("GET /" + 20_000 * "a" + " HTTP/1.1\r\n" + HOST + "\r\n", 400),
        ("GET / HTTP/1.1\r\n" + HOST + 150 * "X: y\r\n" + "\r\n", 400),
        # what is asked of the origin
        ("GET / HTTP/1.1\r\n" + HOST + "Expect: 200-ok\r\n\r\n", 417),
        ("GET / HTTP/1.1\r\n" + HOST + "Upgrade: websocket\r\nConnection: Upgrade\r\n\r\n", 403),
        ("GET / HTTP/1.1\r\n" + HOST + "Upgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\n\r\n", 403),
    ],
)
async def test_a_request_that_could_be_read_differently_never_leaves(
    harness: Harness, origin: Origin, raw: str, status: int
) -> None:
    async with await harness.tunnel(origin.endpoint) as client:
        response = await client.request(raw.format(host=origin.endpoint, name=origin.host).encode("latin-1"))
    assert response.status == status
    assert origin.connections == 0
    assert harness.audit[0].status == status
    assert harness.audit[0].reason is not None


async def test_a_request_pipelined_behind_a_malformed_one_is_never_read(
    harness: Harness, origin: Origin
) -> None:
    good = f"GET /second HTTP/1.1\r\nHost: {origin.endpoint}\r\n\r\n"
    async with await harness.tunnel(origin.endpoint) as client:
        response = await client.request(f"GET / HTTP/1.1\r\nX : y\r\n\r\n{good}".encode())
        assert response.status == 400
        assert await client.is_closed()
    assert origin.requests == []


async def test_a_request_pipelined_behind_a_refused_one_is_judged_by_itself(
    harness: Harness, kubernetes: Origin
) -> None:
    denied = f"GET /api/v1/nodes/n/proxy/x HTTP/1.1\r\nHost: {kubernetes.endpoint}\r\n\r\n"
    good = f"GET /api/v1/pods HTTP/1.1\r\nHost: {kubernetes.endpoint}\r\n\r\n"
    async with await harness.tunnel(kubernetes.endpoint) as client:
        await client.send((denied + good + denied).encode())
        statuses = [(await client.response()).status for _ in range(3)]
    assert statuses == [403, 200, 403]
    assert [request.target for request in kubernetes.requests] == ["/api/v1/pods"]


async def test_what_follows_a_refused_upgrade_is_a_request_and_not_a_tunnel(
    harness: Harness, origin: Origin
) -> None:
    upgrade = (
        f"GET / HTTP/1.1\r\nHost: {origin.endpoint}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
    )
    smuggled = "GET /smuggled HTTP/1.1\r\nHost: evil.test\r\n\r\n"
    async with await harness.tunnel(origin.endpoint) as client:
        await client.send((upgrade + smuggled).encode())
        assert (await client.response()).status == 403
        assert (await client.response()).status == 421
    assert origin.connections == 0


async def test_a_body_is_never_taken_for_a_request(harness: Harness, origin: Origin) -> None:
    inner = b"GET /inner HTTP/1.1\r\nHost: x\r\n\r\n"
    refused = f"POST / HTTP/1.1\r\nHost: evil.test\r\nContent-Length: {len(inner)}\r\n\r\n".encode() + inner
    passed = (
        f"POST / HTTP/1.1\r\nHost: {origin.endpoint}\r\nContent-Length: {len(inner)}\r\n\r\n".encode() + inner
    )
    async with await harness.tunnel(origin.endpoint) as client:
        assert (await client.request(passed)).status == 200
        assert (await client.request(refused)).status == 421
        assert await client.is_closed()
    assert [(request.target, request.body) for request in origin.requests] == [("/", inner)]


async def test_trailers_do_not_reach_the_origin(harness: Harness, origin: Origin) -> None:
    raw = (
        f"POST / HTTP/1.1\r\nHost: {origin.endpoint}\r\n{CHUNKED}Trailer: Authorization\r\n\r\n"
        "3\r\nabc\r\n0\r\nAuthorization: Bearer smuggled\r\nX: y\r\n\r\n"
    )
    async with await harness.tunnel(origin.endpoint) as client:
        assert (await client.request(raw.encode())).status == 200
        assert (
            await client.request(f"GET /2 HTTP/1.1\r\nHost: {origin.endpoint}\r\n\r\n".encode())
        ).status == 200
    assert [request.body for request in origin.requests] == [b"abc", b""]
    assert not any(request.values("authorization") for request in origin.requests)


async def test_chunk_extensions_and_bad_chunks_do_not_reach_the_origin(
    harness: Harness, origin: Origin
) -> None:
    head = f"POST / HTTP/1.1\r\nHost: {origin.endpoint}\r\n{CHUNKED}\r\n"
    async with await harness.tunnel(origin.endpoint) as client:
        assert (await client.request(f"{head}3;a=b\r\nabc\r\n0\r\n\r\n".encode())).status == 200
    assert origin.requests[0].body == b"abc"
    for bad in (
        "3\nabc\r\n0\r\n\r\n",
        "-3\r\nabc\r\n0\r\n\r\n",
        "3 \r\nabc\r\n0\r\n\r\n",
        "3\r\nabcd\r\n0\r\n\r\n",
    ):
        async with await harness.tunnel(origin.endpoint) as client:
            await client.send((head + bad).encode())
            response = await client.response()
            assert response.status == 400, (bad, response)
    assert len(origin.requests) == 1


@pytest.mark.parametrize("rest", ["zz\r\n", "3\r\nabcd\r\n", "0\r\n\r\t", "3\nabc\r\n"])
async def test_a_bad_chunk_in_a_later_segment_ends_the_request_too(
    harness: Harness, origin: Origin, rest: str
) -> None:
    async with await harness.tunnel(origin.endpoint) as client:
        await client.send(f"POST / HTTP/1.1\r\nHost: {origin.endpoint}\r\n{CHUNKED}\r\n3\r\nabc\r\n".encode())
        await eventually(lambda: origin.open_connections > 0)
        await client.send(rest.encode())
        assert (await client.response()).status == 400
        assert await client.is_closed()
    await eventually(lambda: harness.proxy.open_connections == 0)
    assert origin.requests == []
    assert [record.reason for record in harness.audit] == ["bad-request"]


async def test_a_client_that_leaves_behind_what_nobody_reads_holds_no_connection(
    origin: Origin, origin_authority: PrivateAuthority, tmp_path: Path
) -> None:
    """The end of what it sends is not seen behind its second request, and the first may take for ever."""

    async def respond(request: Received, writer: asyncio.StreamWriter) -> None:
        await writer.wait_closed()

    origin.respond = respond
    limits = Limits(unread_seconds=0.5)
    async with Harness(tmp_path, origin_authority, (allow(origin),), limits=limits) as harness:
        client = await harness.tunnel(origin.endpoint)
        await client.send(2 * f"GET / HTTP/1.1\r\nHost: {origin.endpoint}\r\n\r\n".encode())
        await eventually(lambda: len(origin.requests) > 0)
        client.writer.close()
        await eventually(lambda: harness.proxy.open_connections == 0)
        await eventually(lambda: origin.open_connections == 0)
    assert len(origin.requests) == 1


@pytest.mark.parametrize("second", ["GET", "no request at all\r\n\r\n", "POST"])
async def test_a_client_that_leaves_before_its_last_answer_holds_no_connection_after_it(
    harness: Harness, origin: Origin, second: str
) -> None:
    left = asyncio.Event()

    async def respond(request: Received, writer: asyncio.StreamWriter) -> None:
        await left.wait()
        await asyncio.sleep(0.1)
        writer.write(OK)

    origin.respond = respond
    rest = f" / HTTP/1.1\r\nHost: {origin.endpoint}\r\nContent-Length: 0\r\n\r\n"
    client = await harness.tunnel(origin.endpoint)
    await client.send(f"GET{rest}{second}{rest}".encode())
    await eventually(lambda: len(origin.requests) > 0)
    client.abort()
    left.set()
    await eventually(lambda: harness.proxy.open_connections == 0)


async def test_a_client_that_stops_in_its_body_leaves_no_complete_request(
    harness: Harness, origin: Origin
) -> None:
    for framing in (CHUNKED + "\r\n3\r\nabc\r\n", "Content-Length: 9\r\n\r\nabc"):
        async with await harness.tunnel(origin.endpoint) as client:
            await client.send(f"POST / HTTP/1.1\r\nHost: {origin.endpoint}\r\n{framing}".encode())
            await eventually(lambda: origin.open_connections > 0)
            client.abort()
            await eventually(lambda: origin.open_connections == 0)
    assert origin.incomplete == 2
    assert origin.requests == []


@pytest.mark.parametrize("name", ["evil.test", "x.origin.test", "api.test"])
async def test_a_handshake_for_another_name_fails(harness: Harness, origin: Origin, name: str) -> None:
    with pytest.raises((ssl.SSLError, OSError)):
        await harness.tunnel(origin.endpoint, server_name=name)
    await eventually(lambda: len(harness.audit) == 1)
    assert harness.audit[0].reason == "tls-failed"
    assert origin.connections == 0


async def test_a_handshake_without_a_name_or_in_capitals_works(harness: Harness, origin: Origin) -> None:
    request = f"GET / HTTP/1.1\r\nHost: {origin.endpoint}\r\n\r\n".encode()
    async with await harness.tunnel(origin.endpoint, server_name=None) as client:
        assert (await client.request(request)).status == 200
    async with await harness.tunnel(origin.endpoint.upper(), server_name="ORIGIN.test") as client:
        assert (await client.request(request)).status == 200
    assert origin.server_names == ["origin.test"]


async def test_whatever_credential_a_client_sends_the_origin_sees_the_injected_one(
    harness: Harness, kubernetes: Origin
) -> None:
    lines = [
        "Authorization: Bearer stolen",
        "authorization: Basic c3RvbGVu",
        "Proxy-Authorization: Bearer stolen",
        "X-Api-Key: stolen",
        "Cookie: session=stolen",
        "X-Original-URL: /api/v1/nodes/n/proxy/run",
        "X-SSL-Client-Cert: stolen",
        "Sec-WebSocket-Protocol: base64url.bearer.authorization.k8s.io.c3RvbGVu",
        "Connection: Authorization, Host, keep-alive",
    ]
    raw = "\r\n".join(["GET /api HTTP/1.1", f"Host: {kubernetes.endpoint}", *lines, "Accept: */*", "", ""])
    async with await harness.tunnel(kubernetes.endpoint) as client:
        assert (await client.request(raw.encode())).status == 200
    assert kubernetes.requests[0].fields == [
        ("Host", kubernetes.endpoint),
        ("Accept", "*/*"),
        ("Authorization", f"Bearer {TOKEN}"),
    ]


@pytest.mark.parametrize(
    "line",
    [
        "Impersonate-User: nobody",
        "impersonate_group: system:masters",
        "X-Remote-User: system:admin",
        "X-HTTP-Method-Override: DELETE",
        "Impersonate-User: nobody\r\nConnection: Impersonate-User",
    ],
)
async def test_what_would_be_answered_as_another_question_never_leaves(
    harness: Harness, kubernetes: Origin, line: str
) -> None:
    raw = f"POST /api HTTP/1.1\r\nHost: {kubernetes.endpoint}\r\nContent-Length: 2\r\n{line}\r\n\r\n{{}}"
    async with await harness.tunnel(kubernetes.endpoint) as client:
        response = await client.request(raw.encode())
    assert response.status == 403
    assert "not available from a sandbox" in response.body.decode() or "method" in response.body.decode()
    assert kubernetes.connections == 0
    assert [record.reason for record in harness.audit] == ["field-not-allowed"]


async def test_a_tunnel_to_one_route_never_carries_the_credential_of_another(
    harness: Harness, origin: Origin, kubernetes: Origin
) -> None:
    async with await harness.tunnel(origin.endpoint) as client:
        misdirected = await client.request(f"GET / HTTP/1.1\r\nHost: {kubernetes.endpoint}\r\n\r\n".encode())
        passed = await client.request(f"GET / HTTP/1.1\r\nHost: {origin.endpoint}\r\n\r\n".encode())
    assert (misdirected.status, passed.status) == (421, 200)
    assert origin.requests[0].values("authorization") == []
    assert kubernetes.connections == 0


async def test_an_upstream_with_a_certificate_of_somebody_else_gets_nothing(
    origin: Origin, origin_authority: PrivateAuthority, tmp_path: Path
) -> None:
    impostor = Origin("api.test")
    await impostor.start(PrivateAuthority().server_context("api.test", tmp_path))
    wrong_name = Origin("other.test")
    await wrong_name.start(origin_authority.server_context("origin.test", tmp_path))
    async with Harness(tmp_path, origin_authority, (allow(wrong_name),), impostor) as harness:
        for target in (impostor, wrong_name):
            async with await harness.tunnel(target.endpoint) as client:
                response = await client.request(
                    f"GET /api HTTP/1.1\r\nHost: {target.endpoint}\r\n\r\n".encode()
                )
                assert (response.status, response.phrase) == (502, "upstream certificate not trusted")
    assert impostor.requests == wrong_name.requests == []
    await asyncio.gather(impostor.stop(), wrong_name.stop())


@pytest.mark.parametrize("path", [*DENIED, *MALFORMED])
async def test_no_spelling_of_a_denied_path_reaches_the_server(
    harness: Harness, kubernetes: Origin, path: str
) -> None:
    for method in ("GET", "POST"):
        async with await harness.tunnel(kubernetes.endpoint) as client:
            raw = f"{method} {path} HTTP/1.1\r\nHost: {kubernetes.endpoint}\r\nContent-Length: 0\r\n\r\n"
            assert (await client.request(raw.encode())).status in (400, 403)
    assert kubernetes.connections == 0


@pytest.mark.parametrize(
    "target", ["//evil.test/x", "/@evil.test", "/\\evil.test", "/..//%2e%2e/https://evil.test/?a=b?c=//d"]
)
async def test_a_path_that_resembles_another_host_stays_a_path(
    harness: Harness, origin: Origin, target: str
) -> None:
    async with await harness.tunnel(origin.endpoint) as client:
        await client.request(f"GET {target} HTTP/1.1\r\nHost: {origin.endpoint}\r\n\r\n".encode())
    assert [request.target for request in origin.requests] == [target]


POISON = b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\npoison"


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize("delay_seconds", [0, 0.2])
async def test_what_an_origin_sends_unasked_answers_no_other_clients_request(
    harness: Harness, origin: Origin, method: str, delay_seconds: float
) -> None:
    async def respond(request: Received, writer: asyncio.StreamWriter) -> None:
        writer.write(OK.removesuffix(b"ok") if request.line.startswith("HEAD") else OK)
        if request.target == "/first":
            await asyncio.sleep(delay_seconds)
            writer.write(POISON)

    origin.respond = respond
    async with await harness.tunnel(origin.endpoint) as client:
        first = f"{method} /first HTTP/1.1\r\nHost: {origin.endpoint}\r\n\r\n".encode()
        assert (await client.request(first, head_only=method == "HEAD")).status == 200
    await asyncio.sleep(2 * delay_seconds)
    harness.port = await harness.listen(ClientIdentity("another"))
    async with await harness.tunnel(origin.endpoint) as client:
        second = await client.request(f"GET /2 HTTP/1.1\r\nHost: {origin.endpoint}\r\n\r\n".encode())
    assert second.body == b"ok"
    assert [request.target for request in origin.requests] == ["/first", "/2"]


async def test_a_cookie_of_an_origin_is_remembered_by_nobody(harness: Harness, origin: Origin) -> None:
    origin.respond = answer(OK.replace(b"\r\n", b"\r\nSet-Cookie: session=1\r\n", 1))
    async with await harness.tunnel(origin.endpoint) as client:
        for _ in range(2):
            raw = f"GET / HTTP/1.1\r\nHost: {origin.endpoint}\r\n\r\n".encode()
            assert (await client.request(raw)).value("set-cookie") == "session=1"
    assert not any(request.values("cookie") for request in origin.requests)


FLOOD_BYTES = 20_000_000
FLOOD_SECONDS = 1.0


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize(
    ("begin", "piece"),
    [
        ("0\r\n", "X: y\r\n"),
        ("0\r\n", "X: " + 4_000 * "y" + "\r\n"),
        ("0\r\nX: ", 4_096 * "y"),
        ("1;", 4_096 * "x"),
        ("", 4_096 * "0"),
        ("", "1;a=b\r\nx\r\n"),
    ],
    ids=["trailers", "long trailers", "one trailer", "chunk extension", "chunk size", "tiny chunks"],
)
async def test_a_chunked_body_without_end_fills_no_memory(
    harness: Harness, origin: Origin, begin: str, piece: str
) -> None:
    head = f"POST / HTTP/1.1\r\nHost: {origin.endpoint}\r\n{CHUNKED}\r\n{begin}"
    flood = (piece * (65536 // len(piece))).encode()
    before = resident_bytes()
    async with await harness.tunnel(origin.endpoint) as client:
        try:
            async with asyncio.timeout(FLOOD_SECONDS):
                await client.send(head.encode())
                for _ in range(FLOOD_BYTES // len(flood)):
                    await client.send(flood)
        except (OSError, TimeoutError):
            pass  # refused, or held back by an origin that takes no more
        assert resident_bytes() - before < FLOOD_BYTES / 2
    assert origin.requests == []


@pytest.mark.parametrize(
    ("begin", "piece"),
    [
        ("HTTP/1.1 200 OK\r\n", "X: y\r\n"),
        ("HTTP/1.1 200 OK\r\n", "X: " + 4_000 * "y" + "\r\n"),
        ("HTTP/1.1 200 OK\r\nX: ", 4_096 * "y"),
        ("HTTP/1.1 200 ", 4_096 * "y"),
        ("", "HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"),
        ("", "\r\n"),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n", "X: y\r\n"),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;", 4_096 * "x"),
    ],
    ids=[
        *("fields", "long fields", "one field", "phrase", "early hints", "empty lines"),
        *("trailers", "chunk extension"),
    ],
)
async def test_a_response_without_end_fills_no_memory(
    harness: Harness, origin: Origin, begin: str, piece: str
) -> None:
    flood = (piece * (65536 // len(piece))).encode()

    async def respond(request: Received, writer: asyncio.StreamWriter) -> None:
        writer.write(begin.encode())
        for _ in range(FLOOD_BYTES // len(flood)):
            writer.write(flood)
            await writer.drain()
        await asyncio.sleep(60)

    origin.respond = respond
    before = resident_bytes()
    async with await harness.tunnel(origin.endpoint) as client:
        await client.send(f"GET / HTTP/1.1\r\nHost: {origin.endpoint}\r\n\r\n".encode())
        try:
            async with asyncio.timeout(FLOOD_SECONDS):
                while await client.reader.read(65536):
                    pass
        except (OSError, TimeoutError):
            pass  # cut off, or the proxy waits for an end that does not come
        assert resident_bytes() - before < FLOOD_BYTES / 2
    await eventually(lambda: harness.proxy.open_connections == 0)


@pytest.mark.filterwarnings("ignore:.*TLSv1_1 is deprecated")
async def test_old_tls_is_refused(harness: Harness, origin: Origin) -> None:
    context = harness.trust()
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises((ssl.SSLError, OSError)):
        await harness.tunnel(origin.endpoint, context=context)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_a_tls_session_with_one_target_opens_no_other(
    harness: Harness, origin: Origin, kubernetes: Origin, version: ssl.TLSVersion
) -> None:
    context = harness.trust()
    context.maximum_version = version

    def get(target: Origin, session: ssl.SSLSession | None) -> tuple[ssl.SSLSession | None, bool | None]:
        with socket.create_connection(("127.0.0.1", harness.port)) as plain:
            plain.sendall(f"CONNECT {target.endpoint} HTTP/1.1\r\n\r\n".encode())
            assert b" 200 " in plain.recv(4096)
            with context.wrap_socket(plain, server_hostname=target.host, session=session) as encrypted:
                encrypted.sendall(f"GET /api HTTP/1.1\r\nHost: {target.endpoint}\r\n\r\n".encode())
                assert b" 200 " in encrypted.recv(4096)
                return encrypted.session, encrypted.session_reused

    session, _ = await asyncio.to_thread(get, kubernetes, None)
    _, reused = await asyncio.to_thread(get, origin, session)
    assert not reused
    assert [request.values("authorization") for request in origin.requests] == [[]]
