"""Loop devices and mounts, as the kernel has them: loop(4), mount(2), mount_namespaces(7). Takes root.

A device detaches itself when its last mount is gone, so that nothing is left of a process that is killed as
long as its mounts are in a mount namespace of its own.
"""

import ctypes
import errno
import fcntl
import os
import stat
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_libc = ctypes.CDLL(None, use_errno=True)

_CLONE_NEWNS = 0x20000
_MS_NOSUID, _MS_NODEV, _MS_MOVE, _MS_REC, _MS_SLAVE = 2, 4, 8192, 16384, 1 << 19  # linux/mount.h
_MNT_DETACH = 2
# linux/loop.h
_LOOP_CTL_GET_FREE = 0x4C82
_LOOP_CONFIGURE = 0x4C0A
_LOOP_GET_STATUS64 = 0x4C05
_AUTOCLEAR, _DIRECT_IO = 4, 16
# struct loop_info64: device, inode, rdevice, offset, sizelimit; number, two of encryption, flags; names, key.
_INFO = struct.Struct("=5Q4I64s64s32s2Q")
_INFO_DEVICE, _INFO_INODE, _INFO_FLAGS = 0, 1, 8
# struct loop_config: the file, the block size, loop_info64, reserved.
_CONFIG_HEAD, _CONFIG_RESERVED_BYTES = struct.Struct("=2I"), 64
BLOCK_BYTES = 4096
# Between asking for a free device and taking it somebody else may take it.
_ATTEMPTS = 50
_SYS_BLOCK = Path("/sys/block")


def use_own_mount_namespace() -> None:
    """What this process mounts from now on nobody else sees, and it ends with the process; what others mount
    is still seen here. Before the first thread, which would stay outside. Raises OSError."""
    _check(_libc.unshare(_CLONE_NEWNS), "make a mount namespace")
    _mount(None, "/", None, _MS_REC | _MS_SLAVE, None)


@contextmanager
def attached(image: int, *, new: bool) -> Iterator[str]:
    """The path of a block device that shows the open file `image`; unless that is `new`, the one that does
    already if any. It is attached for as long as the block runs or it is mounted. Raises OSError."""
    device = None if new else _find(image)
    if device is None:
        device = _attach(image)
    try:
        yield f"/dev/loop{os.minor(os.fstat(device).st_rdev)}"
    finally:
        os.close(device)


def is_attached(image: int) -> bool:
    """Whether some device shows the open file `image`."""
    device = _find(image)
    if device is None:
        return False
    os.close(device)
    return True


def mount(device: str, directory: Path, kind: str, options: str) -> None:
    """Without devices and without set-uid programs. Raises OSError."""
    _mount(device, str(directory), kind, _MS_NOSUID | _MS_NODEV, options)


def move_mount(directory: Path, to: Path) -> None:
    """What uses the mount does not notice. Raises OSError."""
    _mount(str(directory), str(to), None, _MS_MOVE, None)


def unmount(directory: Path) -> None:
    """At once for whoever looks for the directory; the kernel keeps the rest until nothing uses it. Blocks
    while it is written to the disk. Raises OSError."""
    _check(_libc.umount2(os.fsencode(directory), _MNT_DETACH), f"unmount {directory}")


def _attach(image: int) -> int:
    flags = _AUTOCLEAR | _DIRECT_IO  # without direct I/O memory would hold everything twice
    information = _INFO.pack(0, 0, 0, 0, 0, 0, 0, 0, flags, b"", b"", b"", 0, 0)
    config = _CONFIG_HEAD.pack(image, BLOCK_BYTES) + information + bytes(_CONFIG_RESERVED_BYTES)
    control = os.open("/dev/loop-control", os.O_RDWR | os.O_CLOEXEC)
    try:
        for _ in range(_ATTEMPTS):
            number = fcntl.ioctl(control, _LOOP_CTL_GET_FREE)
            device = os.open(f"/dev/loop{number}", os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.ioctl(device, _LOOP_CONFIGURE, config)
            except OSError as error:
                os.close(device)
                if error.errno != errno.EBUSY:
                    raise
            else:
                return device
    finally:
        os.close(control)
    raise OSError(errno.EBUSY, "no loop device is free")


def _find(image: int) -> int | None:
    """A descriptor of the device that shows the file; while it is open the device stays."""
    status = os.fstat(image)
    for path in _SYS_BLOCK.glob("loop*/loop"):
        try:
            device = os.open(f"/dev/{path.parent.name}", os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            information = _INFO.unpack(fcntl.ioctl(device, _LOOP_GET_STATUS64, bytes(_INFO.size)))
        except OSError:  # it was detached meanwhile
            os.close(device)
            continue
        found = information[_INFO_DEVICE], information[_INFO_INODE]
        if found == (_encoded(status.st_dev), status.st_ino):
            return device
        os.close(device)
    return None


def _encoded(device: int) -> int:
    """huge_encode_dev() of the kernel, which is what loop_info64 has."""
    major, minor = os.major(device), os.minor(device)
    return (minor & 0xFF) | (major << 8) | ((minor & ~0xFF) << 12)


def _mount(source: str | None, target: str, kind: str | None, flags: int, options: str | None) -> None:
    words = [None if word is None else os.fsencode(word) for word in (source, target, kind, options)]
    result = _libc.mount(words[0], words[1], words[2], ctypes.c_ulong(flags), words[3])
    _check(result, f"mount {source or ''} at {target}")


def _check(result: int, what: str) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"cannot {what}: {os.strerror(code)}")


def is_mounted(directory: Path) -> bool:
    """Whether the directory is another file system than the one it lies in."""
    status = directory.lstat()
    return stat.S_ISDIR(status.st_mode) and status.st_dev != directory.parent.lstat().st_dev
