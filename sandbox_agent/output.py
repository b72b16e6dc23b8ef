"""One stream of one command: from its FIFO into a capture and, when that overflows, into a file.

While a chunk is written to disk nothing more is read: the pipe fills up and the command waits, so memory
stays flat whatever the disk does. Without a file, or beyond its limit, the rest is only counted.
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
# Worth it only for a stream that has filled a pipe of the default size; fcntl(2), F_SETPIPE_SZ.
_BIG_PIPE_BYTES = 1 << 20
_DEFAULT_PIPE_BYTES = 1 << 16
# A background process that floods is read at about 25 MB/s, so that many of them leave time for commands.
_LATE_PAUSE_SECONDS = 0.01


def pending_bytes(pipe: int) -> int:
    """How much can be read from a pipe now; either end may be asked."""
    (count,) = struct.unpack("i", fcntl.ioctl(pipe, termios.FIONREAD, b"\0\0\0\0"))
    return int(count)


class OutputStream:
    """Reads the FIFO `fd`, which it owns, until `close`. `create_file` is called in a thread, when and if the
    stream gets longer than `limit_bytes`; `error` is why the file lacks something. `ended` says, after
    `finish`, that no process has the FIFO open any more."""

    def __init__(self, fd: int, limit_bytes: int, create_file: Callable[[], SpillFile]) -> None:
        self._loop = asyncio.get_running_loop()
        self._fd = fd
        self.ended = False
        self._late = False
        self._closed = False
        self._wanted = False
        self._reading = False
        self._writing: asyncio.Task[None] | None = None
        self._file: SpillFile | None = None
        self._start(limit_bytes, create_file)

    def _start(self, limit_bytes: int, create_file: Callable[[], SpillFile]) -> None:
        self.capture = Capture(limit_bytes)
        self.error: OSError | None = None
        self._create_file: Callable[[], SpillFile] | None = create_file
        self._wanted = True
        self._resume()

    async def finish(self, directory_inside: str) -> StreamOutput:
        """What the command wrote. What a background process writes from now on is not waited for."""
        self._wanted = False
        self._pause()
        await self._written()
        self._take(self._read(pending_bytes(self._fd)))
        await self._written()
        if self._hung_up():
            self.ended = True
            # The last writer may have written between the two looks; all there is fits into the pipe.
            self._take(self._read(pending_bytes(self._fd)))
            await self._written()
        head, tail = self.capture.head_and_tail()
        if self._file is None:
            return StreamOutput(head, tail, self.capture.total_bytes)
        path, size_bytes = f"{directory_inside}/{self._file.name}", self._file.size_bytes
        self._close_file()
        return StreamOutput(head, tail, self.capture.total_bytes, path, size_bytes)

    def continue_late(self, create_file: Callable[[], SpillFile]) -> None:
        """After `finish`: from now on everything goes to a file, made when there is something to write."""
        self._late = True
        self._start(0, create_file)

    def _hung_up(self) -> bool:
        """Whether no process has the FIFO open for writing, so that nothing more can come."""
        try:
            # A FIFO that nobody has opened yet does not count as hung up, poll(2). After this it was opened.
            os.close(os.open(f"/proc/self/fd/{self._fd}", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC))
        except PermissionError:
            pass  # the command, which opened it, took the permission away
        poll = select.poll()
        poll.register(self._fd, 0)
        return any(event & select.POLLHUP for _, event in poll.poll(0))

    def close(self) -> None:
        """Read no more; who still writes gets EPIPE."""
        self._wanted = False
        self._pause()
        self._closed = True
        os.close(self._fd)
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
            self._pause()  # nobody has it open; it would count as readable for ever
            self.ended = self._late
            return
        if len(chunk) == _DEFAULT_PIPE_BYTES and not self._late:
            try:
                fcntl.fcntl(self._fd, fcntl.F_SETPIPE_SZ, _BIG_PIPE_BYTES)
            except OSError:
                pass  # the user's pipes hold too many pages already, pipe(7): slower, and no less right
        self._take(chunk)
        if self._late and self._create_file is None:
            self._pause()
            self._loop.call_later(_LATE_PAUSE_SECONDS, self._resume)

    def _read(self, count: int) -> bytes:
        chunks = []
        while count > 0:
            try:
                chunk = os.read(self._fd, min(count, _CHUNK_BYTES))
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
            self._writing = self._loop.create_task(self._write(missing, self._create_file))

    async def _write(self, data: bytes, create_file: Callable[[], SpillFile]) -> None:
        try:
            await asyncio.to_thread(self._append, data, create_file)
            if self._file is not None and self._file.full:
                self._create_file = None
        except OSError as error:
            self.error = error
            self._create_file = None
        self._writing = None
        self._resume()
        if self._closed:
            self._close_file()

    def _append(self, data: bytes, create_file: Callable[[], SpillFile]) -> None:
        if self._file is None:
            self._file = create_file()
        self._file.append(data)

    async def _written(self) -> None:
        while self._writing is not None:
            await self._writing
