"""The credential proxy beside a direct TLS connection, in one run: `python -m benchmarks.proxy`.

Origin, client and proxy share the machine's cores; with two of them, none of the figures is a ceiling.
The client speaks HTTP by hand, so that it costs little beside what is measured.
"""

import argparse
import asyncio
import os
import socket
import ssl
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

from cli_mcp.authority import generate_authority
from cli_mcp.proxy_config import AllowlistRouteConfig, ProxyConfig, UpstreamConfig
from tests.cred_proxy.origin import PrivateAuthority

HOST = "127.0.0.1"
BODIES = {"/1k": 1_000, "/100k": 100_000, "/100m": 100_000_000}
WATCH = "/watch"
CHUNK = 64 * 1024


@dataclass
class Target:
    """How the client reaches the origin: through the proxy, or itself."""

    port: int
    context: ssl.SSLContext
    proxy_port: int | None = None
    proxy_pid: int | None = None

    def proxy_cpu_seconds(self) -> float:
        if self.proxy_pid is None:
            return 0.0
        # proc_pid_stat(5): utime and stime, after the name in parentheses.
        fields = Path(f"/proc/{self.proxy_pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    async def open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self.proxy_port is None:
            return await asyncio.open_connection(HOST, self.port, ssl=self.context, limit=2**20)
        reader, writer = await asyncio.open_connection(HOST, self.proxy_port, limit=2**20)
        writer.write(f"CONNECT {HOST}:{self.port} HTTP/1.1\r\n\r\n".encode())
        await reader.readuntil(b"\r\n\r\n")
        await writer.start_tls(self.context, server_hostname=HOST)
        return reader, writer

    async def get(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, path: str) -> int:
        writer.write(f"GET {path} HTTP/1.1\r\nHost: {HOST}:{self.port}\r\n\r\n".encode())
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
        left = length
        while left:
            left -= len(await reader.read(min(left, CHUNK)))
        return length


def serve_origin(context_file: str, ready: Connection) -> None:
    """The origin's process: fixed bodies, and a watch that never says anything."""

    async def connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                path = (await reader.readuntil(b"\r\n\r\n")).split(b" ")[1].decode()
                if path == WATCH:
                    writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
                    continue
                size = BODIES[path]
                writer.write(f"HTTP/1.1 200 OK\r\nContent-Length: {size}\r\n\r\n".encode())
                for start in range(0, size, CHUNK):
                    writer.write(b"x" * min(CHUNK, size - start))
                    await writer.drain()
                    if writer.is_closing():
                        return
        except (OSError, asyncio.IncompleteReadError):
            writer.close()

    async def main() -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(context_file)
        server = await asyncio.start_server(connection, HOST, 0, ssl=context, backlog=2048)
        ready.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(main())


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


async def for_seconds(
    target: Target, seconds: float, clients: int, one: Callable[[], Awaitable[Callable[[], Awaitable[None]]]]
) -> str:
    """`one` makes a client, which is then called until the time is over.

    The processor time is the proxy's alone, and hardly depends on what else the machine does.
    """
    durations: list[float] = []
    busy = target.proxy_cpu_seconds()

    async def client() -> None:
        call = await one()
        while time.perf_counter() < end:
            started = time.perf_counter()
            await call()
            durations.append(time.perf_counter() - started)

    started = time.perf_counter()
    end = started + seconds
    await asyncio.gather(*(client() for _ in range(clients)))
    rate = len(durations) / (time.perf_counter() - started)
    p50, p99 = (percentile(durations, share) * 1000 for share in (0.5, 0.99))
    busy = (target.proxy_cpu_seconds() - busy) / len(durations) * 1000
    return f"{rate:8.0f}/s  p50 {p50:7.2f} ms  p99 {p99:7.2f} ms" + f"  CPU {busy:5.2f} ms" * bool(busy)


async def keepalive(target: Target, path: str, clients: int, seconds: float) -> str:
    async def one() -> Callable[[], Awaitable[None]]:
        reader, writer = await target.open()

        async def call() -> None:
            await target.get(reader, writer, path)

        return call

    return await for_seconds(target, seconds, clients, one)


async def new_connections(target: Target, clients: int, seconds: float) -> str:
    async def call() -> None:
        reader, writer = await target.open()
        await target.get(reader, writer, "/1k")
        writer.transport.abort()

    async def one() -> Callable[[], Awaitable[None]]:
        return call

    return await for_seconds(target, seconds, clients, one)


async def large_body(target: Target) -> str:
    reader, writer = await target.open()
    started = time.perf_counter()
    size = await target.get(reader, writer, "/100m")
    writer.transport.abort()
    return f"{size / 1e6 / (time.perf_counter() - started):8.0f} MB/s"


def resident_megabytes(pid: int) -> float:
    fields = Path(f"/proc/{pid}/statm").read_text().split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


async def idle_watches(target: Target, pid: int, count: int) -> str:
    before = resident_megabytes(pid)
    writers = []
    for _ in range(count):
        reader, writer = await target.open()
        writer.write(f"GET {WATCH} HTTP/1.1\r\nHost: {HOST}:{target.port}\r\n\r\n".encode())
        await reader.readuntil(b"\r\n\r\n")
        writers.append(writer)
    used = resident_megabytes(pid) - before
    for writer in writers:
        writer.transport.abort()
    return f"{used * 1000 / count:8.0f} KB each"


async def measure(direct: Target, proxied: Target, proxy_pid: int, seconds: float) -> None:
    def row(name: str, target: str, value: str) -> None:
        print(f"{name:<34} {target:<7} {value}", flush=True)

    targets = {"direct": direct, "proxy": proxied}
    for clients in (1, 16, 64):
        for name, target in targets.items():
            row(
                f"keep-alive, 1 KB, {clients} clients", name, await keepalive(target, "/1k", clients, seconds)
            )
    for name, target in targets.items():
        row("new connection each, 8 clients", name, await new_connections(target, 8, seconds))
    for name, target in targets.items():
        row("keep-alive, 100 KB, 8 clients", name, await keepalive(target, "/100k", 8, seconds))
    for name, target in targets.items():
        row("one body of 100 MB", name, await large_body(target))
    row("resident memory after that", "proxy", f"{resident_megabytes(proxy_pid):8.0f} MB")
    row("500 idle watches", "proxy", await idle_watches(proxied, proxy_pid, 500))


def serve_proxy(directory: Path, ready: Connection) -> None:
    """The proxy's process, with room for more connections of one client than the product allows."""
    from cred_proxy.core import Limits
    from cred_proxy.proxy import CredentialProxy
    from cred_proxy.sources import authorities_from_directory, routing_from_files

    async def main() -> None:
        proxy = CredentialProxy(
            load_routing=routing_from_files(directory / "proxy-config.json", None),
            load_authorities=authorities_from_directory(directory),
            audit=lambda record: None,
            limits=Limits(connections_per_client=2000),
        )
        sock = socket.create_server((HOST, 0))
        await proxy.serve(sock)
        ready.send(sock.getsockname()[1])
        await asyncio.Event().wait()

    asyncio.run(main())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3.0, help="for each rate")
    seconds = parser.parse_args().seconds
    spawn = get_context("spawn")
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        authority = PrivateAuthority()
        authority.server_context(HOST, directory)
        receive, send = spawn.Pipe(duplex=False)
        origin = spawn.Process(target=serve_origin, args=(str(directory / f"{HOST}.pem"), send), daemon=True)
        origin.start()
        port = receive.recv()
        certificate, key = generate_authority("benchmark CA", datetime.now(UTC))
        (directory / "ca.crt").write_text(certificate)
        (directory / "ca.key").write_text(key)
        config = ProxyConfig(
            allowlist=(AllowlistRouteConfig(host=HOST, port=port),),
            upstream=UpstreamConfig(ca_bundle=authority.pem),
        )
        (directory / "proxy-config.json").write_text(config.model_dump_json(by_alias=True))
        proxy = spawn.Process(target=serve_proxy, args=(directory, send), daemon=True)
        proxy.start()
        proxy_port = receive.recv()
        assert proxy.pid is not None
        direct = Target(port, ssl.create_default_context(cadata=authority.pem))
        proxied = Target(port, ssl.create_default_context(cadata=certificate), proxy_port, proxy.pid)
        asyncio.run(measure(direct, proxied, proxy.pid, seconds))
        proxy.kill()
        origin.kill()


if __name__ == "__main__":
    main()
