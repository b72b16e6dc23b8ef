"""Keeps a shell's snapshot on disk, so that a restarted container finds it again.

In a pod the sandbox can write to the file too. What is read back only ever reaches the sandbox's own shell;
all that is defended here is this process: its memory, and files that the path could be made to point to.
"""

import os
import stat
from pathlib import Path

from sandbox_agent.protocol import SNAPSHOT_LIMIT_BYTES
from sandbox_agent.snapshot import Snapshot

_READ_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_WRITE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_LIMIT_BYTES = SNAPSHOT_LIMIT_BYTES + (1 << 16)


class StateFile:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._new = path.with_name(path.name + ".new")

    @property
    def exists(self) -> bool:
        """Whether something is there; in a pod a command may have removed it."""
        return os.path.lexists(self._path)

    def load(self) -> Snapshot | None:
        """The snapshot that was saved last, or None when there is no readable one."""
        try:
            fd = os.open(self._path, _READ_FLAGS)
        except OSError:
            return None
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            return None
        with open(fd, "rb") as file:
            data = file.read(_LIMIT_BYTES + 1)
        try:
            return Snapshot.load(data) if len(data) <= _LIMIT_BYTES else None
        except ValueError:
            return None

    def save(self, snapshot: Snapshot) -> None:
        """Replace the saved snapshot, at once or not at all. Raises OSError."""
        self._new.unlink(missing_ok=True)
        with open(os.open(self._new, _WRITE_FLAGS, 0o600), "wb") as file:
            file.write(snapshot.dump())
        self._new.replace(self._path)
