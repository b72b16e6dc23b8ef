"""`cli-mcp local --stdio`: MCP over this process's own stdin and stdout, for a client that starts it.

One process is one session, which ends with it: nothing listens, so there is neither a port nor a token.
"""

import asyncio
import concurrent.futures
import os
import select
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

from starlette.applications import Starlette

from mcp_server.app import tool_calls_of
from mcp_server.backend import SessionKey
from mcp_server.catalogue import Offering, offer
from mcp_server.tool_server import tool_server
from ssh_gateway.stdio import UselessLines, serve_lines

SESSION = SessionKey("stdio", "stdio")
MAX_LINE_BYTES = 4 << 20
_HINT = "This connection has a sandbox of its own, which ends with it."
_LOOK_SECONDS = 0.5


class UnusableInput(Exception):
    """What the client sends is no MCP over stdio; the message is for its log."""


class ClientGone(Exception):
    """Nobody reads what is written."""


class StandardStreams:
    """Lines on the stdin and stdout that this process was started with.

    Whatever else is printed goes to stderr from then on: on stdout it would be read as a message.
    """

    def __init__(self) -> None:
        sys.stdout.flush()
        self._output = os.dup(1)
        os.dup2(2, 1)
        self._loop = asyncio.get_running_loop()
        # Not more: a client that sends faster than it is served has to wait.
        self._lines: asyncio.Queue[bytes | None] = asyncio.Queue(maxsize=1)
        # Of any kind of file, and no reason for the program not to end.
        threading.Thread(target=self._read, daemon=True).start()

    async def read_line(self) -> bytes | None:
        """Raises UnusableInput."""
        line = await self._lines.get()
        if line is not None and len(line) > MAX_LINE_BYTES:
            raise UnusableInput(f"a message is one line of at most {MAX_LINE_BYTES >> 20} MiB")
        return line

    async def write_line(self, line: bytes) -> None:
        """Raises ClientGone."""
        try:
            await asyncio.to_thread(_write_all, self._output, line + b"\n")
        except OSError:
            raise ClientGone from None

    def charge(self, seconds: float) -> None:
        """Whoever starts a server for itself takes time from nobody else."""

    async def nobody_reads(self) -> None:
        """Return once the other end of stdout is closed: an answer would come to nobody."""
        poll = select.poll()
        poll.register(self._output, 0)  # errors alone
        while True:
            if any(event & (select.POLLERR | select.POLLNVAL) for _, event in poll.poll(0)):
                return
            await asyncio.sleep(_LOOK_SECONDS)

    def _read(self) -> None:
        """By descriptor: a lock of sys.stdin, held while it waits, would keep the interpreter from ending."""
        for line in _lines_of(0):
            if not self._hand_over(line):
                return
        self._hand_over(None)

    def _hand_over(self, line: bytes | None) -> bool:
        """Whether there is somebody to take it; the program may be ending."""
        try:
            asyncio.run_coroutine_threadsafe(self._lines.put(line), self._loop).result()
        except (RuntimeError, concurrent.futures.CancelledError):
            return False
        return True


def _lines_of(descriptor: int) -> Iterator[bytes]:
    """Without their ends. One that is too long is given in part, as the last."""
    rest = b""
    while len(rest) <= MAX_LINE_BYTES:
        try:
            data = os.read(descriptor, 1 << 16)
        except OSError:  # a terminal that is gone, or no stdin at all
            data = b""
        if not data:
            break
        *lines, rest = (rest + data).split(b"\n")
        yield from lines
    if rest:
        yield rest


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


async def serve(
    app: Starlette,
    offering: Callable[[], Offering],
    hold: Callable[[SessionKey], AbstractContextManager[None]],
    stop: asyncio.Event,
) -> None:
    """Serve the tools of an application of `build_app` until the client has gone or `stop` is set.
    Raises UnusableInput."""
    server = tool_server(tool_calls_of(app), offer(offering, _HINT), lambda context: SESSION, _HINT)
    streams = StandardStreams()
    with hold(SESSION):
        serving = asyncio.create_task(serve_lines(server, streams))
        ends = [asyncio.create_task(end) for end in (stop.wait(), streams.nobody_reads())]
        try:
            await asyncio.wait({serving, *ends}, return_when=asyncio.FIRST_COMPLETED)
            if serving.done():
                serving.result()
        except ClientGone:
            return
        except UselessLines as error:
            raise UnusableInput(str(error)) from None
        finally:
            for task in (serving, *ends):
                task.cancel()
            await asyncio.gather(serving, *ends, return_exceptions=True)
