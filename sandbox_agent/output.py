"""One stream of one command: from its FIFO into a capture and, when that overflows, into a file.

While a chunk is written to disk nothing more is read: the pipe fills up and the command waits, so memory stays
flat whatever the disk does. Without a file, or beyond its limit, the rest is only counted.
"""

import asyncio
import fcntl
import os
import select
import struct
import termios
from collections.abc import Callable

from cli_mcp.execution import StreamOutput
from sandbox_agent.capture import Capture
from sandbox_agent.spill import SpillFile

_CHUNK_BYTES = 1 << 18
# Linux fcntl(2) F_SETPIPE_SZ; worth it only for a stream that has filled a pipe of the default size once.
_BIG_PIPE_BYTES = 1 << 20
_DEFAULT_PIPE_BYTES = 1 << 16


def pending_bytes(fd: int) -> int:
    """How much can be read from a pipe now; either end may be asked."""
    (count,) = struct.unpack("i", fcntl.ioctl(fd, termios.FIONREAD, b"\0\0\0\0"))
    return int(count)


class OutputStream:
    """Reads `fd`, which it owns, until `close`. `create_file` makes the file when it is first needed."""

    def __init__(self, fd: int, limit_bytes: int, create_file: Callable[[], SpillFile]) -> None:
        self._loop = asyncio.get_running_loop()
        self._fd = fd
        self._big_pipe = False
        self._reading = False
        self._writing: asyncio.Task[None] | None = None
        self._start(limit_bytes, create_file)

    def _start(self, limit_bytes: int, create_file: Callable[[], SpillFile]) -> None:
        self.capture = Capture(limit_bytes)
        self._create_file: Callable[[], SpillFile] | None = create_file
        self._file: SpillFile | None = None
        self.error: OSError | None = None
        self._wanted = True
        self._resume()

    async def finish(self, path_of: Callable[[str], str]) -> StreamOutput:
        """What the stream holds at this moment; what a background job writes later is not waited for."""
        self._wanted = False
        self._pause()
        await self._written()
        self._take(self._read(pending_bytes(self._fd)))
        await self._written()
        if self.ended:
            # Between the two looks a last writer may have written and gone; all there is fits in the pipe.
            self._take(self._read(pending_bytes(self._fd)))
            await self._written()
        head, tail = self.capture.head_and_tail()
        file, self._file = self._file, None
        if file is None:
            return StreamOutput(head, tail, self.capture.total_bytes)
        file.close()
        return StreamOutput(head, tail, self.capture.total_bytes, path_of(file.name), file.size_bytes)

    def continue_into(self, create_file: Callable[[], SpillFile]) -> None:
        """After `finish`: from now on everything goes to a file, made when there is something to write."""
        self._start(0, create_file)

    @property
    def ended(self) -> bool:
        """Whether no process has the other end open any more."""
        poll = select.poll()
        poll.register(self._fd, 0)
        return any(event & select.POLLHUP for _, event in poll.poll(0))

    def close(self) -> None:
        """Stop reading; whoever still writes gets EPIPE."""
        self._wanted = False
        self._pause()
        if self._fd < 0:
            return
        fd, self._fd = self._fd, -1
        os.close(fd)
        if self._writing is None:
            self._close_file()

    def _close_file(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def _resume(self) -> None:
        if self._wanted and not self._reading:
            self._reading = True
            self._loop.add_reader(self._fd, self._on_readable)

    def _pause(self) -> None:
        if self._reading:
            self._reading = False
            self._loop.remove_reader(self._fd)

    def _on_readable(self) -> None:
        try:
            chunk = os.read(self._fd, _CHUNK_BYTES)
        except BlockingIOError:
            return
        if not chunk:
            self._pause()  # nobody has it open: it would be readable for ever
            return
        if len(chunk) >= _DEFAULT_PIPE_BYTES and not self._big_pipe:
            self._big_pipe = True
            try:
                fcntl.fcntl(self._fd, fcntl.F_SETPIPE_SZ, _BIG_PIPE_BYTES)
            except OSError:
                pass  # the user's pipes have too many pages already, pipe(7): slower, no less right
        self._take(chunk)

    def _read(self, count: int) -> bytes:
        chunks = []
        while count > 0:
            try:
                chunk = os.read(self._fd, min(count, _BIG_PIPE_BYTES))
            except BlockingIOError:
                break
            if not chunk:
                break
            chunks.append(chunk)
            count -= len(chunk)
        return b"".join(chunks)

    def _take(self, chunk: bytes) -> None:
        missing = self.capture.feed(chunk)
        if missing and self._create_file is not None:
            self._pause()
            self._writing = self._loop.create_task(self._write(missing))

    async def _write(self, data: bytes) -> None:
        try:
            if self._create_file is not None:
                await self._loop.run_in_executor(None, self._append, data)
        except OSError as error:
            self.error = error
            self._create_file = None
        if self._file is not None and self._file.full:
            self._create_file = None
        self._writing = None
        if self._fd < 0:
            self._close_file()
        self._resume()

    def _append(self, data: bytes) -> None:
        assert self._create_file is not None
        if self._file is None:
            self._file = self._create_file()
        self._file.append(data)

    async def _written(self) -> None:
        while self._writing is not None:
            await self._writing
