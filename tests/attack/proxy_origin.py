"""An origin that answers as the path says. `python -m tests.attack.proxy_origin CERTIFICATE`: a port."""

import asyncio
import contextlib
import ssl
import sys

_OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
_CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
_BLOCK = b"1\r\nx\r\n" * 4000


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError, EOFError, asyncio.LimitOverrunError):
        while await answer(reader, writer):
            await writer.drain()
    writer.transport.abort()


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    """One request; whether another may follow."""
    head = await reader.readuntil(b"\r\n\r\n")
    path = head.split(b" ", 2)[1]
    if path == b"/silent":
        await reader.read()
        return False
    if path == b"/upload":
        while await reader.read(65536):
            pass
        return False
    if path == b"/flood":
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n")
        for _ in range(1000):
            writer.write(bytes(1_000_000))
            await writer.drain()
        return False
    if path == b"/chunks":
        writer.write(_CHUNKED)
        while True:
            writer.write(_BLOCK)
            await writer.drain()
    if path == b"/drops":
        writer.write(_CHUNKED)
        while True:
            writer.write(b"1\r\nx\r\n")
            await writer.drain()
            await asyncio.sleep(0)
    writer.write(_OK)
    return True


async def main() -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(sys.argv[1])
    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context, limit=2**20, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


asyncio.run(main())
