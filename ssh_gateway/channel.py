"""The session channel of an SSH connection as lines in and lines out, with back-pressure both ways.

Every command and shell gets the same: MCP over stdio. There is no terminal, and of the subsystems only `mcp`.
"""

import asyncio
import re
from collections.abc import Callable

import asyncssh

from ssh_gateway.pace import Debt

SUBSYSTEM = "mcp"
# Enough to keep a client busy; of what it sends while nobody reads, no more than this is kept.
WINDOW_BYTES = 256 * 1024
# Locale variables are a handful. asyncssh keeps whatever a client sends, for as long as the channel lives.
_MAX_ENVIRONMENT = 64

_NOT_A_SHELL = (
    "cli-mcp: this is an MCP server, one JSON-RPC message a line, and no shell. "
    "To run commands in the sandbox use an MCP client.\n"
)

# As the HTTP server allows a request.
_LARGE_MESSAGE_SECONDS = 30.0
# Blank lines are taken many at a time, and without a word.
_BLANK = re.compile(rb"[ \t\r\n]*\n")
_MAX_BLANK_BYTES = 64 * 1024
# Of the processor, estimated: a message through the SDK, and each byte of it through the parser.
_LINE_SECONDS = 0.00015
_BYTE_SECONDS = 1e-8
# What is written before others have their turn.
_WRITE_BYTES = 64 * 1024


class UnusableLine(Exception):
    """A line that is not taken to its end; the rest of the stream cannot be understood."""


class LineTooLong(UnusableLine):
    def __init__(self, max_bytes: int) -> None:
        super().__init__(f"a message is one line of at most {max_bytes / 1024 / 1024:g} MiB")


class LineTooSlow(UnusableLine):
    def __init__(self) -> None:
        super().__init__(f"a large message must arrive within {_LARGE_MESSAGE_SECONDS:g} s")


class OnlyBlankLines(UnusableLine):
    def __init__(self) -> None:
        super().__init__(f"there were {_MAX_BLANK_BYTES // 1024} KiB of blank lines instead of a message")


class ConnectionClosed(Exception):
    """The channel or its connection is gone; there is nobody to write to."""


