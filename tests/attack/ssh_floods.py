"""Clients of the SSH gateway that do their worst: `python -m tests.attack.ssh_floods NAME PORT KEY COUNT S`.

Each of COUNT attackers is a user with an address of its own, and comes back as soon as it was hung up on.
"""

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import asyncssh
from asyncssh.constants import (
    MSG_CHANNEL_OPEN,
    MSG_CHANNEL_REQUEST,
    MSG_GLOBAL_REQUEST,
    MSG_IGNORE,
    MSG_USERAUTH_REQUEST,
)
from asyncssh.packet import Boolean, String, UInt32

# Kept in the socket's buffer at most, so that the attacker's own memory is not what gives in.
_AHEAD_BYTES = 1 << 20
_BATCH = 200

Connection = asyncssh.SSHClientConnection


@dataclass(frozen=True)
class Attacker:
    """`number` tells it from the others."""

    number: int
    port: int
    key: asyncssh.SSHKey

    async def connect(self, **options: Any) -> Connection:
        options = {"username": f"attacker-{self.number}", "client_keys": [self.key], **options}
        return await asyncssh.connect(
            "127.0.0.1",
            self.port,
            local_addr=(f"127.66.0.{self.number + 1}", 0),
            known_hosts=None,
            agent_path=None,
            config=None,
            **options,
        )


async def room(connection: Connection) -> None:
    """Wait until the socket has taken what was written. Raises ConnectionError when it is gone."""
    while True:
        if connection.is_closed() or connection._transport is None:
            raise ConnectionError
        if connection._transport.get_write_buffer_size() < _AHEAD_BYTES:
            break
        await asyncio.sleep(0.002)
    await asyncio.sleep(0)


async def _read_all(process: asyncssh.SSHClientProcess[bytes]) -> None:
    while await process.stdout.read(1 << 16):
        pass


async def _lines(attacker: Attacker, lines: bytes) -> None:
    async with await attacker.connect() as connection:
        process = await connection.create_process(encoding=None)
        reading = asyncio.create_task(_read_all(process))
        try:
            while not process.is_closing():
                process.stdin.write(lines)
                await process.stdin.drain()
                await room(connection)
        finally:
            reading.cancel()


async def blank_lines(attacker: Attacker) -> None:
    await _lines(attacker, b"\n" * 32_768)


async def lines_of_blanks(attacker: Attacker) -> None:
    await _lines(attacker, b" \r\n" * 10_000)


async def junk(attacker: Attacker) -> None:
    await _lines(attacker, b"x\n" * 16_384)


async def numbers(attacker: Attacker) -> None:
    await _lines(attacker, b"[" + b"0," * 100_000 + b"0]\n")


async def notifications(attacker: Attacker) -> None:
    await _lines(attacker, b'{"jsonrpc":"2.0","method":"notifications/initialized"}\n' * 500)


async def pings(attacker: Attacker) -> None:
    lines = b"".join(b'{"jsonrpc":"2.0","id":%d,"method":"ping"}\n' % n for n in range(500))
    await _lines(attacker, lines)


async def _packets(attacker: Attacker, make: Callable[[Connection, Any], tuple[Any, ...]]) -> None:
    async with await attacker.connect() as connection:
        channel, _ = await connection.create_session(asyncssh.SSHClientSession, encoding=None)
        packet = make(connection, channel)
        while True:
            for _ in range(_BATCH):
                connection.send_packet(*packet)
            await room(connection)


async def ignored_packets(attacker: Attacker) -> None:
    await _packets(attacker, lambda connection, channel: (MSG_IGNORE, String(b"")))


async def global_requests(attacker: Attacker) -> None:
    await _packets(
        attacker, lambda connection, channel: (MSG_GLOBAL_REQUEST, String(b"nonsense"), Boolean(True))
    )


async def channel_requests(attacker: Attacker) -> None:
    def request(connection: Connection, channel: Any) -> tuple[Any, ...]:
        return (
            MSG_CHANNEL_REQUEST,
            UInt32(channel._send_chan),
            String(b"signal"),
            Boolean(True),
            String(b"INT"),
        )

    await _packets(attacker, request)


async def channel_opens(attacker: Attacker) -> None:
    def request(connection: Connection, channel: Any) -> tuple[Any, ...]:
        return (MSG_CHANNEL_OPEN, String(b"nonsense"), UInt32(9), UInt32(1 << 20), UInt32(1 << 15))

    await _packets(attacker, request)


