"""The disk space of files that have no name any more and are still in use by a sandbox's processes.

A tree does not show them, and they take space until the last process lets go of them. Not found are those
that are in no descriptor table of a process and mapped by none, such as descriptors under way in a socket.
"""

import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

_STAT_BLOCK_BYTES = 512  # st_blocks, stat(2)
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
            opened.update(_open_files(pid, device))
            for inode, size_bytes in _mappings(pid, device):
                mapped[inode] = mapped.get(inode, 0) + size_bytes
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
    return sum((mapped | opened).values())


def _open_files(pid: int, device: int) -> Iterator[tuple[int, int]]:
    with os.scandir(f"/proc/{pid}/fd") as descriptors:
        for descriptor in descriptors:
            try:
                status = descriptor.stat()  # of what is open, without opening it
            except FileNotFoundError:
                continue  # closed since it was listed
            if status.st_dev == device and status.st_nlink == 0 and stat.S_ISREG(status.st_mode):
                yield status.st_ino, status.st_blocks * _STAT_BLOCK_BYTES


def _mappings(pid: int, device: int) -> Iterator[tuple[int, int]]:
    with Path(f"/proc/{pid}/maps").open(errors="replace", newline="\n") as lines:
        for line in lines:
            if not line.endswith(_DELETED):
                continue
            addresses, _, _, numbers, inode = line.split(maxsplit=5)[:5]
            major, minor = (int(number, 16) for number in numbers.split(":"))
            if os.makedev(major, minor) == device:
                start, end = (int(address, 16) for address in addresses.split("-"))
                yield int(inode), end - start
