"""Logs that are read piece by piece: those of processes, which are capped, and any file of the workspace.

An offset leads back to the same place as long as that place exists. When it does not, because the log was
rotated, truncated or begun anew, reading goes on with what there is, and the piece says so.
"""

import os
from dataclasses import dataclass
from typing import Protocol

from cli_mcp.execution import ToolFailed
from sandbox_agent.tools.root import Root, shown

LOG_LIMIT_BYTES = 4 << 20
"""After so many bytes the log gets the name NAME.1, in place of the one before, and a new one begins."""


@dataclass(frozen=True, slots=True)
class Piece:
    """`data` from `offset` on. `gap` says why that is not the offset that was asked for, and `lost_bytes` how
    much is missing, None when that cannot be known. `size_bytes` is where the log ends now."""

    data: bytes
    offset: int
    size_bytes: int
    file_id: str | None = None
    gap: str | None = None
    lost_bytes: int | None = 0


class Log(Protocol):
    def read(self, offset: int | None, limit: int) -> Piece:
        """Up to `limit` bytes from `offset` on, of the end when that is None. Raises OSError, ToolFailed."""
        ...


class ProcessLog:
    """What one process writes. Offsets count from its first byte, whatever was rotated since.

    The files are the sandbox's: it may truncate or remove them, which costs it the contents and nothing else.
    """

    def __init__(self, directory: int, name: str, limit_bytes: int = LOG_LIMIT_BYTES) -> None:
        self.total_bytes = 0
        self._directory = directory
        self._name = name
        self._limit_bytes = limit_bytes
        self._rotated_bytes = 0  # the end of what is gone with the file before the previous one
        self._previous: int | None = None
        self._previous_end = 0
        self._current = self._create()

    def append(self, data: bytes) -> None:
        """Raises OSError; then some of it is missing."""
        view = memoryview(data)
        while view:
            if self.total_bytes - self._previous_end >= self._limit_bytes:
                self._rotate()
            room = self._limit_bytes - (self.total_bytes - self._previous_end)
            written = os.write(self._current, view[:room])
            self.total_bytes += written
            view = view[written:]

    def read(self, offset: int | None, limit: int) -> Piece:
        starts = self._starts()
        total = self.total_bytes
        if offset is None:
            offset = max(starts[0][1], total - limit)
        gap, lost = None, 0
        if offset > total:
            gap, offset = "restarted", starts[0][1]
        elif offset < starts[0][1]:
            gap, lost = "rotated" if offset < self._rotated_bytes else "truncated", starts[0][1] - offset
            offset = starts[0][1]
        fd, start, end = next(segment for segment in reversed(starts) if offset >= segment[1])
        if offset >= end and end < total:  # in what was truncated between the two files
            fd, start, end = starts[-1]
            gap, lost, offset = "truncated", start - offset, start
        data = os.pread(fd, min(limit, end - offset), offset - start)
        return Piece(data, offset, total, gap=gap, lost_bytes=lost)

    def close(self, *, remove: bool) -> None:
        for fd in (self._current, self._previous):
            if fd is not None:
                os.close(fd)
        if remove:
            for name in (self._name, f"{self._name}.1"):
                _unlink(self._directory, name)
        os.close(self._directory)

    def _starts(self) -> list[tuple[int, int, int]]:
        """The files there are, oldest first: descriptor, offset of the first byte, offset behind the last."""
        segments = [(self._current, self._start(self._current, self.total_bytes), self.total_bytes)]
        if self._previous is not None:
            end = self._previous_end
            segments.insert(0, (self._previous, self._start(self._previous, end), end))
        return segments

    def _start(self, fd: int, end: int) -> int:
        """What is appended to a file that was truncated stands at its beginning."""
        return max(0, end - os.fstat(fd).st_size)

    def _rotate(self) -> None:
        try:
            os.rename(self._name, f"{self._name}.1", src_dir_fd=self._directory, dst_dir_fd=self._directory)
        except FileNotFoundError:
            pass  # the sandbox removed it; what was in it can be read until the next rotation
        current = self._create()
        if self._previous is not None:
            os.close(self._previous)
            self._rotated_bytes = self._previous_end
        self._previous, self._previous_end, self._current = self._current, self.total_bytes, current

    def _create(self) -> int:
        _unlink(self._directory, self._name)
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        return os.open(self._name, flags, 0o666, dir_fd=self._directory)


class FileLog:
    """Any regular file, told from its successor by `file_id`, which an earlier piece had.

    When it was rotated the usual way, its rest is read from PATH.1 first.
    """

    def __init__(self, root: Root, path: str, file_id: str | None) -> None:
        self._root = root
        self._path = path
        self._file_id = file_id

    def read(self, offset: int | None, limit: int) -> Piece:
        with self._root.regular_file(self._path, os.O_RDONLY) as fd:
            status = os.fstat(fd)
            file_id = _id(status)
            size = status.st_size
            if self._file_id in (None, file_id):
                if offset is None:
                    offset = max(0, size - limit)
                gap = "truncated" if offset > size else None
                offset = 0 if gap else offset
                lost: int | None = None if gap else 0
            else:
                rest = self._rest(offset or 0, limit)
                if rest is not None and rest.data:
                    return rest
                gap, lost, offset = "rotated", 0 if rest is not None else None, 0
            data = os.pread(fd, limit, offset)
        return Piece(data, offset, max(size, offset + len(data)), file_id, gap, lost)

    def _rest(self, offset: int, limit: int) -> Piece | None:
        """What is left of the file that was rotated, or None when it is not found."""
        try:
            with self._root.regular_file(f"{self._path}.1", os.O_RDONLY) as fd:
                status = os.fstat(fd)
                if _id(status) != self._file_id:
                    return None
                return Piece(os.pread(fd, limit, offset), offset, status.st_size, self._file_id)
        except (FileNotFoundError, ToolFailed):
            return None


def open_log_directory(root: Root, path: str) -> int:
    """A descriptor of the directory `path`, made when it is missing; the caller's to close."""
    with root.place(f"{path}/log", make_parents=True) as place:
        return os.dup(place.directory)


def _id(status: os.stat_result) -> str:
    return f"{status.st_dev:x}-{status.st_ino:x}"


def _unlink(directory: int, name: str) -> None:
    try:
        os.unlink(name, dir_fd=directory)
    except FileNotFoundError:
        pass  # nothing is in the way
    except IsADirectoryError:
        raise ToolFailed(f"A directory is in the way of the log {shown(name)}. Move it away.") from None
