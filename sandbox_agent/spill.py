"""Files in the workspace for output that a result cannot carry, bounded in number and size.

The workspace belongs to the sandbox, which may put anything in the way at any time: then there is no file.
Methods block on the disk and are called from threads.
"""

import errno
import logging
import os
import re
import threading
from collections import OrderedDict
from dataclasses import dataclass
from itertools import islice

from sandbox_agent.confined import ConfinedDirectory

_log = logging.getLogger(__name__)
DIRECTORY = ".cli-mcp"
_NAME = re.compile(r"([0-9]{1,12})\.(background\.)?(stdout|stderr)")
# A sandbox may fill the directory with names; beyond these it hurts itself alone.
_LISTED_NAMES = 10_000


@dataclass(frozen=True, slots=True)
class SpillLimits:
    """Of one session: how large a file gets, how many there are, how large they are together."""

    file_bytes: int = 512 << 20
    background_file_bytes: int = 16 << 20
    files: int = 20
    total_bytes: int = 1 << 30

    @classmethod
    def within(cls, workspace_bytes: int) -> "SpillLimits":
        """Those for a workspace of this size, which no limit of a process holds the server to."""
        usual, most = cls(), workspace_bytes // 2
        return cls(
            file_bytes=min(usual.file_bytes, most // 2),
            background_file_bytes=min(usual.background_file_bytes, most // 8),
            total_bytes=min(usual.total_bytes, most),
        )


class SpillFile:
    """One file; takes the first bytes of a stream up to its limit."""

    def __init__(self, directory: "SpillDirectory", name: str, fd: int, limit_bytes: int) -> None:
        self._directory = directory
        self._fd = fd
        self._limit = limit_bytes
        self.name = name
        self.size_bytes = 0

    @property
    def full(self) -> bool:
        return self.size_bytes >= self._limit

    def append(self, data: bytes) -> None:
        """Write what still fits. Raises OSError when the disk or the session's share of it is full."""
        view = memoryview(data)[: self._limit - self.size_bytes]
        self._directory.reserve(self.name, len(view))
        while view:
            written = os.write(self._fd, view)
            self.size_bytes += written
            view = view[written:]

    def close(self) -> None:
        os.close(self._fd)
        self._directory.closed(self.name)


class SpillDirectory:
    """The spill files of one session, `.cli-mcp/NUMBER.STREAM`; the oldest go first."""

    def __init__(
        self, workspace: ConfinedDirectory, owner: tuple[int, int] | None, limits: SpillLimits
    ) -> None:
        self._workspace = workspace
        self._owner = owner
        self._limits = limits
        self._lock = threading.Lock()
        self._sizes: OrderedDict[str, int] = OrderedDict()  # oldest first
        self._open: set[str] = set()

    def adopt(self) -> int:
        """Take over what an earlier shell left in the workspace. Returns the highest number among it."""
        try:
            directory = self._workspace.open(DIRECTORY, os.O_RDONLY | os.O_DIRECTORY)
        except OSError:
            return 0  # usually there is none yet; anything else shows when a file is to be made
        found = []
        try:
            with os.scandir(directory) as entries:
                for entry in islice(entries, _LISTED_NAMES):
                    if match := _NAME.fullmatch(entry.name):
                        found.append((int(match[1]), entry.name, entry.stat(follow_symlinks=False).st_size))
        except FileNotFoundError:
            pass  # removed while it was listed
        finally:
            os.close(directory)
        with self._lock:
            self._sizes.update((name, size) for _, name, size in sorted(found))
        return max((number for number, _, _ in found), default=0)

    def create(self, name: str, limit_bytes: int) -> SpillFile:
        """A new file. Raises OSError, also when the sandbox put something in the way."""
        self._evict(self._limits.files - 1, self._limits.total_bytes)
        with self._workspace.subdirectory(DIRECTORY) as directory:
            if self._owner is not None:
                os.fchown(directory.fileno(), *self._owner)
            fd = directory.create(name)
        if self._owner is not None:
            os.fchown(fd, *self._owner)
        with self._lock:
            self._sizes[name] = 0
            self._open.add(name)
        return SpillFile(self, name, fd, limit_bytes)

    def reserve(self, name: str, size_bytes: int) -> None:
        """Let a file grow. Raises OSError when others that are being written leave no room."""
        self._evict(self._limits.files, self._limits.total_bytes - size_bytes)
        with self._lock:
            self._sizes[name] += size_bytes

    def closed(self, name: str) -> None:
        with self._lock:
            self._open.discard(name)

    def _evict(self, files: int, total_bytes: int) -> None:
        """Remove the oldest until so much is left at most. Files that are being written stay."""
        while True:
            with self._lock:
                if len(self._sizes) <= files and sum(self._sizes.values()) <= total_bytes:
                    return
                oldest = next((name for name in self._sizes if name not in self._open), None)
                if oldest is None:
                    raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))
                del self._sizes[oldest]
            try:
                self._workspace.unlink(f"{DIRECTORY}/{oldest}")
            except FileNotFoundError:
                pass  # the sandbox removed it
            except OSError as error:
                # The sandbox replaced the directory: then the space is its own affair.
                _log.info("cannot remove an old output file: %s", error.strerror)
