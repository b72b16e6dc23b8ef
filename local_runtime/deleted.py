"""The disk space of files that have no name any more and are still in use by a sandbox's processes.

A tree does not show them, and they take space until the last process lets go of them. Not found are those
that are in no descriptor table of a process and mapped by none, such as descriptors under way in a socket.
"""

import ctypes
import errno
import os
import re
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

_STAT_BLOCK_BYTES = 512  # st_blocks, stat(2)
_libc = ctypes.CDLL(None, use_errno=True)
_KCMP = {"x86_64": 312, "aarch64": 272}.get(os.uname().machine, -1)  # unknown: no two tables are the same
_KCMP_FILES = 2
_PIDFD_GETFD = 438
_TABLE_SIZE = re.compile(r"^FDSize:\t([0-9]+)$", re.MULTILINE)
_DELETED = " (deleted)\n"  # proc_pid_maps(5)


def deleted_bytes(pids: Iterable[int], device: int) -> int:
    """What files without a name on the file system `device` take, each counted once.

    Of a file that is mapped and not open the size of the mappings is counted. A process that ends meanwhile,
    or that this user may not look into, has none.
    """
    opened: dict[int, int] = {}
    mapped: dict[int, int] = {}
    for pid in pids:
        try:
            threads = _threads(pid)
            for thread in threads:
                opened.update(_open_files(pid, thread, device))
            for inode, size_bytes in _mappings(pid, threads, device):
                mapped[inode] = mapped.get(inode, 0) + size_bytes
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
    return sum((mapped | opened).values())


def _threads(pid: int) -> list[int]:
    """Of a process, one thread for each table of descriptors. The first may have ended before the others, and
    then it has none; each may have one of its own (clone(2) without CLONE_FILES)."""
    found: list[int] = []
    for thread in (int(path.name) for path in Path(f"/proc/{pid}/task").iterdir()):
        if not found or _libc.syscall(_KCMP, found[-1], thread, _KCMP_FILES, 0, 0) != 0:
            found.append(thread)
    return found


def _open_files(pid: int, thread: int, device: int) -> Iterator[tuple[int, int]]:
    try:
        descriptors = os.scandir(f"/proc/{pid}/task/{thread}/fd")
    except PermissionError:
        yield from _counted(_taken(pid), device)
        return
    with descriptors:
        # The status of what is open, without opening it.
        yield from _counted((_stat(descriptor) for descriptor in descriptors), device)


def _counted(found: Iterable[os.stat_result | None], device: int) -> Iterator[tuple[int, int]]:
    for status in found:
        if status is None or status.st_dev != device or status.st_nlink > 0:
            continue
        if stat.S_ISREG(status.st_mode):
            yield status.st_ino, status.st_blocks * _STAT_BLOCK_BYTES


def _stat(descriptor: "os.DirEntry[str]") -> os.stat_result | None:
    try:
        return descriptor.stat()
    except FileNotFoundError:
        return None  # closed since it was listed


def _taken(pid: int) -> Iterator[os.stat_result]:
    """Of a shell: it may not be looked into by others of its user, and so its descriptors are not listed to a
    server that is not the superuser. To the owner of its user namespace the kernel gives them one by one
    (pidfd_getfd(2)). Raises PermissionError."""
    size = _TABLE_SIZE.search(Path(f"/proc/{pid}/status").read_text(errors="replace"))
    pidfd = os.pidfd_open(pid)
    try:
        for number in range(int(size[1]) if size is not None else 0):
            taken = _libc.syscall(_PIDFD_GETFD, pidfd, number, 0)
            if taken >= 0:
                yield os.fstat(taken)
                os.close(taken)
            elif ctypes.get_errno() == errno.EPERM:
                raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))
    finally:
        os.close(pidfd)


def _mappings(pid: int, threads: Iterable[int], device: int) -> list[tuple[int, int]]:
    """Threads share their memory; those that have ended show none."""
    for thread in threads:
        with Path(f"/proc/{pid}/task/{thread}/maps").open(errors="replace", newline="\n") as lines:
            found = [mapping for line in lines if (mapping := _mapping(line, device))]
        if found:
            return found
    return []


def _mapping(line: str, device: int) -> tuple[int, int] | None:
    if not line.endswith(_DELETED):
        return None
    addresses, _, _, numbers, inode = line.split(maxsplit=5)[:5]
    major, minor = (int(number, 16) for number in numbers.split(":"))
    if os.makedev(major, minor) != device:
        return None
    start, end = (int(address, 16) for address in addresses.split("-"))
    return int(inode), end - start
