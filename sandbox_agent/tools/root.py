"""The directory that the typed tools work in, and paths below it.

A path may be absolute, if it starts with the directory, or relative to it. Symbolic links and `..` count as
long as every step stays below the directory; a link with an absolute target leaves it, wherever it points.
No mount is entered. Whatever is renamed or swapped meanwhile, nothing outside is opened: openat2(2) with
RESOLVE_BENEATH, or where the kernel lacks it a walk that holds each directory of the way open.
"""

import errno
import os
import stat
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from cli_mcp.execution import ToolFailed
from sandbox_agent import openat2

_RESOLVE = openat2.BENEATH | openat2.NO_XDEV | openat2.NO_MAGICLINKS
_MAX_LINKS = 40  # as the kernel, path_resolution(7)
_MAX_PATH_BYTES = 4095  # PATH_MAX without its NUL, limits.h
_MAX_NAME_BYTES = 255  # NAME_MAX
_DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Place:
    """A name in an open directory: what an operation on a name and not on a file works with."""

    directory: int
    name: str


class Root:
    """Held open from the construction to `close`. Methods raise ToolFailed for a path that cannot be meant,
    and OSError as the system calls do: EXDEV for one that leads out."""

    def __init__(self, path: Path) -> None:
        self.path = PurePosixPath(path)
        self._fd = os.open(path, _DIRECTORY)

    def close(self) -> None:
        os.close(self._fd)

    def relative(self, path: str) -> str:
        """`path` as seen from the root, `.` for the root itself."""
        if not path or "\0" in path:
            raise ToolFailed("The path is empty." if not path else "The path contains a NUL character.")
        try:
            size = len(os.fsencode(path))
        except UnicodeEncodeError:
            raise ToolFailed("The path is not valid Unicode.") from None
        if size > _MAX_PATH_BYTES:
            raise ToolFailed(f"The path has {size} bytes, the system allows {_MAX_PATH_BYTES}.")
        if not path.startswith("/"):
            return path
        for prefix in {f"{self.path}", f"{os.path.realpath(self.path)}"}:
            if path == prefix or path.startswith(f"{prefix}/"):
                return path[len(prefix) :].strip("/") or "."
        raise ToolFailed(f"{shown(path)} is outside of {self.path}, where files can be worked with.")

    def absolute(self, path: str) -> str:
        """`path` for a reader, without a look at the disk."""
        relative = self.relative(path)
        return str(self.path) if relative == "." else f"{self.path}/{relative}"

    @contextmanager
    def opened(self, path: str, flags: int) -> Iterator[int]:
        """An existing file or directory, opened with `flags`; never created."""
        fd = self._open(self.relative(path), flags)
        try:
            yield fd
        finally:
            os.close(fd)

    @contextmanager
    def regular_file(self, path: str, flags: int) -> Iterator[int]:
        """An existing regular file. Nothing else is opened, so that no FIFO, device or socket notices."""
        with self.opened(path, os.O_PATH) as found:
            check_regular(os.fstat(found), path)
            # The very file that was looked at. O_NONBLOCK, since a lease on it would block, fcntl(2).
            fd = os.open(f"/proc/self/fd/{found}", flags | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            yield fd
        finally:
            os.close(fd)

    @contextmanager
    def place(self, path: str, *, make_parents: bool = False) -> Iterator[Place]:
        """Where the last name of `path` stands or would stand; the name itself is not looked at."""
        relative = self.relative(path).rstrip("/")
        parent, _, name = relative.rpartition("/")
        if name in ("", ".", ".."):
            raise ToolFailed(f"{shown(path)} names no file or directory below {self.path}.")
        if len(os.fsencode(name)) > _MAX_NAME_BYTES:
            raise ToolFailed(f"The name {shown(name)} is longer than {_MAX_NAME_BYTES} bytes.")
        directory = self._directory(parent or ".", make=make_parents)
        try:
            yield Place(directory, name)
        finally:
            os.close(directory)

    @contextmanager
    def place_behind_links(self, path: str, *, make_parents: bool = False) -> Iterator[Place]:
        """The same, but where the last name is a symbolic link: where that leads, if it stays below."""
        for _ in range(_MAX_LINKS):
            with self.place(path, make_parents=make_parents) as place:
                try:
                    target = os.readlink(place.name, dir_fd=place.directory)
                except OSError as error:
                    if error.errno not in (errno.EINVAL, errno.ENOENT):
                        raise
                    yield place  # no link, or nothing there yet
                    return
            if target.startswith("/"):
                raise _os_error(errno.EXDEV)
            path = f"{self.relative(path).rstrip('/').rpartition('/')[0] or '.'}/{target}"
        raise _os_error(errno.ELOOP)

    def _directory(self, path: str, *, make: bool) -> int:
        try:
            return self._open(path, _DIRECTORY)
        except FileNotFoundError:
            if not make:
                raise
        parts = path.strip("/").split("/")
        for count in range(1, len(parts) + 1):
            above = self._open("/".join(parts[: count - 1]) or ".", _DIRECTORY)
            try:
                os.mkdir(parts[count - 1], dir_fd=above)
            except FileExistsError:
                pass  # whatever it is, only a directory below will do
            finally:
                os.close(above)
        return self._open(path, _DIRECTORY)

    def _open(self, path: str, flags: int) -> int:
        flags |= os.O_CLOEXEC if flags & os.O_PATH else os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
        try:
            return openat2.openat2(self._fd, path, flags, 0, _RESOLVE)
        except OSError as error:
            if error.errno not in openat2.MISSING:
                raise
        return self._walk(path, flags)

    def _walk(self, path: str, flags: int) -> int:
        """What openat2 does, one name at a time. `..` goes back along the way that was taken."""
        way = [os.dup(self._fd)]
        rest = deque(path.split("/"))
        links = 0
        try:
            mount = _mount_id(self._fd)
            while rest:
                name = rest.popleft()
                if name in ("", "."):
                    continue
                if name == "..":
                    os.close(way.pop())
                    if not way:
                        raise _os_error(errno.EXDEV)
                    continue
                found = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=way[-1])
                way.append(found)
                if _mount_id(found) != mount:
                    raise _os_error(errno.EXDEV)
                if stat.S_ISLNK(os.fstat(found).st_mode):
                    links += 1
                    target = os.readlink("", dir_fd=found)
                    os.close(way.pop())
                    if links > _MAX_LINKS:
                        raise _os_error(errno.ELOOP)
                    if target.startswith("/"):
                        raise _os_error(errno.EXDEV)
                    rest.extendleft(reversed(target.split("/")))
            return os.open(f"/proc/self/fd/{way[-1]}", flags)
        finally:
            for fd in way:
                os.close(fd)


