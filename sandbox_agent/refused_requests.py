"""What the credential proxy refused to this sandbox, as it says itself over a connection that stays open.

The proxy tells each address of its own requests alone. A process of the sandbox can ask the same, and learns
what it has done.
"""

import asyncio
from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

from cli_mcp.names import REFUSED_PATH

MOST_NOTES = 10
_LINE_BYTES = 2048
_FIRST_PAUSE_SECONDS, _LAST_PAUSE_SECONDS = 0.5, 30.0

Connect = Callable[[str, int], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]


async def _connect(host: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection(host, port, limit=_LINE_BYTES)


class RefusedRequests:
    """`proxy_url` as the sandbox's variables have it. In use between `start` and `stop`."""

    def __init__(self, proxy_url: str, connect: Connect = _connect) -> None:
        address = urlsplit(proxy_url)
        self._host, self._port = address.hostname or "", address.port or 80
        self._connect = connect
        self._notes: dict[str, None] = {}
        self._listening: asyncio.Task[None] | None = None

    def start(self) -> None:
        if self._host:
            self._listening = asyncio.get_running_loop().create_task(self._listen())

    async def stop(self) -> None:
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.gather(self._listening, return_exceptions=True)

    def take(self) -> tuple[str, ...]:
        """What was refused since the last time, each once."""
        notes, self._notes = tuple(self._notes), {}
        return notes

    async def _listen(self) -> None:
        pause_seconds = _FIRST_PAUSE_SECONDS
        while True:
            try:
                await self._hear()
                pause_seconds = _FIRST_PAUSE_SECONDS
            except (OSError, EOFError, ValueError):  # ValueError: no line at all in _LINE_BYTES
                pause_seconds = min(2 * pause_seconds, _LAST_PAUSE_SECONDS)
            await asyncio.sleep(pause_seconds)

    async def _hear(self) -> None:
        """Until the proxy ends the connection. Raises what asyncio's streams raise."""
        reader, writer = await self._connect(self._host, self._port)
        try:
            writer.write(f"GET {REFUSED_PATH} HTTP/1.1\r\nHost: {self._host}\r\n\r\n".encode())
            status = await reader.readline()
            if not status.startswith(b"HTTP/1.1 200 "):
                raise EOFError  # a proxy that does not know this
            while await reader.readline() not in (b"\r\n", b""):
                pass
            while line := await reader.readline():
                if len(self._notes) < MOST_NOTES:
                    self._notes[line.decode(errors="replace").strip()] = None
        finally:
            writer.close()
