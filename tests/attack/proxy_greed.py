"""What a client does to the proxy: `python -m tests.attack.proxy_greed WHAT ADDRESS PORT ORIGIN SECONDS`.

Each goes on until its time is over, whatever the proxy answers. `connections=N` says with how many, and
`addresses=N` as how many clients, from ADDRESS on.
"""

import asyncio
import contextlib
import resource
import socket
import ssl
import struct
import sys
import time
from collections.abc import Awaitable, Callable

_TRUST = ssl.create_default_context()
_TRUST.check_hostname = False
_TRUST.verify_mode = ssl.CERT_NONE
_TRUST.set_alpn_protocols(["http/1.1"])
_PATIENCE_SECONDS = 20.0


class Attacker:
    def __init__(self, address: str, port: str, origin: str, seconds: str) -> None:
        self.address, self.port, self.origin = address, int(port), origin
        self.until = time.monotonic() + float(seconds)

    def head(self, path: str, method: str = "GET", more: str = "") -> bytes:
        return f"{method} {path} HTTP/1.1\r\nHost: {self.origin}\r\n{more}\r\n".encode()

    async def connection(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port, local_addr=(self.address, 0))

    async def tunnel(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await self.connection()
        async with asyncio.timeout(_PATIENCE_SECONDS):
            writer.write(f"CONNECT {self.origin} HTTP/1.1\r\n\r\n".encode())
            if b" 200 " not in await reader.readuntil(b"\r\n\r\n"):
                writer.transport.abort()
                raise ConnectionError("refused")
            await writer.start_tls(_TRUST, server_hostname="127.0.0.1")
        return reader, writer

    async def _sending(self, first: bytes, again: bytes) -> None:
        reader, writer = await self.tunnel()
        try:
            writer.write(first)
            while time.monotonic() < self.until:
                writer.write(again)
                await writer.drain()
                if reader.at_eof():
                    return
        finally:
            writer.transport.abort()

    async def pipelined_heads(self) -> None:
        """Heads of 480 KB, one after the other, their answers unread."""
        large = self.head("/silent", more="".join(f"X-{n}: {'a' * 8000}\r\n" for n in range(60)))
        await self._sending(b"", large)

    async def half_heads(self) -> None:
        """A head that never ends: as many fields as are taken, then silence."""
        reader, writer = await self.tunnel()
        with contextlib.closing(writer.transport):
            writer.write(self.head("/", more="".join(f"X-{n}: {'a' * 8000}\r\n" for n in range(60)))[:-2])
            await reader.read()

    async def small_heads(self) -> None:
        """A request that is not answered, and many more behind it."""
        await self._sending(self.head("/silent"), self.head("/small") * 100)

    async def silent(self) -> None:
        """An origin that never answers."""
        reader, writer = await self.tunnel()
        with contextlib.closing(writer.transport):
            writer.write(self.head("/silent"))
            await reader.read()

    async def unread(self) -> None:
        """Responses without end that nobody reads."""
        _, writer = await self.tunnel()
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        with contextlib.closing(writer.transport):
            for _ in range(50):
                writer.write(self.head("/flood"))
            await asyncio.sleep(self.until - time.monotonic())

    async def half_read_uploads(self) -> None:
        """A body for an origin that does not read it."""
        await self._sending(self.head("/silent", "POST", "Content-Length: 1000000000\r\n"), bytes(65536))

    async def chunks_up(self) -> None:
        """An upload in chunks of one byte."""
        await self._sending(
            self.head("/upload", "POST", "Transfer-Encoding: chunked\r\n"), b"1\r\nx\r\n" * 400
        )

    async def records_up(self) -> None:
        """An upload in chunks of one byte, each in a TLS record of its own."""
        await self._sending(self.head("/upload", "POST", "Transfer-Encoding: chunked\r\n"), b"1\r\nx\r\n")

    async def _reading(self, path: str) -> None:
        reader, writer = await self.tunnel()
        with contextlib.closing(writer.transport):
            writer.write(self.head(path))
            while time.monotonic() < self.until and await reader.read(65536):
                pass

    async def chunks_down(self) -> None:
        """A response in chunks of one byte."""
        await self._reading("/chunks")

    async def drops_down(self) -> None:
        """A response in chunks of one byte, each in a segment of its own."""
        await self._reading("/drops")

    async def flood_down(self) -> None:
        await self._reading("/flood")

    async def connection_fields(self) -> None:
        """60 Connection fields of 8 KB."""
        fields = f"Connection: {', '.join(['a'] * 2600)}\r\n" * 60
        await self._requests(self.head("/small", more=fields))

    async def fields_within_limits(self) -> None:
        """As many members of Connection as a head may have."""
        fields = f"Connection: {','.join(['a'] * 3900)}\r\n" * 3
        await self._requests(self.head("/small", more=fields))

    async def _requests(self, request: bytes) -> None:
        reader, writer = await self.tunnel()
        with contextlib.closing(writer.transport):
            while time.monotonic() < self.until:
                writer.write(request)
                async with asyncio.timeout(_PATIENCE_SECONDS):
                    if not await reader.read(65536):
                        return

    async def requests(self) -> None:
        """Nothing but many small requests."""
        await self._requests(self.head("/small"))

    async def handshakes(self) -> None:
        """Nothing but TLS."""
        _, writer = await self.tunnel()
        writer.transport.abort()

    async def broken_handshakes(self) -> None:
        reader, writer = await self.connection()
        with contextlib.closing(writer.transport):
            writer.write(f"CONNECT {self.origin} HTTP/1.1\r\n\r\n".encode())
            await reader.readuntil(b"\r\n\r\n")
            writer.write(bytes(100))
            await reader.read()

    async def resets(self) -> None:
        """Connections opened and reset, without the event loop's own costs."""
        await asyncio.to_thread(self._reset, 500)

    def _reset(self, times: int) -> None:
        linger = struct.pack("ii", 1, 0)
        for _ in range(times):
            with socket.socket() as one:
                one.bind((self.address, 0))
                one.connect(("127.0.0.1", self.port))
                one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)

    async def refused(self) -> None:
        """CONNECT to what is not allowed."""
        reader, writer = await self.connection()
        with contextlib.closing(writer.transport):
            writer.write(b"CONNECT refused.example.com:443 HTTP/1.1\r\n\r\n")
            await reader.read()

    async def again_and_again(self, work: Callable[[], Awaitable[None]]) -> None:
        while time.monotonic() < self.until:
            try:
                await work()
            except (OSError, EOFError, TimeoutError, ValueError):
                await asyncio.sleep(0.01)


async def main(what: str, *arguments: str) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    address, *others = arguments[:4]
    options = dict(argument.split("=") for argument in arguments[4:])
    connections, addresses = int(options.get("connections", 64)), int(options.get("addresses", 1))
    network = address.removesuffix(".1")
    attackers = [Attacker(f"{network}.{number + 1}", *others) for number in range(addresses)]
    await asyncio.gather(
        *(one.again_and_again(getattr(one, what)) for one in attackers for _ in range(connections))
    )


asyncio.run(main(*sys.argv[1:]))
