"""openat2(2), which Python lacks: opening a path with limits on how it is resolved."""

import ctypes
import errno
import os

NO_XDEV = 0x01
NO_MAGICLINKS = 0x02
NO_SYMLINKS = 0x04
BENEATH = 0x08
# A kernel, or a seccomp filter, that does not know the call answers with one of these.
MISSING = frozenset({errno.ENOSYS, errno.EPERM})
_SYS_OPENAT2 = 437  # the same number on every architecture since Linux 5.6

_libc = ctypes.CDLL(None, use_errno=True)


class _OpenHow(ctypes.Structure):
    """struct open_how, openat2(2)."""

    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


def openat2(directory: int, path: str, flags: int, mode: int, resolve: int) -> int:
    """A descriptor for `path` below `directory`. Raises OSError, with a number of MISSING also where there is
    no such call."""
    how = _OpenHow(flags, mode if flags & os.O_CREAT else 0, resolve)
    while True:
        fd: int = _libc.syscall(
            ctypes.c_long(_SYS_OPENAT2),
            ctypes.c_int(directory),
            ctypes.c_char_p(os.fsencode(path)),
            ctypes.byref(how),
            ctypes.c_size_t(ctypes.sizeof(how)),
        )
        if fd >= 0:
            return fd
        code = ctypes.get_errno()
        # RESOLVE_BENEATH gives EAGAIN when a rename raced with it, openat2(2): the caller is to try again.
        if code not in (errno.EAGAIN, errno.EINTR):
            raise OSError(code, os.strerror(code), path)