class StdioChannel(asyncssh.SSHServerSession[bytes]):
    """Of `large_messages` it takes one while it receives more than WINDOW_BYTES of a line, so that not all
    connections can do that at once. `connection_writable` is cleared while the connection itself cannot take
    more. Lines that are read count towards `debt`. `on_started` is called when the client has asked for a
    session and was granted it, `on_refusal` with the name of what it asked for and nobody gets."""

    def __init__(
        self,
        *,
        max_line_bytes: int,
        large_messages: asyncio.Semaphore,
        connection_writable: asyncio.Event,
        debt: Debt,
        on_started: Callable[["StdioChannel"], None],
        on_refusal: Callable[[str], None],
    ) -> None:
        self._max_line_bytes = max_line_bytes
        self._large_messages = large_messages
        self._connection_writable = connection_writable
        self._debt = debt
        self._on_started = on_started
        self._on_refusal = on_refusal
        self._channel: asyncssh.SSHServerChannel[bytes] | None = None
        self._received = bytearray()
        self._searched = 0
        """So much of `_received` has no line end."""
        self._blank_bytes = 0
        """Of blank lines since the last message."""
        self._paused = False
        self._ended = False
        """No more will be received: the client said so, or we want no more."""
        self._writing = asyncio.Lock()
        self._more = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()
        self.closed = asyncio.Event()
        self.lines_read = 0

    async def read_line(self) -> bytes | None:
        """The next line without its end, None when there are no more. Raises UnusableLine.

        What follows the last line end at the end of the stream is no message, nor is a blank line. Whoever
        has taken more than its share waits before it gets another.
        """
        await asyncio.sleep(self._debt.delay_seconds())
        while (line := self._take_line()) is None and not self._ended:
            if self._searched < WINDOW_BYTES:
                await self._receive()
            else:
                line = await self._read_large_line()
                break
        if line is not None:
            self.lines_read += 1
            self._debt.charge(_LINE_SECONDS + len(line) * _BYTE_SECONDS)
        return line

    async def _read_large_line(self) -> bytes | None:
        async with self._large_messages:
            try:
                async with asyncio.timeout(_LARGE_MESSAGE_SECONDS):
                    while (line := self._take_line()) is None and not self._ended:
                        if self._searched > self._max_line_bytes:
                            raise LineTooLong(self._max_line_bytes)
                        await self._receive()
                    return line
            except TimeoutError:
                raise LineTooSlow from None

    def _take_line(self) -> bytes | None:
        if not self._searched and (blank := _BLANK.match(self._received)):
            self._blank_bytes += blank.end()
            del self._received[: blank.end()]
            if self._blank_bytes > _MAX_BLANK_BYTES:
                raise OnlyBlankLines
        end = self._received.find(b"\n", self._searched)
        if end < 0:
            self._searched = len(self._received)
            return None
        line = bytes(self._received[:end])
        del self._received[: end + 1]
        self._searched = self._blank_bytes = 0
        return line

    async def _receive(self) -> None:
        """Wait for more to arrive, or for the end."""
        self._more.clear()  # before resuming, which may deliver at once
        if self._paused and self._channel is not None:
            self._paused = False
            self._channel.resume_reading()
        await self._more.wait()

    async def write_line(self, line: bytes) -> None:
        """Write `line` once the client has room for it. Raises ConnectionClosed."""
        async with self._writing:
            data = memoryview(line + b"\n")
            for start in range(0, len(data), _WRITE_BYTES):
                await self._write(bytes(data[start : start + _WRITE_BYTES]))

    async def _write(self, data: bytes) -> None:
        for event in (self._writable, self._connection_writable):
            await event.wait()
        if self._channel is None or self._channel.is_closing():
            raise ConnectionClosed
        self._channel.write(data)

    def charge(self, seconds: float) -> None:
        """Count what was done for this client towards what it may take; what is negative is given back."""
        self._debt.charge(seconds)

    def write_note(self, text: str) -> None:
        """Something for a person, on the client's standard error."""
        if self._channel is not None and not self._channel.is_closing():
            self._channel.write_stderr(text.encode())

    def finish_reading(self) -> None:
        """As if the client had nothing more to say."""
        self._ended = True
        self._more.set()

    def exit(self, status: int) -> None:
        """Tell the client the exit status and close the channel once it has been given everything."""
        if self._channel is not None and not self._channel.is_closing():
            self._channel.exit(status)

    @property
    def overstuffed(self) -> bool:
        """Whether the client has set more environment variables than anybody needs."""
        return self._channel is not None and len(self._channel.get_environment_bytes()) > _MAX_ENVIRONMENT

    # What asyncssh calls

    def connection_made(self, chan: asyncssh.SSHServerChannel[bytes]) -> None:
        self._channel = chan

    def connection_lost(self, exc: Exception | None) -> None:
        self._channel = None
        self.closed.set()
        self._writable.set()
        self.finish_reading()

    def pty_requested(self, term_type: str, term_size: object, term_modes: object) -> bool:
        self._on_refusal("a terminal")
        return False

    def shell_requested(self) -> bool:
        return True

    def exec_requested(self, command: str) -> bool:
        self.write_note(_NOT_A_SHELL)
        return True

    def subsystem_requested(self, subsystem: str) -> bool:
        if subsystem == SUBSYSTEM:
            return True
        self._on_refusal(f"the subsystem {subsystem[:40]!r}")
        return False

    def session_started(self) -> None:
        self._on_started(self)

    def data_received(self, data: bytes, datatype: asyncssh.DataType) -> None:
        self._received += data
        self._more.set()
        if len(self._received) >= WINDOW_BYTES and not self._paused and self._channel is not None:
            self._paused = True
            self._channel.pause_reading()

    def eof_received(self) -> bool:
        self.finish_reading()
        return True  # answers may still be on their way

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()
