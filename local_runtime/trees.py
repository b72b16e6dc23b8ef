"""How large a directory tree is and how to remove it, when whoever made it is hostile.

Depth, names and modes are arbitrary, and while a tree is measured it may change in any way: nothing here
recurses, follows a link, crosses a mount or builds a path.
"""

import os
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

_OPEN_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_OPEN_HANDLE = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_STAT_BLOCK_BYTES = 512  # st_blocks, stat(2)
# What a file costs at least: empty files use up inodes, which the disk has a fixed number of.
ENTRY_BYTES = 1024
_READABLE = stat.S_IRUSR | stat.S_IXUSR
# How many levels on the way down are held open, to go on from when a deeper one was moved away.
_HELD_LEVELS = 32
_ENTRIES_PER_QUESTION = 256

GiveUp = Callable[[], bool]
"""Asked from time to time: whether to stop with what was seen so far."""


@dataclass(frozen=True, slots=True)
class Size:
    """`complete` is false when the tree changed in such a way that parts of it were not seen, or it was
    given up."""

    used_bytes: int
    entries: int
    complete: bool
    seconds: float


def measure(directory: int, *, stop_at_bytes: int, give_up: GiveUp = lambda: False) -> Size:
    """The disk space of what is below an open directory, counted until it exceeds `stop_at_bytes`.

    A file with several names counts once. A directory that its owner may not read gets a mode that lets him,
    when that is this process's user. Blocks the thread for about 3 s per million entries. Raises OSError
    when the directory itself cannot be read.
    """
    started = time.monotonic()
    with _Walk(directory, stop_at_bytes, give_up) as walk:
        walk.run()
        return Size(walk.used_bytes, walk.entries, walk.complete, time.monotonic() - started)


@dataclass(slots=True)
class _Level:
    identity: tuple[int, int]
    subdirectories: list[str] = field(default_factory=list)


class _Walk:
    """Depth first, with descriptors for the upper levels and for the current directory only."""

    def __init__(self, directory: int, stop_at_bytes: int, give_up: GiveUp) -> None:
        self.used_bytes = 0
        self.entries = 0
        self.complete = True
        self._stop_at_bytes = stop_at_bytes
        self._give_up = give_up
        self._device = os.fstat(directory).st_dev
        self._linked: set[int] = set()  # inodes with several names that were counted
        self._levels: list[_Level] = []
        self._held: list[int] = []  # descriptors of the first _HELD_LEVELS levels
        self._deep: int | None = None  # descriptor of the current directory when it lies below those
        self._enter(os.open(".", _OPEN_DIRECTORY, dir_fd=directory))

    def __enter__(self) -> "_Walk":
        return self

    def __exit__(self, *_: object) -> None:
        self._replace_deep(None)
        while self._held:
            os.close(self._held.pop())

    def run(self) -> None:
        while self._levels and self.used_bytes <= self._stop_at_bytes:
            if self._give_up():
                self.complete = False
                return
            if not self._levels[-1].subdirectories:
                self._leave()
                continue
            current = self._held[-1] if self._deep is None else self._deep
            try:
                below = _open_as_owner(self._levels[-1].subdirectories.pop(), current)
            except OSError:
                continue  # removed, or replaced by something else, since it was listed
            self._enter(below)

    def _enter(self, fd: int) -> None:
        if len(self._held) < _HELD_LEVELS:
            self._held.append(fd)
        else:
            self._replace_deep(fd)
        self._levels.append(self._read(fd))

    def _leave(self) -> None:
        self._levels.pop()
        depth = len(self._levels)
        if depth < _HELD_LEVELS:
            os.close(self._held.pop())
        elif depth == _HELD_LEVELS:
            self._replace_deep(None)
        else:
            assert self._deep is not None
            above = os.open("..", _OPEN_HANDLE, dir_fd=self._deep)
            self._replace_deep(above)
            if _identity(above) != self._levels[-1].identity:
                # Moved away: what the levels in between still had to show stays unseen this time.
                self.complete = False
                self._replace_deep(None)
                del self._levels[_HELD_LEVELS:]

    def _replace_deep(self, fd: int | None) -> None:
        if self._deep is not None:
            os.close(self._deep)
        self._deep = fd

    def _read(self, fd: int) -> _Level:
        level = _Level(_identity(fd))
        with os.scandir(fd) as listing:
            for entry in listing:
                try:
                    status = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue
                if not self._counts(status):
                    continue
                self.entries += 1
                if self.entries % _ENTRIES_PER_QUESTION == 0 and self._give_up():
                    self.complete = False
                    break
                self.used_bytes += max(status.st_blocks * _STAT_BLOCK_BYTES, ENTRY_BYTES)
                if self.used_bytes > self._stop_at_bytes:
                    break
                if stat.S_ISDIR(status.st_mode):
                    level.subdirectories.append(entry.name)
        return level

    def _counts(self, status: os.stat_result) -> bool:
        if status.st_dev != self._device:
            return False
        if status.st_nlink > 1 and not stat.S_ISDIR(status.st_mode):
            if status.st_ino in self._linked:
                return False
            self._linked.add(status.st_ino)
        return True


