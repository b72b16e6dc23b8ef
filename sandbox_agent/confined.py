"""Files below a directory that a hostile process may change at the same time.

Nothing here follows a symbolic link, crosses a mount or leaves the directory, whatever is renamed meanwhile:
openat2(2) with RESOLVE_BENEATH, or a walk from descriptor to descriptor where the kernel lacks it.
"""

import errno
import os
import stat
from types import TracebackType
from typing import Self

from sandbox_agent import openat2

_RESOLVE = openat2.NO_XDEV | openat2.NO_MAGICLINKS | openat2.NO_SYMLINKS | openat2.BENEATH
_OPEN_TREE = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
_ALWAYS = os.O_NOFOLLOW | os.O_CLOEXEC
_ALWAYS_FOR_CONTENT = os.O_NONBLOCK | os.O_NOCTTY  # openat2(2) refuses these beside O_PATH


class ConfinedDirectory:
    """A directory held open before anything hostile ran, and what may be done below it.

    Paths are relative to it, of plain components: a path that is absolute, empty or has `..` in it raises
    ValueError. Everything else that goes wrong raises OSError: ELOOP for a symbolic link, EXDEV for a mount.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._device = os.fstat(self._fd).st_dev

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        os.close(self._fd)

    def fileno(self) -> int:
        return self._fd

    def open(self, path: str, flags: int, mode: int = 0o600) -> int:
        """A descriptor for `path`, as open(2); never blocks on a FIFO and never follows a link."""
        parts = _components(path)
        flags |= _ALWAYS if flags & os.O_PATH else _ALWAYS | _ALWAYS_FOR_CONTENT
        try:
            fd = _openat2(self._fd, "/".join(parts), flags, mode)
        except OSError as error:
            if error.errno not in openat2.MISSING:
                raise
            fd = self._walk(parts, flags, mode)
        # O_PATH|O_NOFOLLOW opens a link itself instead of failing, open(2).
        if flags & os.O_PATH and stat.S_ISLNK(os.fstat(fd).st_mode):
            os.close(fd)
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
        return fd

    def create(self, path: str, mode: int = 0o600) -> int:
        """A descriptor for writing to a new regular file; FileExistsError when anything has that name."""
        return self.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)

    def subdirectory(self, path: str, mode: int = 0o700) -> "ConfinedDirectory":
        """The directory `path`, made when it is missing, confined likewise."""
        parent, name = self._parent(path)
        try:
            os.mkdir(name, mode, dir_fd=parent)
        except FileExistsError:
            pass  # whatever it is, the open below accepts nothing but a directory
        finally:
            os.close(parent)
        fd = self.open(path, os.O_RDONLY | os.O_DIRECTORY)
        directory = object.__new__(ConfinedDirectory)
        directory._fd, directory._device = fd, self._device
        return directory

    def unlink(self, path: str) -> None:
        """Remove a name; a link is removed itself, not what it points to."""
        parent, name = self._parent(path)
        try:
            os.unlink(name, dir_fd=parent)
        finally:
            os.close(parent)

    def _parent(self, path: str) -> tuple[int, str]:
        *above, name = _components(path)
        return (self.open("/".join(above), _OPEN_TREE) if above else os.dup(self._fd)), name

    def _walk(self, parts: list[str], flags: int, mode: int) -> int:
        """What openat2 does, one component at a time."""
        current = os.dup(self._fd)
        try:
            for part in parts[:-1]:
                below = os.open(part, _OPEN_TREE | os.O_NOFOLLOW, dir_fd=current)
                os.close(current)
                current = below
                self._check_device(current)
            fd = os.open(parts[-1], flags, mode, dir_fd=current)
        finally:
            os.close(current)
        try:
            self._check_device(fd)
        except OSError:
            os.close(fd)
            raise
        return fd

    def _check_device(self, fd: int) -> None:
        if os.fstat(fd).st_dev != self._device:
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))


def _components(path: str) -> list[str]:
    if not path or path.startswith("/") or "\0" in path:
        raise ValueError(f"not a relative path: {path!r}")
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if not parts or ".." in parts:
        raise ValueError(f"not a path of plain components: {path!r}")
    return parts


def _openat2(directory: int, path: str, flags: int, mode: int) -> int:
    return openat2.openat2(directory, path, flags, mode, _RESOLVE)
