"""What load.go does, for machines without Go: an origin, and clients that load a way to it.

Here, the client costs about as much as what it measures; compare such figures with each other only.
"""

import argparse
import asyncio
import json
import ssl
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

EVENT_INTERVAL_SECONDS = 0.02
BODIES = {"/1k": 1_000, "/100k": 100_000, "/100m": 100_000_000}
CHUNK_BYTES = 64 * 1024


async def answer(head: str, writer: asyncio.StreamWriter) -> None:
    path = head.split(" ")[1]
    if path == "/credential":
        fields = dict(line.split(": ", 1) for line in head.split("\r\n")[1:] if line)
        shown = fields["Authorization"]
        writer.write(f"HTTP/1.1 200 OK\r\nContent-Length: {len(shown)}\r\n\r\n{shown}".encode())
    elif path == "/watch":
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    elif path == "/events":
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        while not writer.is_closing():
            event = f"{time.time_ns()}\n"
            writer.write(f"{len(event):x}\r\n{event}\r\n".encode())
            await asyncio.sleep(EVENT_INTERVAL_SECONDS)
    else:
        size = BODIES[path]
        writer.write(f"HTTP/1.1 200 OK\r\nContent-Length: {size}\r\n\r\n".encode())
        for start in range(0, size, CHUNK_BYTES):
            writer.write(b"x" * min(CHUNK_BYTES, size - start))
            await writer.drain()


async def serve_origin(certificate: Path) -> None:
    async def connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                await answer((await reader.readuntil(b"\r\n\r\n")).decode(), writer)
        except (OSError, asyncio.IncompleteReadError):
            writer.transport.abort()

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    server = await asyncio.start_server(connection, "127.0.0.1", 0, ssl=context, backlog=2048)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


@dataclass
class Connection:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def ask(self, request: bytes) -> int:
        """The length of the body, 0 when it is chunked."""
        self.writer.write(request)
        head = (await self.reader.readuntil(b"\r\n\r\n")).lower()
        assert head.startswith(b"http/1.1 200 "), head
        return int(head.partition(b"content-length:")[2].partition(b"\r\n")[0] or 0)

    async def get(self, request: bytes) -> None:
        left = await self.ask(request)
        while left:
            left -= len(await self.reader.read(min(left, CHUNK_BYTES)))


@dataclass
class Way:
    """How a client reaches the origin."""

    origin: str
    proxy: str | None
    context: ssl.SSLContext
    path: str

    @property
    def request(self) -> bytes:
        return f"GET {self.path} HTTP/1.1\r\nHost: {self.origin}\r\n\r\n".encode()

    async def open(self, client: int) -> Connection:
        """From an address of the client's own, as sandboxes have."""
        host, _, port = (self.proxy or self.origin).rpartition(":")
        reader, writer = await asyncio.open_connection(
            host, int(port), limit=2**20, local_addr=(f"127.1.{client // 250}.{client % 250 + 1}", 0)
        )
        if self.proxy is not None:
            writer.write(f"CONNECT {self.origin} HTTP/1.1\r\nHost: {self.origin}\r\n\r\n".encode())
            answered = await reader.readuntil(b"\r\n\r\n")
            assert b" 200 " in answered, answered
        await writer.start_tls(self.context, server_hostname=self.origin.rpartition(":")[0])
        return Connection(reader, writer)

    async def repeat(self, mode: str, client: int) -> Callable[[], Awaitable[float]]:
        """What a client does again and again; it returns how many seconds that took."""

        async def new_connection() -> float:
            started = time.perf_counter()
            connection = await self.open(client)
            await connection.get(self.request)
            connection.writer.transport.abort()
            return time.perf_counter() - started

        if mode == "connections":
            return new_connection
        connection = await self.open(client)

        async def kept_connection() -> float:
            started = time.perf_counter()
            await connection.get(self.request)
            return time.perf_counter() - started

        if mode == "keepalive":
            return kept_connection
        await connection.ask(self.request)

        async def event() -> float:
            size = int(await connection.reader.readuntil(b"\r\n"), 16)
            sent = int(await connection.reader.readexactly(size))
            await connection.reader.readexactly(2)
            return (time.time_ns() - sent) / 1e9

        return event

    async def load(self, mode: str, clients: int, seconds: float) -> dict[str, float]:
        taken: list[float] = []
        started = time.perf_counter()

        async def one(client: int) -> None:
            call = await self.repeat(mode, client)
            while True:
                taken.append(await call())
                if time.perf_counter() - started >= seconds:
                    return

        await asyncio.gather(*(one(client) for client in range(clients)))
        length = time.perf_counter() - started
        taken.sort()
        p50, p99 = (taken[int((len(taken) - 1) * share)] * 1000 for share in (0.5, 0.99))
        return {"count": len(taken), "seconds": length, "p50_ms": p50, "p99_ms": p99}

    async def hold(self, clients: int) -> None:
        """Open watches and keep them until the input ends."""
        held = [await self.open(client) for client in range(clients)]
        for connection in held:
            await connection.ask(self.request)
        print("open", flush=True)
        await asyncio.to_thread(sys.stdin.read)
        for connection in held:
            connection.writer.transport.abort()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    role = parser.add_subparsers(dest="role", required=True)
    origin = role.add_parser("origin")
    origin.add_argument("--certificate", type=Path, required=True)
    client = role.add_parser("client")
    client.add_argument("--origin", required=True)
    client.add_argument("--proxy")
    client.add_argument("--ca", required=True)
    client.add_argument("--mode", default="keepalive")
    client.add_argument("--path", default="/1k")
    client.add_argument("--clients", type=int, default=1)
    client.add_argument("--seconds", type=float, default=3)
    options = parser.parse_args()
    if options.role == "origin":
        asyncio.run(serve_origin(options.certificate))
        return
    way = Way(options.origin, options.proxy, ssl.create_default_context(cafile=options.ca), options.path)
    if options.mode == "watches":
        asyncio.run(way.hold(options.clients))
    else:
        print(json.dumps(asyncio.run(way.load(options.mode, options.clients, options.seconds))))


if __name__ == "__main__":
    main()