def check_regular(status: os.stat_result, path: str) -> None:
    """Raises ToolFailed."""
    if not stat.S_ISREG(status.st_mode):
        raise ToolFailed(f"{shown(path)} is a {kind_of(status.st_mode)}, not a regular file.")


def kind_of(mode: int) -> str:
    """What a file is, as the tools call it."""
    return next((name for is_kind, name in _KINDS if is_kind(mode)), "file")


_KINDS = (
    (stat.S_ISDIR, "directory"),
    (stat.S_ISLNK, "link"),
    (stat.S_ISFIFO, "fifo"),
    (stat.S_ISSOCK, "socket"),
    (stat.S_ISCHR, "device"),
    (stat.S_ISBLK, "device"),
)


def shown(path: str) -> str:
    """A path from outside in a message: printable, and not longer than a line."""
    text = path.encode("utf-8", "backslashreplace").decode()
    text = "".join(character if character.isprintable() else "?" for character in text)
    return f"`{text if len(text) <= 200 else text[:100] + '...' + text[-97:]}`"


def _mount_id(fd: int) -> str:
    """Which mount a descriptor is on, proc_pid_fdinfo(5): two of one file system differ in nothing else."""
    for line in Path(f"/proc/self/fdinfo/{fd}").read_text().splitlines():
        if line.startswith("mnt_id:"):
            return line
    return ""


def _os_error(number: int) -> OSError:
    return OSError(number, os.strerror(number))
