"""The disk space of files that have no name any more and are still in use by a sandbox's processes.

A tree does not show them, and they take space until the last process lets go of them. What is in no
descriptor table and mapped by no process, since its descriptor is under way in a socket, cannot be found;
that there is such a descriptor can (Linux 5.6 and later).
"""

import ctypes
import errno
import os
import re
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from local_runtime.trees import GiveUp

_libc = ctypes.CDLL(None, use_errno=True)
_PIDFD_GETFD = 438
_TABLE_SIZE = re.compile(r"^FDSize:\t([0-9]+)$", re.MULTILINE)
_STAT_BLOCK_BYTES = 512  # st_blocks, stat(2)
_DELETED = " (deleted)\n"  # proc_pid_maps(5)
_UNDER_WAY = "scm_fds:"  # fdinfo of a unix socket
_LOOKS_PER_QUESTION = 256


@dataclass(frozen=True, slots=True)
class Unnamed:
    """What files without a name take. `complete` is false when it was given up, `hidden` true when there are
    processes that may not be looked into."""

    used_bytes: int
    descriptors_under_way: int
    complete: bool
    hidden: bool = False


def unnamed(pids: Iterable[int], device: int, give_up: GiveUp = lambda: False) -> Unnamed:
    """What files without a name on the file system `device` take, each counted once.

    Of a file that is mapped and not open the size of the mappings is counted. A process that ends meanwhile
    has none. Threads can have descriptors of their own, and outlive the first one of their process.
    """
    looking = _Look(device, give_up)
    complete = True
    try:
        for pid in pids:
            looking.at_process(pid)
    except _GivenUp:
        complete = False
    return Unnamed(
        sum((looking.mapped | looking.opened).values()),
        sum(looking.under_way.values()),
        complete,
        looking.hidden,
    )


class _GivenUp(Exception):
    pass


class _Look:
    def __init__(self, device: int, give_up: GiveUp) -> None:
        self.opened: dict[int, int] = {}
        self.mapped: dict[int, int] = {}
        self.under_way: dict[int, int] = {}
        """By socket, which threads share, as they share files."""
        self.hidden = False
        self._device = device
        self._give_up = give_up
        self._looks = 0

    def at_process(self, pid: int) -> None:
        """Its threads share their mappings, but the first one may have lost them by having ended."""
        try:
            threads = os.listdir(f"/proc/{pid}/task")  # noqa: PTH208 - names, thousands of them
            for thread in threads:
                self._at_descriptors(pid, f"/proc/{pid}/task/{thread}")
            if threads:
                self._at_mappings(f"/proc/{pid}/task/{threads[-1]}")
        except (FileNotFoundError, ProcessLookupError):
            return
        except PermissionError:
            self.hidden = True

    def _count_look(self) -> None:
        self._looks += 1
        if self._looks % _LOOKS_PER_QUESTION == 0 and self._give_up():
            raise _GivenUp

    def _at_descriptors(self, pid: int, directory: str) -> None:
        try:
            with os.scandir(f"{directory}/fd") as descriptors:
                for descriptor in descriptors:
                    self._at_descriptor(directory, descriptor)
        except PermissionError:
            for status in _taken(pid):
                self._count_look()
                self._count_file(status)
        except (FileNotFoundError, ProcessLookupError):
            return  # this thread has ended

    def _at_descriptor(self, directory: str, descriptor: "os.DirEntry[str]") -> None:
        self._count_look()
        try:
            status = descriptor.stat()  # of what is open, without opening it
            self._count_file(status)
            if stat.S_ISSOCK(status.st_mode):
                self.under_way[status.st_ino] = _under_way(Path(f"{directory}/fdinfo/{descriptor.name}"))
        except FileNotFoundError:
            return  # closed since it was listed

    def _count_file(self, status: os.stat_result) -> None:
        if status.st_dev == self._device and status.st_nlink == 0 and stat.S_ISREG(status.st_mode):
            self.opened[status.st_ino] = status.st_blocks * _STAT_BLOCK_BYTES

    def _at_mappings(self, directory: str) -> None:
        for inode, size_bytes in _mappings(Path(f"{directory}/maps"), self._device):
            self._count_look()
            self.mapped[inode] = self.mapped.get(inode, 0) + size_bytes


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


def _under_way(fdinfo: Path) -> int:
    for line in fdinfo.read_text().splitlines():
        if line.startswith(_UNDER_WAY):
            return int(line.removeprefix(_UNDER_WAY))
    return 0


def _mappings(maps: Path, device: int) -> Iterator[tuple[int, int]]:
    with maps.open(errors="replace", newline="\n") as lines:
        for line in lines:
            if not line.endswith(_DELETED):
                continue
            addresses, _, _, numbers, inode = line.split(maxsplit=5)[:5]
            major, minor = (int(number, 16) for number in numbers.split(":"))
            if os.makedev(major, minor) == device:
                start, end = (int(address, 16) for address in addresses.split("-"))
                yield int(inode), end - start
