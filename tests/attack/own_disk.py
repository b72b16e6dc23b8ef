"""A file system for one test alone, so that what a session takes can be told from what others do."""

import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

MEBIBYTE = 1 << 20
_SAMPLE_SECONDS = 0.02


class OwnDisk:
    """Mounted at `path`. `taken_bytes` and `least_free_bytes` are the worst between `start` and `stop`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.taken_bytes = 0
        self.least_free_bytes = 1 << 62
        self._before_bytes = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def start(self) -> None:
        self._before_bytes = self.free_bytes()
        self._thread.start()

    def stop(self) -> None:
        """What waits in memory to be written counts, too."""
        os.sync()
        self._stop.set()
        self._thread.join()
        self._look()

    def free_bytes(self) -> int:
        status = os.statvfs(self.path)
        return status.f_bavail * status.f_frsize

    def _sample(self) -> None:
        while not self._stop.wait(_SAMPLE_SECONDS):
            self._look()

    def _look(self) -> None:
        free = self.free_bytes()
        self.least_free_bytes = min(self.least_free_bytes, free)
        self.taken_bytes = max(self.taken_bytes, self._before_bytes - free)

    def __str__(self) -> str:
        taken, left = self.taken_bytes / MEBIBYTE, self.least_free_bytes / MEBIBYTE
        return f"taken at most {taken:,.0f} MiB, free at least {left:,.0f} MiB"


@contextmanager
def own_disk(directory: Path, size_bytes: int, owner: int | None) -> Iterator[OwnDisk]:
    """Of `size_bytes`, in the file `disk` of the directory; skips the test where it cannot be had."""
    if os.geteuid() != 0:
        pytest.skip("takes root to make a disk")
    file, path = directory / "disk", directory / "mounted"
    path.mkdir()
    with file.open("wb") as made:
        made.truncate(size_bytes)
    # None of it is kept for root.
    subprocess.run(["mkfs.ext4", "-q", "-m", "0", "-E", "lazy_itable_init=1", file], check=True)
    mounted = subprocess.run(["mount", "-o", "loop,noinit_itable", file, path], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip(f"no loop devices here: {mounted.stderr.decode()}")
    try:
        path.chmod(0o711)
        if owner is not None:
            os.chown(path, owner, owner)
        yield OwnDisk(path)
    finally:
        subprocess.run(["umount", "--lazy", path], check=True)
        file.unlink()
