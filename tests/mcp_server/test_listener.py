import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import mcp_server.serving
from mcp_server.listener import BoundedListener
from tests.mcp_server.certificates import MountedSecret, self_signed, trusting
from tests.mcp_server.test_tls import running

PAIR = self_signed()


@asynccontextmanager
async def echo_server(limit: int, limit_per_address: int = 100) -> AsyncIterator[int]:
    """The port of a server that answers each byte with itself; `?` begins a request and `.` ends it."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        descriptor = writer.get_extra_info("socket").fileno()
        while data := await reader.read(1):
            if data == b"?":
                listener.asks(descriptor)
            if data == b".":
                listener.falls_silent(descriptor)
            writer.write(data)
        writer.close()

    with BoundedListener.listen_on("", 0, limit, limit_per_address) as listener:
        server = await asyncio.start_server(echo, sock=listener)
        yield listener.getsockname()[1]
        server.close()


Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def connect(port: int, address: str = "127.0.0.1") -> Connection:
    return await asyncio.open_connection("127.0.0.1", port, local_addr=(address, 0))


async def is_served(connection: Connection, data: bytes = b"?") -> bool:
    reader, writer = connection
    writer.write(data)
    try:
        async with asyncio.timeout(10):
            return await reader.read(1) == data
    except ConnectionError:
        return False


async def test_whoever_comes_takes_the_place_of_the_longest_silent_one() -> None:
    async with echo_server(3) as port:
        silent = [await connect(port) for _ in range(3)]
        assert await is_served(silent[0])
        assert await is_served(silent[0], b"."), "now it is silent for the shortest time"
        assert await is_served(await connect(port))
        assert await is_served(await connect(port))
        assert [await is_served(it) for it in silent] == [True, False, False]


async def test_who_asks_is_not_hung_up_on_and_beyond_the_limit_nobody_else_comes_in() -> None:
    async with echo_server(3) as port:
        served = [await connect(port) for _ in range(3)]
        assert all([await is_served(it) for it in served])
        for _ in range(5):
            assert not await is_served(await connect(port))
        served.pop()[1].close()
        await asyncio.sleep(0.1)
        served.append(await connect(port))
        assert all([await is_served(it) for it in served])


async def test_one_address_cannot_keep_the_others_out() -> None:
    async with echo_server(10, limit_per_address=2) as port:
        greedy = []
        for _ in range(4):
            greedy.append(await connect(port))
            await is_served(greedy[-1])
        assert [await is_served(it) for it in greedy] == [True, True, False, False]
        assert await is_served(await connect(port, "127.0.0.2"))


async def test_an_address_at_its_limit_gives_up_a_silent_one_of_its_own() -> None:
    async with echo_server(10, limit_per_address=2) as port:
        other = await connect(port, "127.0.0.2")
        first, second, third = [await connect(port) for _ in range(3)]
        assert [await is_served(it) for it in (first, second, third, other)] == [False, True, True, True]


async def test_a_flood_of_silent_connections_does_not_keep_out_who_asks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before their handshakes, and after a request that needed no credential, kept alive."""
    for limit in ("MAX_CONNECTIONS", "MAX_CONNECTIONS_PER_ADDRESS"):
        monkeypatch.setattr(mcp_server.serving, limit, 50)
    secret = MountedSecret(tmp_path / "tls", PAIR)
    async with running(secret.path) as server:
        silent = [await connect(server.port) for _ in range(60)]
        assert await server.shown(trusting(PAIR)) == "first"
        for _ in range(60):
            tls = await asyncio.open_connection(
                "127.0.0.1", server.port, ssl=trusting(PAIR), server_hostname="localhost"
            )
            tls[1].write(b"GET /live HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert (await tls[0].readuntil(b"\r\n")).split()[1] == b"200"
            silent.append(tls)
        assert await server.shown(trusting(PAIR)) == "first"
        for _, writer in silent:
            writer.transport.abort()


async def test_a_client_that_does_not_shake_hands_is_hung_up_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What the server sets for its process ends with the test.
    monkeypatch.setattr(asyncio.constants, "SSL_HANDSHAKE_TIMEOUT", 60.0)
    monkeypatch.setattr(mcp_server.serving, "HANDSHAKE_SECONDS", 0.3)
    secret = MountedSecret(tmp_path / "tls", PAIR)
    async with running(secret.path) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        # The first bytes of a handshake record (RFC 8446 section 5.1) whose rest never comes.
        writer.write(b"\x16\x03\x01\x02\x00")
        async with asyncio.timeout(10):
            assert await reader.read() == b""
        writer.close()


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="no IPv6 on this machine")
def test_all_addresses_are_those_of_both_protocols() -> None:
    with BoundedListener.listen_on("", 0, 10, 10) as listener:
        port = listener.getsockname()[1]
        for address in ("127.0.0.1", "::1"):
            socket.create_connection((address, port)).close()


async def test_silent_clients_of_a_tls_server_count_and_take_little_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They need no credential: a memory limit that they could reach would end the server."""
    for limit in ("MAX_CONNECTIONS", "MAX_CONNECTIONS_PER_ADDRESS"):
        monkeypatch.setattr(mcp_server.serving, limit, 300)
    secret = MountedSecret(tmp_path / "tls", PAIR)
    async with running(secret.path) as server:
        before_kib = resident_kib()
        silent = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(300)]
        await asyncio.sleep(0.5)
        assert resident_kib() - before_kib < 300 * 160
        assert await server.shown(trusting(PAIR)) == "first"
        for _, writer in silent:
            writer.transport.abort()


def resident_kib() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4
