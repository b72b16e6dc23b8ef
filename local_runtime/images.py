"""A file system of the limit's size for each workspace, so that the kernel refuses what goes beyond it.

An image is a sparse file with ext4 in it, which takes of the disk what its files do and gives back what is
deleted. A loop device shows it to the kernel; the sandbox sees neither. The mounts are in the mount namespace
of the server: `nsenter --mount --target PID`, or /proc/PID/root, shows them to an administrator.
"""

import errno
import fcntl
import logging
import os
import shutil
import stat
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from local_runtime import loop_devices
from local_runtime.host_disk import Usage

log = logging.getLogger(__name__)

MEBIBYTE = 1 << 20
# The size of an image in which a file system has room for `limit_bytes` of files: the tables take one inode
# of 256 bytes for each 4096 bytes, the kernel holds back a 50th up to 16 MiB (ext4_calculate_resv_clusters).
_BYTES_PER_INODE = 4096
_INODE_BYTES = 256
_HELD_BACK_SHARE, _HELD_BACK_BYTES = 40, 20 * MEBIBYTE
_KERNEL_HOLDS_BACK_SHARE, _KERNEL_HOLDS_BACK_BLOCKS = 50, 4096
_JOURNAL_MEBIBYTES = 4
_REST_BYTES = 8 * MEBIBYTE
# The journal keeps the file system whole when the machine stops, and in a new file its zeros need not be
# written. Without a resize inode all changes of size are made while it is not mounted.
_MAKE = (
    *("-q", "-F", "-t", "ext4", "-m", "0", "-b", str(loop_devices.BLOCK_BYTES), "-I", str(_INODE_BYTES)),
    *("-i", str(_BYTES_PER_INODE), "-J", f"size={_JOURNAL_MEBIBYTES}", "-O", "^resize_inode"),
    *("-E", "nodiscard,lazy_itable_init=1,lazy_journal_init=1"),
)
# The tables of a sparse file are zeros. A file system with errors takes no more writes.
_MOUNT_OPTIONS = "discard,noinit_itable,errors=remount-ro"
_TOOLS_SECONDS = 300.0
_TOOLS_PATH = f"{os.defpath}:/usr/local/sbin:/usr/sbin:/sbin"
# ext4's superblock, https://docs.kernel.org/filesystems/ext4/super.html
_STATE_OFFSET = 1024 + 0x3A
_STATE_ERRORS = 2
# Exit statuses of e2fsck(8) up to this one: nothing is wrong any more.
_CORRECTED = 2
_TEMPLATE = ".template"
_PROBE = ".probe"
_COPY_BYTES = MEBIBYTE
_STAT_BLOCK_BYTES = 512  # st_blocks, stat(2)


class NoImages(Exception):
    """Workspaces cannot have file systems of their own here; the text says why."""


