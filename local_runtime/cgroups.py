"""Memory, process and CPU limits of a session by control groups, version 1 or 2, as far as they can be had.

https://docs.kernel.org/admin-guide/cgroup-v1/ and .../cgroup-v2.html. Every session has a group of its own
below one group of the server's state directory, so that what a killed server left behind can be told from
everybody else's.
"""

import hashlib
import logging
import os
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

log = logging.getLogger(__name__)

_PROCESSES = "cgroup.procs"
_DIGEST_CHARACTERS = 8
_REMOVE_SECONDS = 5.0
_REMOVE_POLL_SECONDS = 0.02
_CPU_PERIOD_US = 100_000
CONTROLLERS = ("memory", "pids", "cpu")
SOCKETS_SHARE_OF_MEMORY = 8


@dataclass(frozen=True, slots=True)
class Limits:
    """What one session may use; `cpu_shares` counts only while the CPUs are busy, `cpu_millicores` always,
    and None is no limit."""

    memory_bytes: int
    processes: int
    cpu_shares: int
    cpu_millicores: int | None = None

    @property
    def socket_bytes(self) -> int:
        """For the buffers of its sockets, where they do not count as memory."""
        return self.memory_bytes // SOCKETS_SHARE_OF_MEMORY


def cpu_shares(request_millicores: int) -> int:
    """cpu.shares for a CPU request, as the kubelet computes them (pkg/kubelet/cm/helpers_linux.go)."""
    return min(max(request_millicores * 1024 // 1000, 2), 262_144)


def _cpu_quota_us(millicores: int) -> int:
    """Of each _CPU_PERIOD_US, as the kubelet computes it (pkg/kubelet/cm/helpers_linux.go)."""
    return max(millicores * _CPU_PERIOD_US // 1000, 1000)


def settings(limits: Limits, *, version: int) -> dict[str, list[tuple[str, str]]]:
    """The files to write in a new group and their contents, in order, by controller."""
    memory = str(limits.memory_bytes)
    quota = None if limits.cpu_millicores is None else _cpu_quota_us(limits.cpu_millicores)
    if version == 1:
        return {
            # memsw counts memory and swap together: no swap beyond the limit.
            # Buffers of TCP sockets are counted apart from it, and not at all without a limit.
            "memory": [
                ("memory.limit_in_bytes", memory),
                ("memory.memsw.limit_in_bytes", memory),
                ("memory.kmem.tcp.limit_in_bytes", str(limits.socket_bytes)),
            ],
            "pids": [("pids.max", str(limits.processes))],
            "cpu": [
                ("cpu.shares", str(limits.cpu_shares)),
                *([] if quota is None else [("cpu.cfs_period_us", str(_CPU_PERIOD_US))]),
                *([] if quota is None else [("cpu.cfs_quota_us", str(quota))]),
            ],
        }
    # The kubelet's linear map from shares 2..262144 to weights 1..10000.
    weight = 1 + (limits.cpu_shares - 2) * 9999 // 262_142
    return {
        "memory": [("memory.max", memory), ("memory.swap.max", "0")],
        "pids": [("pids.max", str(limits.processes))],
        "cpu": [
            ("cpu.weight", str(weight)),
            *([] if quota is None else [("cpu.max", f"{quota} {_CPU_PERIOD_US}")]),
        ],
    }


# Swap accounting can be off (swapaccount=0, CONFIG_MEMCG_SWAP); then there is no such file.
_OPTIONAL_FILES = {"memory.memsw.limit_in_bytes", "memory.swap.max", "memory.kmem.tcp.limit_in_bytes"}


@dataclass(frozen=True, slots=True)
class Mount:
    """One mounted cgroup hierarchy and the group of this process in it. Version 2 has one for all."""

    version: int
    controllers: tuple[str, ...]
    point: Path
    own: PurePosixPath  # relative to `point`

    @property
    def own_directory(self) -> Path:
        return self.point / self.own


def mounts(mountinfo: str, membership: str) -> list[Mount]:
    """The hierarchies of /proc/self/mountinfo with this process's place from /proc/self/cgroup."""
    places: dict[str, str] = {}
    for line in membership.splitlines():
        _, listed, path = line.split(":", 2)
        for name in listed.split(","):  # version 2 has no names: ""
            places[name] = path
    found = []
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        root, point = before.split(" ")[3:5]
        kind, _, options = after.split(" ", 2)
        if kind == "cgroup2" and "" in places:
            found.append(Mount(2, (), Path(point), _below(places[""], root)))
        elif kind == "cgroup":
            names = tuple(name for name in CONTROLLERS if name in options.split(","))
            if names:
                found.append(Mount(1, names, Path(point), _below(places.get(names[0], "/"), root)))
    return found


def _below(path: str, root: str) -> PurePosixPath:
    """`path` of /proc/self/cgroup relative to the mount, which may show a part of the hierarchy only."""
    try:
        return PurePosixPath(path).relative_to(root)
    except ValueError:
        return PurePosixPath()


@dataclass(frozen=True, slots=True)
class Parent:
    """A directory of this server in one hierarchy, in which groups with these controllers can be made."""

    version: int
    controllers: tuple[str, ...]
    directory: Path

    def create(self, name: str, limits: Limits) -> Path:
        """Make a group and set its limits. Raises OSError; then there is no group."""
        group = self.directory / name
        group.mkdir()
        try:
            for controller in self.controllers:
                for file, value in settings(limits, version=self.version)[controller]:
                    if file in _OPTIONAL_FILES and not (group / file).exists():
                        continue
                    _write(group / file, value)
        except OSError:
            group.rmdir()
            raise
        return group


@dataclass(slots=True)
class SessionGroups:
    """The groups of one session, one in each hierarchy."""

    directories: Mapping[Path, Parent]
    limits: Limits
    _kills_seen: int = field(default=0, init=False)

    def add(self, pid: int) -> None:
        """Move a process into every group. Raises OSError."""
        for directory in self.directories:
            _write(directory / _PROCESSES, str(pid))

    def killed_for_memory(self) -> bool:
        """Whether the kernel killed a process of the session for memory since the last call."""
        kills = sum(_memory_kills(directory, parent) for directory, parent in self.directories.items())
        new, self._kills_seen = kills > self._kills_seen, kills
        return new

    def socket_bytes(self) -> int:
        """What the buffers of its sockets take, where that is not counted as its memory."""
        return sum(_socket_bytes(directory, parent) for directory, parent in self.directories.items())

    def remove(self) -> None:
        """Kill what is left in the groups and remove them; blocks until they are gone, at most 5 seconds."""
        for directory in self.directories:
            remove_group(directory)


def _memory_kills(directory: Path, parent: Parent) -> int:
    if "memory" not in parent.controllers:
        return 0
    file = directory / ("memory.oom_control" if parent.version == 1 else "memory.events")
    try:
        counters = dict(line.split() for line in file.read_text().splitlines())
    except OSError:
        return 0  # the group is gone with its session
    return int(counters.get("oom_kill", 0))


def _socket_bytes(directory: Path, parent: Parent) -> int:
    if parent.version != 1 or "memory" not in parent.controllers:
        return 0
    try:
        return int((directory / "memory.kmem.tcp.usage_in_bytes").read_text())
    except OSError:
        return 0  # a kernel that does not count them, or the group is gone with its session


@dataclass(frozen=True, slots=True)
class Cgroups:
    """What this host lets the server limit: none or more parents, one per hierarchy."""

    parents: Sequence[Parent]

    @property
    def controllers(self) -> frozenset[str]:
        return frozenset(name for parent in self.parents for name in parent.controllers)

    def create(self, name: str, limits: Limits) -> SessionGroups:
        """Groups for a session. Raises OSError; then there are none."""
        made: dict[Path, Parent] = {}
        try:
            for parent in self.parents:
                made[parent.create(name, limits)] = parent
        except OSError:
            for directory in made:
                directory.rmdir()
            raise
        return SessionGroups(made, limits)

    def remove(self) -> None:
        """Remove the parents and everything below them."""
        for parent in self.parents:
            remove_group(parent.directory)


def group_name(state: Path) -> str:
    """The name of the group for a state directory, which only the server that has locked it uses."""
    digest = hashlib.sha256(os.fsencode(state)).hexdigest()[:_DIGEST_CHARACTERS]
    return f"cli-mcp-{state.name}-{digest}"


def own_mounts() -> list[Mount]:
    return mounts(Path("/proc/self/mountinfo").read_text(), Path("/proc/self/cgroup").read_text())


def prepare(name: str, found: Sequence[Mount]) -> Cgroups:
    """Make the group `name` wherever a controller can be used below it; an old one of that name is cleared.

    In version 2 the directory is looked for from this process's own group upwards, since a group that has
    processes cannot hand controllers down, and an unprivileged user owns at most some of them.
    """
    parents: list[Parent] = []
    for mount in found:
        candidates = [mount.own_directory]
        if mount.version == 2:
            above = [path for path in mount.own_directory.parents if path.is_relative_to(mount.point)]
            candidates += above if mount.own_directory != mount.point else []
        for candidate in candidates:
            parent = _usable(mount, candidate / name)
            if parent is not None:
                parents.append(parent)
                break
    return Cgroups(parents)


def _usable(mount: Mount, directory: Path) -> Parent | None:
    if directory.exists():
        remove_group(directory)
    try:
        directory.mkdir()
    except OSError as error:
        log.debug("no control group %s: %s", directory, error)
        return None
    controllers = mount.controllers if mount.version == 1 else _hand_down(directory)
    if controllers:
        return Parent(mount.version, controllers, directory)
    directory.rmdir()
    return None


def _hand_down(directory: Path) -> tuple[str, ...]:
    """The controllers that groups below a version 2 group can have, once it was tried to enable them."""
    usable = []
    for controller in CONTROLLERS:
        try:
            if controller not in (directory / "cgroup.controllers").read_text().split():
                _write(directory.parent / "cgroup.subtree_control", f"+{controller}")
            _write(directory / "cgroup.subtree_control", f"+{controller}")
        except OSError as error:
            log.debug("control groups: no %s below %s: %s", controller, directory, error)
        else:
            usable.append(controller)
    return tuple(usable)


def remove_group(directory: Path) -> None:
    """Kill every process in a group and below it, and remove it; one that stays for 5 seconds is logged."""
    deadline = time.monotonic() + _REMOVE_SECONDS
    while True:
        try:
            for path, _, _ in os.walk(directory, topdown=False):
                _kill_members(Path(path))
                Path(path).rmdir()
        except FileNotFoundError:
            return
        except OSError as error:  # EBUSY while the processes are still dying
            if time.monotonic() > deadline:
                log.warning("control group %s cannot be removed: %s", directory, error)
                return
            time.sleep(_REMOVE_POLL_SECONDS)
        else:
            return


def _kill_members(directory: Path) -> None:
    for pid in (directory / _PROCESSES).read_text().split():
        try:
            os.kill(int(pid), signal.SIGKILL)
        except ProcessLookupError:
            continue


def _write(file: Path, value: str) -> None:
    # Not write_text(): a control file must be there already, and the error comes with the write itself.
    fd = os.open(file, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, value.encode())
    finally:
        os.close(fd)