async def proofs_of_host_keys(attacker: Attacker) -> None:
    def request(connection: Connection, channel: Any) -> tuple[Any, ...]:
        host_key = connection._server_host_key
        assert host_key is not None
        keys = String(host_key.public_data) * 600
        return (MSG_GLOBAL_REQUEST, String(b"hostkeys-prove-00@openssh.com"), Boolean(True), keys)

    await _packets(attacker, request)


async def bytes_one_by_one(attacker: Attacker) -> None:
    async with await attacker.connect() as connection:
        process = await connection.create_process(encoding=None)
        while not process.is_closing():
            for _ in range(_BATCH):
                process.stdin.write(b"x")
            await process.stdin.drain()
            await room(connection)


async def key_exchanges(attacker: Attacker) -> None:
    async with await attacker.connect() as connection:
        while True:
            connection._send_kexinit()
            connection._kexinit_sent = True
            while not connection._kex_complete:
                await room(connection)


async def _long_output(attacker: Attacker, **options: int) -> None:
    async with await attacker.connect() as connection:
        process = await connection.create_process(encoding=None, **options)
        reading = asyncio.create_task(_read_all(process))
        call = (
            b'{"jsonrpc":"2.0","id":%d,"method":"tools/call",'
            b'"params":{"name":"bash","arguments":{"command":"long"}}}\n'
        )
        initialize = (
            b'{"jsonrpc":"2.0","id":"0","method":"initialize","params":{"protocolVersion":"2025-06-18",'
            b'"capabilities":{},"clientInfo":{"name":"t","version":"1"}}}\n'
            b'{"jsonrpc":"2.0","method":"notifications/initialized"}\n'
        )
        process.stdin.write(initialize + b"".join(call % n for n in range(8)))
        await reading


async def packets_of_one_byte(attacker: Attacker) -> None:
    await _long_output(attacker, max_pktsize=1)


async def packets_of_little(attacker: Attacker) -> None:
    await _long_output(attacker, max_pktsize=1024)


async def windows_of_little(attacker: Attacker) -> None:
    await _long_output(attacker, window=2)


async def logins(attacker: Attacker) -> None:
    (await attacker.connect()).abort()


async def refused_keys(attacker: Attacker) -> None:
    keys = [asyncssh.generate_private_key("ssh-ed25519") for _ in range(4)]
    await attacker.connect(client_keys=keys)


async def methods_that_nobody_has(attacker: Attacker) -> None:
    """As many requests as go into what may be sent before a session."""

    class Client(asyncssh.SSHClient):
        def connection_made(self, conn: Connection) -> None:
            self.connection = conn

        def auth_banner_received(self, msg: str, lang: str) -> None: ...

        def public_key_auth_requested(self) -> None:
            for _ in range(700):
                self.connection.send_packet(
                    MSG_USERAUTH_REQUEST, String(b"nobody"), String(b"ssh-connection"), String(b"none")
                )

    await attacker.connect(client_factory=Client, client_keys=None, username="nobody")


async def sockets(attacker: Attacker) -> None:
    """Opened, and left at once."""
    for _ in range(50):
        _, writer = await asyncio.open_connection("127.0.0.1", attacker.port)
        writer.close()


async def no_protocol(attacker: Attacker) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", attacker.port)
    writer.write(b"\n" * 60_000)
    await reader.read()
    writer.close()


FLOODS: dict[str, Callable[[Attacker], Awaitable[None]]] = {
    flood.__name__: flood
    for flood in (
        blank_lines,
        lines_of_blanks,
        junk,
        numbers,
        notifications,
        pings,
        ignored_packets,
        global_requests,
        channel_requests,
        channel_opens,
        proofs_of_host_keys,
        bytes_one_by_one,
        key_exchanges,
        packets_of_one_byte,
        packets_of_little,
        windows_of_little,
        logins,
        refused_keys,
        methods_that_nobody_has,
        sockets,
        no_protocol,
    )
}


async def attack(name: str, attacker: Attacker, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with contextlib.suppress(asyncssh.Error, OSError, TimeoutError, AssertionError, BrokenPipeError):
            async with asyncio.timeout_at(asyncio.get_running_loop().time() + deadline - time.monotonic()):
                await FLOODS[name](attacker)


async def main() -> None:
    os.nice(10)  # what is measured is the gateway, not who gets this machine's processors
    name, port, key, count, seconds = sys.argv[1:]
    asyncssh.set_log_level("CRITICAL")
    attackers = [Attacker(n, int(port), asyncssh.read_private_key(key)) for n in range(int(count))]
    await asyncio.gather(*(attack(name, attacker, float(seconds)) for attacker in attackers))


if __name__ == "__main__":
    asyncio.run(main())