@dataclass(frozen=True, slots=True)
class Images:
    """The images of a state directory, by the names of their workspaces. The methods block, on the disk too,
    and raise OSError."""

    directory: Path
    size_bytes: int

    @classmethod
    def prepare(cls, directory: Path, limit_bytes: int) -> "Images":
        """Make a template and try it. Raises NoImages, and OSError when the directory cannot be used."""
        directory.mkdir(mode=0o700, exist_ok=True)
        images = cls(directory, image_bytes(limit_bytes))
        for name in (_TEMPLATE, _PROBE):
            images._path(name).unlink(missing_ok=True)
        try:
            images._make_template()
            images._try_out()
        except OSError as error:
            raise NoImages(f"{error.strerror or error}") from None
        finally:
            images._path(_PROBE).unlink(missing_ok=True)
        return images

    def has(self, name: str) -> bool:
        return has_image(self.directory, name)

    def create(self, name: str, directory: Path) -> None:
        """A new file system, mounted at `directory`. After an error nothing is left."""
        image = self._path(name)
        try:
            _copy_sparse(self._path(_TEMPLATE), image)
            with _opened(image) as fd:
                _lock(fd, image)
                _mount(fd, directory, new=True)
            try:
                (directory / "lost+found").rmdir()
                directory.chmod(0o700)
            except OSError:
                loop_devices.unmount(directory)
                raise
        except OSError:
            image.unlink(missing_ok=True)
            raise

    def mount(self, name: str, directory: Path) -> None:
        """One that is there: repaired if need be, and of the size of now, or as near as its files permit."""
        image = self._path(name)
        with _opened(image) as fd:
            if not loop_devices.is_attached(fd):
                # What an earlier server started to repair may go on without it.
                _lock(fd, image)
                if struct.unpack("<H", os.pread(fd, 2, _STATE_OFFSET))[0] & _STATE_ERRORS:
                    log.warning("%s has errors, which are being repaired", image)
                    _repair(image, fd)
                self._fit(image, fd)
            _mount(fd, directory, new=False)

    def move(self, name: str, directory: Path, to_name: str, to_directory: Path) -> None:
        """Another name and another place; what uses it does not notice."""
        self._path(name).rename(self._path(to_name))
        to_directory.mkdir(mode=0o700)
        owner = directory.lstat()
        os.chown(to_directory, owner.st_uid, owner.st_gid)
        loop_devices.move_mount(directory, to_directory)
        directory.rmdir()

    def remove(self, name: str) -> None:
        self._path(name).unlink(missing_ok=True)

    def _path(self, name: str) -> Path:
        return self.directory / name

    def _make_template(self) -> None:
        template = self._path(_TEMPLATE)
        fd = os.open(template, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(fd, self.size_bytes)
        finally:
            os.close(fd)
        _run("mkfs.ext4", *_MAKE, str(template))

    def _try_out(self) -> None:
        """Mount a copy of the template beside it."""
        place = self.directory / f"{_PROBE}.mount"
        place.mkdir(exist_ok=True)
        try:
            self.create(_PROBE, place)
            loop_devices.unmount(place)
        finally:
            place.rmdir()

    def _fit(self, image: Path, fd: int) -> None:
        """Give an image the size of now, or the least that its files need."""
        size = os.fstat(fd).st_size
        if size == self.size_bytes:
            return
        _repair(image, fd)
        if size < self.size_bytes:
            os.ftruncate(fd, self.size_bytes)
        try:
            _run("resize2fs", str(image), f"{self.size_bytes // 1024}K", keeping=fd)
        except OSError as error:
            log.warning("%s does not shrink to the limit of now: %s", image, error.strerror)
            _run("resize2fs", "-M", str(image), keeping=fd)
        else:
            os.ftruncate(fd, self.size_bytes)


@dataclass(frozen=True, slots=True)
class Room:
    """What a file system still has room for, and how many files it can hold."""

    bytes: int
    files: int
    all_files: int


class MountedImage:
    """A workspace's file system in use: its image, and an open directory of it, which stays the caller's."""

    def __init__(self, directory: int, image: Path) -> None:
        self._fd = directory
        self._image = os.open(image, os.O_PATH | os.O_CLOEXEC | os.O_NOFOLLOW)
        device = os.minor(os.fstat(directory).st_dev)
        self._reserve = Path(f"/sys/fs/ext4/loop{device}/reserved_clusters")
        self._bounded = os.access(self._reserve, os.W_OK)

    def close(self) -> None:
        os.close(self._image)

    def room(self) -> Room:
        status = os.fstatvfs(self._fd)
        return Room(status.f_bavail * status.f_frsize, status.f_favail, status.f_files)

    def usage(self) -> Usage:
        """Of the host's disk. What waits in memory to be written counts in the file system already."""
        status = os.fstatvfs(self._fd)
        used = (status.f_blocks - status.f_bfree) * status.f_frsize
        tables = (status.f_files - status.f_ffree) * _INODE_BYTES
        allocated = os.fstat(self._image).st_blocks * _STAT_BLOCK_BYTES
        room = status.f_bfree * status.f_frsize if self._bounded else None
        return Usage(used + tables, max(0, used - allocated), room)

    def allow(self, growth_bytes: int | None) -> None:
        """Let its files grow by so much and no more; None for all that there is room for.

        What the file system holds back for itself nobody gets, root neither, at once
        (https://docs.kernel.org/admin-guide/ext4.html, reserved_clusters).
        """
        if not self._bounded:
            return
        status = os.fstatvfs(self._fd)
        most = status.f_blocks - 1
        reserve = min(status.f_blocks // _KERNEL_HOLDS_BACK_SHARE, _KERNEL_HOLDS_BACK_BLOCKS)
        if growth_bytes is not None:
            allowed = growth_bytes // status.f_frsize
            # With nothing allowed not even what is freed may be taken again.
            reserve = max(reserve, status.f_bfree - allowed if allowed else most)
        self._reserve.write_text(str(min(reserve, most)))


def image_bytes(limit_bytes: int) -> int:
    """How large an image for `limit_bytes` of files is."""
    held_back = min(limit_bytes // _HELD_BACK_SHARE, _HELD_BACK_BYTES)
    inner = limit_bytes + held_back + _REST_BYTES
    whole = inner * _BYTES_PER_INODE // (_BYTES_PER_INODE - _INODE_BYTES)
    return -(-whole // MEBIBYTE) * MEBIBYTE


def _mount(image: int, directory: Path, *, new: bool) -> None:
    with loop_devices.attached(image, new=new) as device:
        loop_devices.mount(device, directory, "ext4", _MOUNT_OPTIONS)


def has_image(directory: Path, name: str) -> bool:
    """Whether a regular file of that name is in the directory of images."""
    try:
        return stat.S_ISREG((directory / name).lstat().st_mode)
    except FileNotFoundError:
        return False


@contextmanager
def _opened(image: Path) -> Iterator[int]:
    fd = os.open(image, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        yield fd
    finally:
        os.close(fd)


def _lock(fd: int, image: Path) -> None:
    """For as long as the file is open here, by a program of ours or by a loop device. Raises OSError."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise OSError(errno.EBUSY, f"{image} is still in use by an earlier server; try again") from None


def _repair(image: Path, fd: int) -> None:
    """Raises OSError when the file system cannot be made whole."""
    for choice in ("-p", "-y"):
        try:
            _run("e2fsck", "-f", choice, str(image), accepted=_CORRECTED, keeping=fd)
        except OSError as error:
            failure = error
        else:
            return
    raise failure


def _run(program: str, *arguments: str, accepted: int = 0, keeping: int | None = None) -> None:
    """Raises OSError, with what the program said, when its exit status is above `accepted`. It holds
    `keeping` open, so that a lock on it lasts."""
    found = shutil.which(program, path=_TOOLS_PATH)
    if found is None:
        raise OSError(errno.ENOENT, f"{program} is not installed (package e2fsprogs)")
    try:
        done = subprocess.run(
            [found, *arguments],
            pass_fds=() if keeping is None else (keeping,),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_TOOLS_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise OSError(errno.ETIMEDOUT, f"{program} takes longer than {_TOOLS_SECONDS:g} s") from None
    if not 0 <= done.returncode <= accepted:
        said = " ".join(done.stdout.decode(errors="replace").split())
        raise OSError(errno.EIO, f"{program}: {said or f'exit status {done.returncode}'}")


def _copy_sparse(source: Path, target: Path) -> None:
    """What was never written of `source` takes no space in `target`, a new file."""
    reading = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
    try:
        writing = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            end = os.fstat(reading).st_size
            os.ftruncate(writing, end)
            for start, stop in _written_parts(reading, end):
                position = start
                while position < stop:
                    data = os.pread(reading, min(_COPY_BYTES, stop - position), position)
                    position += os.pwrite(writing, data, position)
        finally:
            os.close(writing)
    finally:
        os.close(reading)


def _written_parts(fd: int, end: int) -> list[tuple[int, int]]:
    parts: list[tuple[int, int]] = []
    position = 0
    while position < end:
        try:
            start = os.lseek(fd, position, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # nothing but a hole is left
                break
            raise
        position = os.lseek(fd, start, os.SEEK_HOLE)
        parts.append((start, position))
    return parts
