"""The state directory of one instance: its lock, token and workspaces, and how they get in and out of use.

    lock token url        of the server
    audit.jsonl           calls, and what the sandboxes asked the proxy for and what became of it
    proxy-ca/             the proxy's certificate authority with its key
    system/               files that every sandbox sees, and a copy of bubblewrap when it needs one
    sessions/<name>/      workspaces of sessions, kept until they are deleted
    pool/<name>/          workspaces that nobody has used yet
    images/<name>         the file system of a workspace that has one of its own, mounted on its directory
    exchange/<name>/      FIFOs between the server and one sandbox, where they cannot be in memory
    trash/                what is being deleted

The directories but `proxy-ca` and `images` may be passed through by other users, since as root the sandboxes
are other users; none of it may be listed by them, and a workspace is its owner's alone.
"""

import contextlib
import errno
import fcntl
import hashlib
import os
import re
import secrets
import shutil
import stat
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from cli_mcp.state_dir import TOKEN_FILE
from local_runtime import loop_devices, trees
from local_runtime.images import Images, NoImages, has_image

URL_FILE = "url"
_STDIO_PREFIX = "stdio-"
_MEMORY = Path("/dev/shm")  # noqa: S108 - see _exchange_of
_PASSAGE = 0o711
_TOKEN_BYTES = 32
_TOKEN_PATTERN = re.compile(r"[A-Za-z0-9_-]{43}")
_READABLE_NAME_CHARACTERS = 40
_DIGEST_CHARACTERS = 24


class StateInUse(Exception):
    """Another server holds the lock of the directory."""

    def __init__(self, directory: Path) -> None:
        try:
            url = (directory / URL_FILE).read_text().strip()
        except (OSError, UnicodeDecodeError):
            url = ""
        where = f", {url}" if url else ""
        super().__init__(
            f"{directory} is in use by another server{where}. Use that one, or end it first, or give this "
            "one another directory with --state-dir DIR; --stdio has one of its own each time"
        )
        self.directory = directory


def session_name(owner: str, session_id: str) -> str:
    """The file name of a session: different for every owner and id, and never more than a name."""
    digest = hashlib.sha256(f"{owner}\0{session_id}".encode(errors="surrogatepass")).hexdigest()
    readable = re.sub("[^a-z0-9-]", "", session_id)[:_READABLE_NAME_CHARACTERS].strip("-")
    return "-".join(filter(None, (readable, digest[:_DIGEST_CHARACTERS])))


