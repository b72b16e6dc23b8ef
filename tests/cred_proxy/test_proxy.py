"""The proxy as an object: identity, limits, rotation, draining, and what it leaves behind."""

import asyncio
import socket
import ssl
from pathlib import Path

import pytest

from cli_mcp.api.endpoint import Endpoint
from cli_mcp.proxy_config import UpstreamConfig
from cred_proxy.core import Limits
from cred_proxy.proxy import ClientIdentity, CredentialProxy
from cred_proxy.sources import InvalidSource, Source
from tests.cred_proxy.harness import TOKEN, Harness, allow, eventually
from tests.cred_proxy.origin import OK, Origin, PrivateAuthority, Received, answer


def get(origin: Origin, path: str = "/api") -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: {origin.endpoint}\r\n\r\n".encode()


async def test_a_request_is_one_audit_record_with_its_counts(harness: Harness, origin: Origin) -> None:
    async with await harness.tunnel(origin.endpoint) as client:
        body = f"POST /p?q=1 HTTP/1.1\r\nHost: {origin.endpoint}\r\nContent-Length: 3\r\n\r\nabc".encode()
        await client.request(body)
        await eventually(lambda: len(harness.audit) == 1)
    (record,) = harness.audit
    assert (record.event, record.client, record.target) == ("request", "127.0.0.1", origin.endpoint)
    assert (record.method, record.status, record.bytes_up, record.bytes_down) == ("POST", 200, 3, 2)
    assert record.reason is None


async def test_the_listener_of_a_session_names_it_in_every_record(
    origin: Origin, origin_authority: PrivateAuthority, tmp_path_factory: pytest.TempPathFactory
) -> None:
    directory = tmp_path_factory.mktemp("sessions")
    async with Harness(
        directory, origin_authority, (allow(origin),), client=ClientIdentity("session-1")
    ) as harness:
        async with await harness.tunnel(origin.endpoint) as client:
            await client.request(get(origin))
        async with await harness.connect() as client:
            await client.request(b"CONNECT evil.test:443 HTTP/1.1\r\n\r\n")
        path = str(directory / "s")
        with socket.socket(socket.AF_UNIX) as unix:
            unix.bind(path)
            unix.listen()
            other = await harness.proxy.serve(unix.dup(), ClientIdentity("session-2"))
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(f"CONNECT {origin.endpoint} HTTP/1.1\r\n\r\n".encode())
        assert b" 200 " in await reader.readuntil(b"\r\n\r\n")
        await writer.start_tls(harness.trust(), server_hostname=origin.host)
        writer.write(get(origin))
        assert b" 200 " in await reader.readuntil(b"\r\n\r\n")
        await other.close()
        with pytest.raises((asyncio.IncompleteReadError, OSError)):
            await reader.readexactly(3)
    assert [record.client for record in harness.audit] == ["session-1", "session-1", "session-2"]


