"""Copies the agent's files into a directory that another container mounts: the work of an init container."""

import os
import shutil
from pathlib import Path

HOME = Path("/opt/cli-mcp")
_PARTIAL = ".partial"
_READABLE, _EXECUTABLE = 0o644, 0o755


def install(source: Path, destination: Path) -> None:
    """Have all that is in `source` in the existing directory `destination`, readable for every user.

    May be called again, also after it was interrupted: what has its final name is whole. Raises OSError.
    """
    partial = destination / _PARTIAL
    _remove(partial)
    # Without owners and times: the destination may belong to any user, and its files to this process's.
    shutil.copytree(source, partial, symlinks=True, copy_function=_copy)
    for directory, _, _ in os.walk(partial):
        Path(directory).chmod(_EXECUTABLE)
    for entry in partial.iterdir():
        final = destination / entry.name
        _remove(final)
        entry.rename(final)
    partial.rmdir()


def _copy(source: str, destination: str) -> None:
    """A file with its content, and of its mode whether it can be executed; whatever the umask is."""
    shutil.copyfile(source, destination)
    Path(destination).chmod(_EXECUTABLE if os.access(source, os.X_OK) else _READABLE)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