def remove(holder: int, name: str) -> None:
    """Remove the tree `name` from the open directory `holder`, in which nothing else makes names.

    Every directory is moved up into `holder` before it is emptied, so that any depth takes the same few
    descriptors; after an interruption what is left there is trees again. Blocks. Raises OSError.
    """
    waiting = [name]
    moved = 0
    while waiting:
        current = waiting.pop()
        with _opened(current, holder) as fd:
            for entry in _entries(fd):
                if not entry.is_dir(follow_symlinks=False):
                    os.unlink(entry.name, dir_fd=fd)
                    continue
                # Moving a directory writes its `..`, for which its owner needs the right to write, rename(2).
                with _opened(entry.name, fd):
                    pass
                moved += 1
                waiting.append(f"{name}.{moved}")
                os.rename(entry.name, waiting[-1], src_dir_fd=fd, dst_dir_fd=holder)
        os.rmdir(current, dir_fd=holder)


@contextmanager
def _opened(name: str, directory: int) -> Iterator[int]:
    fd = _open_as_owner(name, directory, bits=stat.S_IRWXU)
    try:
        yield fd
    finally:
        os.close(fd)


def _entries(fd: int) -> Iterator[os.DirEntry[str]]:
    """All entries of a directory from which they are removed meanwhile: listed again until it is empty."""
    while True:
        found = False
        with os.scandir(fd) as listing:
            for entry in listing:  # one by one: there may be millions
                found = True
                yield entry
        if not found:
            return


def _open_as_owner(name: str, directory: int, *, bits: int = _READABLE) -> int:
    """Open a subdirectory. Whoever is not root cannot look into his own directory when its mode forbids it,
    so what is missing of `bits` is added to the mode; as root nothing is missing. Raises OSError."""
    try:
        fd = os.open(name, _OPEN_DIRECTORY, dir_fd=directory)
    except PermissionError:
        handle = os.open(name, _OPEN_HANDLE, dir_fd=directory)
        try:
            # fchmod(2) refuses an O_PATH descriptor, its name in /proc does not.
            same = Path(f"/proc/self/fd/{handle}")
            same.chmod(stat.S_IMODE(os.fstat(handle).st_mode) | bits)
            return os.open(same, _OPEN_DIRECTORY & ~os.O_NOFOLLOW)
        finally:
            os.close(handle)
    mode = os.fstat(fd).st_mode
    if mode & bits != bits and os.geteuid() != 0:
        os.fchmod(fd, stat.S_IMODE(mode) | bits)
    return fd


def _identity(fd: int) -> tuple[int, int]:
    status = os.fstat(fd)
    return status.st_dev, status.st_ino