async def test_closing_a_listener_ends_its_connections_and_no_others(
    harness: Harness, kubernetes: Origin
) -> None:
    async def never_ending(request: Received, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        await writer.drain()
        await asyncio.Event().wait()

    kubernetes.respond = never_ending
    sock = socket.create_server(("127.0.0.1", 0))
    second_port = sock.getsockname()[1]
    second = await harness.proxy.serve(sock, ClientIdentity("second"))
    watches = []
    for port in (second_port, harness.port):
        harness.port = port
        client = await harness.tunnel(kubernetes.endpoint)
        await client.send(get(kubernetes))
        await client.head()
        watches.append(client)
    await second.close()
    assert await watches[0].is_closed()
    await eventually(lambda: harness.proxy.open_connections == 1)
    with pytest.raises(OSError):
        await asyncio.open_connection("127.0.0.1", second_port)


async def test_a_client_has_a_bounded_number_of_connections(
    origin: Origin, origin_authority: PrivateAuthority, tmp_path_factory: pytest.TempPathFactory
) -> None:
    limits = Limits(connections_per_client=3)
    directory = tmp_path_factory.mktemp("limit")
    async with Harness(directory, origin_authority, (allow(origin),), limits=limits) as harness:
        clients = [await harness.tunnel(origin.endpoint) for _ in range(3)]
        async with await harness.connect() as refused:
            assert (await refused.response()).status == 429
        sock = socket.create_server(("127.0.0.1", 0))
        await harness.proxy.serve(sock, ClientIdentity("another"))
        own_port, harness.port = harness.port, sock.getsockname()[1]
        (await harness.tunnel(origin.endpoint)).abort()
        harness.port = own_port
        clients.pop().abort()
        await eventually(lambda: harness.proxy.open_connections == 2)
        assert (await (await harness.tunnel(origin.endpoint)).request(get(origin))).status == 200
        for client in clients:
            client.abort()


async def test_where_all_connections_are_taken_a_newcomer_gets_one_of_the_greediest(
    origin: Origin, origin_authority: PrivateAuthority, tmp_path_factory: pytest.TempPathFactory
) -> None:
    limits = Limits(connections_total=3)
    directory = tmp_path_factory.mktemp("total")
    async with Harness(directory, origin_authority, (allow(origin),), limits=limits) as harness:
        greedy = [await harness.tunnel(origin.endpoint) for _ in range(3)]
        harness.port = await harness.listen(ClientIdentity("newcomer"))
        async with await harness.tunnel(origin.endpoint) as client:
            assert (await client.request(get(origin))).status == 200
        assert await greedy[-1].is_closed()
        assert (await greedy[0].request(get(origin))).status == 200
        for one in greedy:
            one.abort()


async def test_connections_to_origins_end_with_the_last_connection_of_their_client(
    harness: Harness, origin: Origin
) -> None:
    first, second = await harness.tunnel(origin.endpoint), await harness.tunnel(origin.endpoint)
    assert (await first.request(get(origin))).status == 200
    first.abort()
    await eventually(lambda: harness.proxy.open_connections == 1)
    assert (await second.request(get(origin))).status == 200
    assert [request.connection for request in origin.requests] == [1, 1]
    second.abort()
    await eventually(lambda: origin.open_connections == 0)
    async with await harness.tunnel(origin.endpoint) as heir:
        assert (await heir.request(get(origin))).status == 200
    assert origin.requests[-1].connection == 2


@pytest.mark.parametrize(("fields", "status"), [(4, 200), (5, 431)])
async def test_a_request_head_is_bounded_as_a_whole(
    harness: Harness, origin: Origin, fields: int, status: int
) -> None:
    large = "".join(f"X-{number}: {7000 * 'x'}\r\n" for number in range(fields))
    async with await harness.tunnel(origin.endpoint) as client:
        head = f"GET / HTTP/1.1\r\nHost: {origin.endpoint}\r\n{large}\r\n".encode()
        assert (await client.request(head)).status == status
    assert len(origin.requests) == (status == 200)


async def test_slow_clients_lose_their_connection(
    origin: Origin, origin_authority: PrivateAuthority, tmp_path_factory: pytest.TempPathFactory
) -> None:
    limits = Limits(
        connect_head_seconds=0.3,
        handshake_seconds=0.3,
        keepalive_seconds=0.3,
        client_stall_seconds=0.3,
        unread_seconds=0.3,
    )
    directory = tmp_path_factory.mktemp("slow")
    async with Harness(directory, origin_authority, (allow(origin),), limits=limits) as harness:
        async with await harness.connect() as client:  # says nothing
            assert (await client.response()).status == 408
        async with await harness.connect() as client:  # a byte now and then
            with pytest.raises(OSError):
                for byte in b"CONNECT " + 100 * b"x":
                    await client.send(bytes([byte]))
                    await asyncio.sleep(0.05)
        async with await harness.connect() as client:  # no handshake
            await client.request(f"CONNECT {origin.endpoint} HTTP/1.1\r\n\r\n".encode(), head_only=True)
            assert await client.is_closed()
        async with await harness.tunnel(origin.endpoint) as client:  # half a request head
            await client.send(b"GET / HTTP/1.1\r\nHost: ")
            assert await client.is_closed()
        async with await harness.tunnel(origin.endpoint) as client:  # idle after a request
            await client.request(get(origin))
            assert await client.is_closed()
        async with await harness.tunnel(origin.endpoint) as client:  # half a body
            await client.send(
                f"PUT / HTTP/1.1\r\nHost: {origin.endpoint}\r\nContent-Length: 9\r\n\r\nabc".encode()
            )
            assert (await client.response()).phrase == "request body stalled"
        body = bytes(50_000_000)
        origin.respond = answer(f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        async with await harness.tunnel(origin.endpoint) as client:  # an answer that is not read
            await client.send(get(origin, "/large"))
            await eventually(lambda: len(origin.requests) == 2)
            await eventually(lambda: harness.proxy.open_connections == 0)
    assert [request.target for request in origin.requests] == ["/api", "/large"]
    assert harness.audit[-1].reason == "client-gone"


async def test_a_rotated_token_is_used_from_the_next_request_on(harness: Harness, kubernetes: Origin) -> None:
    async with await harness.tunnel(kubernetes.endpoint) as client:
        await client.request(get(kubernetes))
        harness.write_kubeconfig("rotated")
        assert harness.proxy.reload() == {Source.ROUTING: None, Source.AUTHORITY: None}
        await client.request(get(kubernetes))
    assert [request.values("authorization") for request in kubernetes.requests] == [
        [f"Bearer {TOKEN}"],
        ["Bearer rotated"],
    ]
    assert kubernetes.connections == 1


@pytest.mark.parametrize("content", ["", "no: [kubeconfig", "users: []", "{}"])
async def test_a_kubeconfig_that_became_invalid_changes_nothing_but_is_said(
    harness: Harness, kubernetes: Origin, content: str
) -> None:
    harness.kubeconfig_file.write_text(content)
    problem = harness.proxy.reload()[Source.ROUTING]
    assert problem is not None
    assert str(harness.kubeconfig_file) in problem
    assert harness.proxy.problems == {Source.ROUTING: problem}
    registry = harness.proxy.metrics.registry
    assert registry.get_sample_value("cli_mcp_proxy_config_current", {"source": "routing"}) == 0
    assert registry.get_sample_value("cli_mcp_proxy_config_current", {"source": "authority"}) == 1
    async with await harness.tunnel(kubernetes.endpoint) as client:
        assert (await client.request(get(kubernetes))).status == 200
    harness.write_kubeconfig("repaired")
    harness.proxy.reload()
    assert harness.proxy.problems == {}
    assert registry.get_sample_value("cli_mcp_proxy_config_current", {"source": "routing"}) == 1


async def test_a_route_that_is_gone_refuses_also_on_a_connection_that_was_open(
    harness: Harness, origin: Origin
) -> None:
    async with await harness.tunnel(origin.endpoint) as client:
        assert (await client.request(get(origin))).status == 200
        harness.write_config((), UpstreamConfig(ca_bundle=harness.origin_authority.pem))
        harness.proxy.reload()
        assert (await client.request(get(origin))).status == 403
    async with await harness.connect() as client:
        response = await client.request(f"CONNECT {origin.endpoint} HTTP/1.1\r\n\r\n".encode())
        assert response.status == 403


async def test_a_rotated_ca_of_the_server_is_verified_at_once(
    harness: Harness, kubernetes: Origin, tmp_path: Path
) -> None:
    async with await harness.tunnel(kubernetes.endpoint) as client:
        assert (await client.request(get(kubernetes))).status == 200
        harness.origin_authority = PrivateAuthority()
        harness.write_kubeconfig(TOKEN)
        harness.proxy.reload()
        assert (await client.request(get(kubernetes))).status == 502
    assert len(kubernetes.requests) == 1


async def test_a_running_watch_survives_a_rotation(harness: Harness, kubernetes: Origin) -> None:
    go = asyncio.Event()

    async def respond(request: Received, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        await go.wait()
        writer.write(b"2\r\nok\r\n0\r\n\r\n")

    kubernetes.respond = respond
    async with await harness.tunnel(kubernetes.endpoint) as client:
        await client.send(get(kubernetes))
        await eventually(lambda: len(kubernetes.requests) == 1)
        harness.write_kubeconfig("rotated")
        harness.write_authority()
        harness.proxy.reload()
        go.set()
        response = await client.response()
    assert (response.body, response.complete) == (b"ok", True)


async def test_a_new_authority_signs_only_after_sandboxes_could_see_it(
    harness: Harness, origin: Origin, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = harness.trust()
    harness.write_authority()
    harness.proxy.reload()
    async with await harness.tunnel(origin.endpoint, context=old) as client:
        assert (await client.request(get(origin))).status == 200
    monkeypatch.setattr("cred_proxy.certificates.ADOPTION_SECONDS", 0)
    async with await harness.tunnel(origin.endpoint, context=harness.trust()) as client:
        assert (await client.request(get(origin))).status == 200
    with pytest.raises(ssl.SSLError):
        await harness.tunnel(origin.endpoint, context=old)


async def test_an_address_is_a_target_like_a_name(
    origin_authority: PrivateAuthority, tmp_path_factory: pytest.TempPathFactory
) -> None:
    for address in ("127.0.0.1", "::1"):
        directory = tmp_path_factory.mktemp("address")
        origin = Origin(address)
        await origin.start(origin_authority.server_context(address, directory), address)
        endpoint = str(Endpoint(address, origin.port))
        async with (
            Harness(directory, origin_authority, (allow(origin),)) as harness,
            await harness.tunnel(endpoint, server_name=address) as client,
        ):
            response = await client.request(f"GET / HTTP/1.1\r\nHost: {endpoint}\r\n\r\n".encode())
        assert response.status == 200
        assert origin.requests[0].values("host") == [endpoint]
        await origin.stop()


async def test_the_tls_server_name_of_a_kubeconfig_is_sent_and_verified(
    origin_authority: PrivateAuthority, tmp_path_factory: pytest.TempPathFactory
) -> None:
    directory = tmp_path_factory.mktemp("name")
    kubernetes = Origin("127.0.0.1")
    await kubernetes.start(origin_authority.server_context("kubernetes.internal", directory))
    async with (
        Harness(directory, origin_authority, (), kubernetes) as harness,
        await harness.tunnel(kubernetes.endpoint, server_name="127.0.0.1") as client,
    ):
        assert (await client.request(get(kubernetes))).status == 502
        harness.write_kubeconfig(TOKEN, **{"tls-server-name": "kubernetes.internal"})
        harness.proxy.reload()
        assert (await client.request(get(kubernetes))).status == 200
    assert kubernetes.server_names[-1] == "kubernetes.internal"
    await kubernetes.stop()


async def test_an_upstream_http_proxy_is_gone_through(
    kubernetes: Origin, origin_authority: PrivateAuthority, tmp_path_factory: pytest.TempPathFactory
) -> None:
    heads: list[str] = []

    async def corporate_proxy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append((await reader.readuntil(b"\r\n\r\n")).decode())
        if not allowed:
            writer.write(b"HTTP/1.1 407 No\r\nContent-Length: 0\r\n\r\n")
            writer.close()
            return
        up_reader, up_writer = await asyncio.open_connection("127.0.0.1", kubernetes.port)
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")

        async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
            while chunk := await source.read(65536):
                sink.write(chunk)
            sink.close()

        await asyncio.gather(pump(reader, up_writer), pump(up_reader, writer), return_exceptions=True)

    allowed = True
    server = await asyncio.start_server(corporate_proxy, "127.0.0.1", 0)
    upstream = UpstreamConfig(http_proxy=f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    directory = tmp_path_factory.mktemp("corporate")
    async with Harness(directory, origin_authority, (), kubernetes, upstream=upstream) as harness:
        async with await harness.tunnel(kubernetes.endpoint) as client:
            response = await client.request(
                get(kubernetes).replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
            )
            assert response.status == 200
        allowed = False
        harness.write_kubeconfig(TOKEN, **{"tls-server-name": "kubernetes.internal"})
        harness.proxy.reload()
        async with await harness.tunnel(kubernetes.endpoint) as client:
            response = await client.request(get(kubernetes))
            assert (response.status, response.phrase) == (502, "upstream proxy refused")
    server.close()
    assert heads[0].startswith(f"CONNECT {kubernetes.endpoint} HTTP/1.1\r\n")
    assert not any(TOKEN in head for head in heads)
    assert kubernetes.requests[0].values("authorization") == [f"Bearer {TOKEN}"]


async def test_draining_lets_requests_finish_and_then_ends_them(
    origin: Origin, origin_authority: PrivateAuthority, tmp_path_factory: pytest.TempPathFactory
) -> None:
    go = asyncio.Event()

    async def respond(request: Received, writer: asyncio.StreamWriter) -> None:
        await go.wait()
        writer.write(OK)

    directory = tmp_path_factory.mktemp("drain")
    async with Harness(directory, origin_authority, (allow(origin),)) as harness:
        idle = await harness.tunnel(origin.endpoint)
        await idle.request(get(origin))
        origin.respond = respond
        busy = await harness.tunnel(origin.endpoint)
        await busy.send(get(origin))
        await eventually(lambda: len(origin.requests) == 2)
        closing = asyncio.create_task(harness.proxy.close(drain_seconds=10))
        assert await idle.is_closed()
        with pytest.raises(OSError):
            await asyncio.open_connection("127.0.0.1", harness.port)
        go.set()
        assert (await busy.response()).status == 200
        await closing
    assert harness.proxy.open_connections == 0


async def test_what_does_not_finish_while_draining_is_cut(
    origin: Origin, origin_authority: PrivateAuthority, tmp_path_factory: pytest.TempPathFactory
) -> None:
    async def respond(request: Received, writer: asyncio.StreamWriter) -> None:
        await asyncio.Event().wait()

    origin.respond = respond
    directory = tmp_path_factory.mktemp("cut")
    async with Harness(directory, origin_authority, (allow(origin),)) as harness:
        busy = await harness.tunnel(origin.endpoint)
        await busy.send(get(origin))
        await eventually(lambda: len(origin.requests) == 1)
        await harness.proxy.close(drain_seconds=0.2)
        assert await busy.is_closed()
        await eventually(lambda: len(harness.audit) == 1)
    assert harness.audit[0].reason == "client-gone"


def test_a_proxy_without_anything_to_run_on_does_not_start() -> None:
    def missing() -> None:
        raise InvalidSource("no such file")

    with pytest.raises(InvalidSource):
        CredentialProxy(load_routing=missing, load_authorities=missing, audit=print)  # type: ignore[arg-type]


async def test_a_quiet_client_is_served_while_another_floods(harness: Harness, origin: Origin) -> None:
    port = await harness.listen(ClientIdentity("quiet"))
    stop = asyncio.Event()

    async def flood() -> None:
        async with await harness.tunnel(origin.endpoint) as client:
            while not stop.is_set():
                await client.send(20 * get(origin))
                for _ in range(20):
                    await client.response()

    flooding = [asyncio.create_task(flood()) for _ in range(30)]
    await eventually(lambda: len(origin.requests) > 100)
    harness.port = port
    async with await harness.tunnel(origin.endpoint) as client:
        before = len(origin.requests)
        assert (await client.request(get(origin, "/quiet"))).status == 200
        between = len(origin.requests) - before
    stop.set()
    await asyncio.gather(*flooding)
    # First come, first served would let every one of the 30 connections go first.
    assert between < 60
