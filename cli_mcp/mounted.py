"""Files of a mounted Secret or ConfigMap, which change under a running server."""

import os
from collections.abc import Iterable
from pathlib import Path

Fingerprint = tuple[object, ...]


def fingerprint(files: Iterable[Path]) -> Fingerprint:
    """Something that is another when a file changed; the kubelet swaps a symbolic link of the directory."""
    return tuple(map(_state, files))


def _state(file: Path) -> tuple[object, ...] | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return os.path.realpath(file), found.st_ino, found.st_mtime_ns, found.st_size