@dataclass(frozen=True, slots=True)
class StateDirectory:
    """An instance's directory, locked by this process. The methods block for a few system calls each,
    `empty_trash` for as long as it takes."""

    path: Path
    lock_fd: int
    exchange: Path
    file_systems: Images | None = None
    """What gives new workspaces a file system of their own; None where there are none."""

    @classmethod
    def open(cls, path: Path) -> "StateDirectory":
        """Make what is missing and lock it until the process ends; what a killed server left is put into the
        trash. Raises StateInUse, and OSError."""
        path.mkdir(parents=True, exist_ok=True)
        path.chmod(_PASSAGE)
        lock_fd = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock_fd)
            raise StateInUse(path) from None
        state = cls(path.resolve(), lock_fd, _exchange_of(path.resolve()))
        for directory in (state.system, state.sessions, state.pool, state.trash):
            directory.mkdir(exist_ok=True)
            directory.chmod(_PASSAGE)
        for workspace in state.pool.iterdir():
            state.discard(workspace)
        state._remove_unclaimed_images()
        for exchange in state.exchange.iterdir():
            state.remove_exchange(exchange)
        return state

    @classmethod
    def open_for_stdio(cls, above: Path) -> "StateDirectory":
        """A directory that nobody else uses, with those beside it removed whose server is no more. Raises
        OSError."""
        above.mkdir(parents=True, exist_ok=True)
        for left in above.glob(f"{_STDIO_PREFIX}*"):
            try:
                cls.open(left).destroy()
            except (StateInUse, OSError):
                continue  # it is somebody's, or another one is just removing it
        return cls.open(above / f"{_STDIO_PREFIX}{uuid.uuid4().hex[:12]}")

    def destroy(self) -> None:
        """Close, with everything that is in it deleted; nothing may run in it any more. Raises OSError."""
        for workspace in (*self.sessions.iterdir(), *self.pool.iterdir()):
            self.discard(workspace)
        self.empty_trash()
        self.close()
        holder = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            trees.remove(holder, self.path.name)
        finally:
            os.close(holder)

    @property
    def url_file(self) -> Path:
        return self.path / URL_FILE

    @property
    def system(self) -> Path:
        return self.path / "system"

    @property
    def sessions(self) -> Path:
        return self.path / "sessions"

    @property
    def pool(self) -> Path:
        return self.path / "pool"

    @property
    def images(self) -> Path:
        return self.path / "images"

    @property
    def trash(self) -> Path:
        return self.path / "trash"

    @property
    def token_file(self) -> Path:
        return self.path / TOKEN_FILE

    @property
    def audit_file(self) -> Path:
        return self.path / "audit.jsonl"

    @property
    def proxy_ca(self) -> Path:
        return self.path / "proxy-ca"

    def close(self) -> None:
        self.url_file.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # of a sandbox that would not end; the next start removes it
            self.exchange.rmdir()
        os.close(self.lock_fd)

    def token(self) -> str:
        """The server's token; the one of an earlier start, so that what clients have stays right."""
        try:
            token = self.token_file.read_text().strip()
        except FileNotFoundError:
            token = ""
        if not _TOKEN_PATTERN.fullmatch(token):
            token = secrets.token_urlsafe(_TOKEN_BYTES)
        # Written again in any case: the client takes the token that was written last.
        self.token_file.unlink(missing_ok=True)
        fd = os.open(self.token_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(fd, "w") as file:
            file.write(f"{token}\n")
        return token

    def workspace_uids(self) -> set[int]:
        """Who owns a workspace, also one that moves meanwhile: from the pool to the sessions, never back."""
        uids = set()
        for directory in (self.pool, self.sessions):
            for path in directory.iterdir():
                with contextlib.suppress(FileNotFoundError):
                    uids.add(path.lstat().st_uid)
        return uids

    def with_file_systems(self, limit_bytes: int) -> "StateDirectory":
        """The same, giving each new workspace a file system with room for `limit_bytes`. Raises NoImages."""
        try:
            return replace(self, file_systems=Images.prepare(self.images, limit_bytes))
        except OSError as error:
            raise NoImages(f"{self.images}: {error.strerror}") from None

    def new_workspace(self) -> Path:
        """An empty workspace in the pool, this user's. Raises OSError; then there is none."""
        path = self.pool / uuid.uuid4().hex
        path.mkdir(mode=0o700)
        if self.file_systems is not None:
            try:
                self.file_systems.create(path.name, path)
            except OSError:
                path.rmdir()
                raise
        return path

    def image_of(self, workspace: Path) -> Path | None:
        """The file with the workspace's own file system, if it has one."""
        return self.images / workspace.name if has_image(self.images, workspace.name) else None

    def open_workspace(self, workspace: Path) -> None:
        """Make a kept workspace's files appear in its directory. Raises OSError."""
        if self.image_of(workspace) is None or loop_devices.is_mounted(workspace):
            return
        if self.file_systems is None:
            raise OSError(
                errno.ENODEV, f"{workspace} has a file system of its own, which cannot be mounted here"
            )
        self.file_systems.mount(workspace.name, workspace)

    def close_workspace(self, workspace: Path) -> None:
        """When nothing runs in it any more. Blocks until its files are on the disk."""
        if loop_devices.is_mounted(workspace):
            loop_devices.unmount(workspace)

    def kept_workspace(self, name: str) -> Path | None:
        """The workspace of a session that was here before."""
        path = self.sessions / name
        return path if path.is_dir() and not path.is_symlink() else None

    def claim_workspace(self, pooled: Path, name: str) -> Path:
        """Make a workspace of the pool that of a session; what runs in it does not notice."""
        path = self.sessions / name
        if self.file_systems is not None and self.image_of(pooled) is not None:
            self.file_systems.move(pooled.name, pooled, name, path)
        else:
            pooled.rename(path)
        return path

    def new_exchange(self) -> Path:
        path = self.exchange / uuid.uuid4().hex
        path.mkdir(mode=_PASSAGE)
        path.chmod(_PASSAGE)
        return path

    def remove_exchange(self, path: Path) -> None:
        """Delete the directory of a sandbox that has ended; sandboxes cannot make anything in it."""
        shutil.rmtree(path)

    def discard(self, path: Path) -> None:
        """Put a workspace, in which nothing runs any more, into the trash."""
        self.close_workspace(path)
        discarded = path.rename(self.trash / uuid.uuid4().hex)
        with contextlib.suppress(FileNotFoundError):
            (self.images / path.name).rename(discarded / "image")

    def _remove_unclaimed_images(self) -> None:
        """Those whose directory is in the trash, or was never made: an image changes its name first."""
        if not self.images.is_dir():
            return
        for image in self.images.iterdir():
            if not (self.sessions / image.name).is_dir() and image.is_file():
                image.unlink()

    def empty_trash(self) -> None:
        """Delete what is in the trash. Raises OSError."""
        holder = os.open(self.trash, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for name in os.listdir(holder):  # noqa: PTH208 - by descriptor, and not one by one
                trees.remove(holder, name)
        finally:
            os.close(holder)

    def write_system_file(self, name: str, text: str) -> Path:
        """A file that every sandbox may see; the one before it is replaced at once."""
        path = self.system / name
        written = self.system / f".{path.name}"
        written.write_text(text)
        written.chmod(0o644)
        return written.rename(path)

    def program_for_sandboxes(self, program: Path) -> Path:
        """`program`, or a copy of it and the libraries packaged with it where other users cannot reach it."""
        if first_closed(program.parent) is None:
            return program
        package, libraries = program.parent.parent, program.parent.parent.with_suffix(".libs")
        copy = self.system / "packages" / package.name / program.parent.name / program.name
        shutil.rmtree(self.system / "packages", ignore_errors=True)
        copy.parent.mkdir(parents=True)
        shutil.copy(program, copy)
        if libraries.is_dir():
            shutil.copytree(libraries, self.system / "packages" / libraries.name)
        for path in (self.system / "packages").rglob("*"):
            path.chmod(0o755)
        return copy


def exchange_in_memory(state: Path, uid: int) -> Path:
    """Where the FIFOs for a state directory of the user `uid` are by preference: each command makes files
    there, which takes a disk about a millisecond."""
    digest = hashlib.sha256(os.fsencode(state)).hexdigest()[:_DIGEST_CHARACTERS]
    return _MEMORY / f"cli-mcp-{uid}-{digest}"


def _exchange_of(state: Path) -> Path:
    """Raises OSError."""
    in_memory = exchange_in_memory(state, os.geteuid())
    with contextlib.suppress(OSError):
        in_memory.mkdir(exist_ok=True)
        status = in_memory.lstat()
        # Everybody may make names there; what somebody else made is not used.
        if stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid():
            in_memory.chmod(_PASSAGE)
            return in_memory
    on_disk = state / "exchange"
    on_disk.mkdir(exist_ok=True)
    on_disk.chmod(_PASSAGE)
    return on_disk


def first_closed(directory: Path) -> Path | None:
    """The topmost directory on the way to `directory` that other users may not pass through, if any."""
    return next(
        (path for path in _from_the_top(directory.resolve()) if not path.stat().st_mode & 0o001), None
    )


def _from_the_top(path: Path) -> Iterator[Path]:
    yield from reversed(path.parents)
    yield path
