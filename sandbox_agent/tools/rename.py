"""Renaming without replacing: renameat2(2) with RENAME_NOREPLACE, which Python lacks."""

import ctypes
import errno
import os
import stat

from sandbox_agent.tools.root import Place

_RENAME_NOREPLACE = 1
# A kernel or a file system (NFS) that cannot do it, and seccomp filters that do not know it.
_MISSING = frozenset({errno.ENOSYS, errno.EINVAL, errno.EPERM})

_renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)


def rename_to_free_name(source: Place, destination: Place) -> None:
    """Raises OSError; FileExistsError when anything has the destination's name, at any moment."""
    code = _rename_noreplace(source, destination)
    if code == 0:
        return
    if code not in _MISSING:
        raise OSError(code, os.strerror(code))
    if stat.S_ISDIR(os.stat(source.name, dir_fd=source.directory, follow_symlinks=False).st_mode):
        # A directory may replace an empty one, rename(2), and this one is ours.
        os.mkdir(destination.name, dir_fd=destination.directory)
        try:
            _rename(source, destination)
        except OSError:
            os.rmdir(destination.name, dir_fd=destination.directory)
            raise
    else:
        os.link(
            source.name,
            destination.name,
            src_dir_fd=source.directory,
            dst_dir_fd=destination.directory,
            follow_symlinks=False,
        )
        os.unlink(source.name, dir_fd=source.directory)


def replace(source: Place, name: str) -> None:
    """Give a file another name in its directory, of whatever has that name by now."""
    _rename(source, Place(source.directory, name))


def _rename(source: Place, destination: Place) -> None:
    os.rename(source.name, destination.name, src_dir_fd=source.directory, dst_dir_fd=destination.directory)


def _rename_noreplace(source: Place, destination: Place) -> int:
    """0, or what went wrong."""
    if _renameat2 is None:
        return errno.ENOSYS
    result = _renameat2(
        source.directory,
        os.fsencode(source.name),
        destination.directory,
        os.fsencode(destination.name),
        ctypes.c_uint(_RENAME_NOREPLACE),
    )
    return 0 if result == 0 else ctypes.get_errno()
