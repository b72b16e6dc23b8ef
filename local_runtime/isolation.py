"""Whether a sandbox is what it should be: what the kernel says about its first process, checked from outside.

Pure functions on texts of /proc; namespaces(7) and proc(5).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

# The sandbox must have its own of each; bubblewrap reports all but `user`.
NAMESPACES = ("user", "pid", "net", "ipc", "mnt", "uts", "cgroup")
_CAPABILITY_SETS = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")
_SECCOMP_FILTER_MODE = "2"


@dataclass(frozen=True, slots=True)
class Namespaces:
    """The inode numbers of a process's namespaces, by name."""

    inodes: Mapping[str, int]


def namespaces_of(pid: int | str) -> Namespaces:
    """Raises OSError when there is no such process or it is not ours to look at."""
    return Namespaces({name: Path(f"/proc/{pid}/ns/{name}").stat().st_ino for name in NAMESPACES})


def namespace_faults(sandbox: Namespaces, host: Namespaces, reported: Mapping[str, int]) -> list[str]:
    """What is wrong with a sandbox's namespaces; `reported` is what bubblewrap says they are, by name."""
    shared = [name for name in NAMESPACES if sandbox.inodes[name] == host.inodes[name]]
    foreign = [name for name, inode in reported.items() if sandbox.inodes.get(name) != inode]
    return [f"shares the {name} namespace of the host" for name in shared] + [
        f"is not in the {name} namespace that was made for it" for name in foreign
    ]


def reported_namespaces(info: Mapping[str, object]) -> dict[str, int]:
    """From the object of bubblewrap's --info-fd, which has a key `<name>-namespace` for each.

    Raises ValueError when one of them is missing.
    """
    reported = {}
    for name in NAMESPACES:
        if name == "user":
            continue
        inode = info.get(f"{name}-namespace")
        if not isinstance(inode, int):
            raise ValueError(f"bubblewrap does not report the {name} namespace")
        reported[name] = inode
    return reported


def privilege_faults(status: str, *, uid: int) -> list[str]:
    """What is wrong with /proc/<pid>/status of a sandbox's first process, which should run as `uid`."""
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    faults = [f"has capabilities ({name})" for name in _CAPABILITY_SETS if int(fields[name], 16)]
    if fields["NoNewPrivs"].strip() != "1":
        faults.append("can gain privileges by executing a file")
    if fields["Seccomp"].strip() != _SECCOMP_FILTER_MODE:
        faults.append("has no system call filter")
    if set(fields["Uid"].split()) != {str(uid)}:
        faults.append("runs as another user than it should")
    if fields["NSpid"].split()[-1] != "1":
        faults.append("is not the first process of its namespace")
    return faults
