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
    """The port of a server that answers each byte with itself."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1):
            writer.write(data)
        writer.close()

    with BoundedListener.listen_on("", 0, limit, limit_per_address) as listener:
        server = await asyncio.start_server(echo, sock=listener)
        yield listener.getsockname()[1]
        server.close()


async def is_served(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    writer.write(b"x")
    try:
        async with asyncio.timeout(10):
            return await reader.read(1) == b"x"
    except ConnectionError:
        return False


async def test_connections_beyond_the_limit_are_hung_up_on_until_others_end() -> None:
    async with echo_server(3) as port:
        served = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
        assert all([await is_served(*it) for it in served])
        for _ in range(5):
            assert not await is_served(*await asyncio.open_connection("127.0.0.1", port))
        served.pop()[1].close()
        await asyncio.sleep(0.1)
        served.append(await asyncio.open_connection("127.0.0.1", port))
        assert all([await is_served(*it) for it in served])
        for _, writer in served:
            writer.close()


async def test_one_address_cannot_keep_the_others_out() -> None:
    async with echo_server(10, limit_per_address=2) as port:
        greedy = [await asyncio.open_connection("127.0.0.1", port) for _ in range(4)]
        assert [await is_served(*it) for it in greedy] == [True, True, False, False]
        other = await asyncio.open_connection("127.0.0.1", port, local_addr=("127.0.0.2", 0))
        assert await is_served(*other)
        for _, writer in (*greedy, other):
            writer.close()


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
        with pytest.raises(OSError):
            await server.shown(trusting(PAIR))
        for _, writer in silent:
            writer.transport.abort()
        async with asyncio.timeout(10):
            while True:
                try:
                    assert await server.shown(trusting(PAIR)) == "first"
                    break
                except OSError:
                    await asyncio.sleep(0.1)


def resident_kib() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4
