"""The audit log of local mode: a file for its owner alone, and the one before it when it got large."""

import contextlib
import logging
import os
from pathlib import Path

MAX_FILE_BYTES = 64 << 20

log = logging.getLogger(__name__)


class AuditFile:
    """Appends to `path`; the constructor raises OSError."""

    def __init__(self, path: Path, max_bytes: int = MAX_FILE_BYTES) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._fd = _open(path)

    def write_line(self, line: str) -> None:
        """`line` is ASCII. One that cannot be written goes to the server's log, so that none is lost."""
        try:
            if os.fstat(self._fd).st_size > self._max_bytes:
                self._start_anew()
            os.write(self._fd, f"{line}\n".encode("ascii"))
        except OSError as error:
            log.error(
                "%s cannot be written (%s): %s",
                self._path,
                error.strerror,
                line,
                extra={"budgeted": True},
            )

    def close(self) -> None:
        os.close(self._fd)

    def _start_anew(self) -> None:
        with contextlib.suppress(FileNotFoundError):  # somebody has put it away already
            self._path.replace(self._path.with_name(f"{self._path.name}.1"))
        previous, self._fd = self._fd, _open(self._path)
        os.close(previous)


def _open(path: Path) -> int:
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    os.fchmod(fd, 0o600)  # one that is there already
    return fd
