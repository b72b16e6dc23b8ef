"""The files through which one command meets the shell: its text, and a FIFO each for stdout and stderr.

They have new names for every command, so that what a background job writes late stays out of later results.
In a pod the directory belongs to the same user as the sandbox; nothing here trusts what lies in it.
"""

import errno
import os
import stat
from dataclasses import dataclass
from pathlib import Path

_FILE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_FIFO_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class CommandFiles:
    """Paths as the sandbox sees them, and the read ends of the FIFOs, which belong to the caller."""

    script: str
    stdout: str
    stderr: str
    stdout_fd: int
    stderr_fd: int


class Exchange:
    """The directory in which they are made. `owner` are the uid and gid that may open them, if not ours."""

    def __init__(self, directory: Path, directory_inside: str, owner: tuple[int, int] | None) -> None:
        self._directory = str(directory)
        self._inside = directory_inside.rstrip("/")
        self._owner = owner

    def prepare(self, name: str, text: bytes) -> CommandFiles:
        """Make the files of one command. Raises OSError."""
        try:
            return self._prepare(name, text)
        except OSError:
            self.remove(name)
            self._repair()
            return self._prepare(name, text)

    def _repair(self) -> None:
        """In a pod, a command may have removed or replaced the directory or taken its permissions."""
        directory = Path(self._directory)
        if directory.is_symlink() or directory.is_file():
            directory.unlink()
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if stat.S_IMODE(directory.stat().st_mode) & 0o700 != 0o700:
            directory.chmod(0o700)

    def remove(self, name: str) -> None:
        """Remove the names; whoever has the files open keeps them."""
        for suffix in ("", ".out", ".err"):
            try:
                os.unlink(f"{self._directory}/{name}{suffix}")  # noqa: PTH108 - a Path costs more than the call
            except OSError:
                pass  # never made, or a command removed or replaced it

    def write(self, name: str, text: bytes) -> str:
        """Make a file with `text`. Returns its path in the sandbox. Raises OSError."""
        fd = os.open(f"{self._directory}/{name}", _FILE_FLAGS, 0o400)
        try:
            if self._owner is not None:
                os.fchown(fd, *self._owner)
            view = memoryview(text)
            while view:
                view = view[os.write(fd, view) :]
        finally:
            os.close(fd)
        return f"{self._inside}/{name}"

    def _prepare(self, name: str, text: bytes) -> CommandFiles:
        script = self.write(name, text)
        stdout_fd = self._fifo(f"{name}.out")
        try:
            stderr_fd = self._fifo(f"{name}.err")
        except OSError:
            os.close(stdout_fd)
            raise
        return CommandFiles(script, f"{script}.out", f"{script}.err", stdout_fd, stderr_fd)

    def _fifo(self, name: str) -> int:
        path = f"{self._directory}/{name}"
        os.mkfifo(path, 0o600)
        if self._owner is not None:
            os.chown(path, *self._owner, follow_symlinks=False)
        fd = os.open(path, _FIFO_FLAGS)
        if not stat.S_ISFIFO(os.fstat(fd).st_mode):
            os.close(fd)
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        return fd
