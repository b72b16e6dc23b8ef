"""Resource limits of a sandbox's processes, setrlimit(2): behind control groups, or instead of them.

The sandbox's first program sets them on itself, since a server that is root in a container often lacks
CAP_SYS_RESOURCE, which setting them from outside would need.
"""

import resource
from collections.abc import Mapping
from dataclasses import dataclass

from local_runtime.cgroups import Limits

OPEN_FILES = 65_536
_KIBIBYTE = 1024


@dataclass(frozen=True, slots=True)
class _Option:
    """How bash's `ulimit` calls a limit, and how many of the kernel's units it counts as one."""

    letter: str
    unit: int = 1


_OPTIONS = {
    resource.RLIMIT_CORE: _Option("c", _KIBIBYTE),
    resource.RLIMIT_FSIZE: _Option("f", _KIBIBYTE),
    resource.RLIMIT_NOFILE: _Option("n"),
    resource.RLIMIT_NPROC: _Option("u"),
    resource.RLIMIT_DATA: _Option("d", _KIBIBYTE),
}


def session_rlimits(limits: Limits, *, workspace_bytes: int, grouped: frozenset[str]) -> dict[int, int]:
    """The limits, by RLIMIT_ number, of a session whose control groups have the controllers `grouped`.

    Linux counts RLIMIT_NPROC for each user namespace since 5.14, so that sessions of one user do not
    share it. RLIMIT_DATA, since it counts what can be written to: RLIMIT_AS refuses the address space
    that Node.js, Go and Java reserve without using it. Unlike a control group it is per process.
    """
    values = {
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_FSIZE: workspace_bytes,
        resource.RLIMIT_NOFILE: OPEN_FILES,
        resource.RLIMIT_NPROC: limits.processes,
    }
    if "memory" not in grouped:
        values[resource.RLIMIT_DATA] = limits.memory_bytes
    return values


def ulimit_commands(values: Mapping[int, int], hard: Mapping[int, int]) -> str:
    """bash commands that set soft and hard limits alike to `values`, or to the limits `hard` that hold
    already when those are stricter."""
    commands = []
    for number, value in values.items():
        ceiling = hard.get(number, resource.RLIM_INFINITY)
        option = _OPTIONS[number]
        limit = value if ceiling == resource.RLIM_INFINITY else min(value, ceiling)
        commands.append(f"ulimit -{option.letter} {limit // option.unit}")
    return " && ".join(commands)


def own_hard_limits() -> dict[int, int]:
    return {number: resource.getrlimit(number)[1] for number in _OPTIONS}


def limit_file_size(pid: int, soft_bytes: int | None) -> None:
    """Change how large a file a running process may write, within its hard limit; None for all of that.

    Raises ProcessLookupError, and PermissionError when the process has another user and this one lacks
    CAP_SYS_RESOURCE.
    """
    _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    soft = hard if soft_bytes is None else soft_bytes
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (soft, hard))
