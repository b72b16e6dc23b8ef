"""Whether the kernel killed processes of this container for want of memory, as its cgroup counts them."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_MEBIBYTE = 1 << 20
# Larger is no limit: version 1 writes the largest multiple of a page instead of "max".
_NO_LIMIT_BYTES = 1 << 60


@dataclass(frozen=True, slots=True)
class MemoryFiles:
    """Of a memory cgroup: `counters` has a line `oom_kill NUMBER`, `limit` the bytes, or "max"."""

    counters: Path
    limit: Path


# Version 2 and version 1, as containers see them; cgroups(7).
CONTAINER_FILES = (
    MemoryFiles(Path("/sys/fs/cgroup/memory.events"), Path("/sys/fs/cgroup/memory.max")),
    MemoryFiles(
        Path("/sys/fs/cgroup/memory/memory.oom_control"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes")
    ),
)


class MemoryKills:
    """Counts from its making on. Where the kernel shows no counter there are none."""

    def __init__(self, files: Sequence[MemoryFiles] = CONTAINER_FILES) -> None:
        self._files = next((each for each in files if each.counters.exists()), None)
        self._known = self._count()

    def since_last_time(self) -> bool:
        """Whether a process was killed since this was asked last."""
        known, self._known = self._known, self._count()
        return self._known > known

    def limit_mib(self) -> int | None:
        """The limit of the container, None when it has none that is known."""
        text = _read(self._files.limit) if self._files is not None else ""
        limit_bytes = int(text) if text.strip().isdecimal() else _NO_LIMIT_BYTES
        return limit_bytes // _MEBIBYTE if limit_bytes < _NO_LIMIT_BYTES else None

    def _count(self) -> int:
        text = _read(self._files.counters) if self._files is not None else ""
        lines = (line.split() for line in text.splitlines())
        return sum(int(line[1]) for line in lines if line[:1] == ["oom_kill"])


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""  # the kernel, or the container's runtime, does not show it
