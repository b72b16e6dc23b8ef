"""The processes of a sandbox as the kernel shows them: who they are, which belong to a command, signals.

A pid alone may be somebody else's by the time it is used; a process is its pid and its start time, and
signals go through a pidfd opened before the two were compared. See proc_pid_stat(5) and pidfd_open(2).
"""

import errno
import os
import signal
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field
from pathlib import Path

Identity = tuple[int, int]

# Linux before 5.3, or a seccomp filter that does not know the call.
_PIDFD_MISSING = {errno.ENOSYS, errno.EPERM}
_COMMAND_LINE_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Process:
    """`start_ticks` are clock ticks since boot, `cpu_ticks` those that it and reaped children ran."""

    pid: int
    start_ticks: int
    parent: int
    state: str
    session: int = 0
    threads: int = 1
    cpu_ticks: int = field(default=0, compare=False)

    @property
    def identity(self) -> Identity:
        """No other process ever has the same."""
        return self.pid, self.start_ticks

    @property
    def alive(self) -> bool:
        """False for a zombie, which only waits to be reaped. One whose first thread has ended looks like that
        and goes on with the others; an ended one has none but the first."""
        return self.state not in "ZX" or self.threads > 1


def read_process(pid: int) -> Process | None:
    """The process with this pid now, or None."""
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
            stat = file.read()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name stands in parentheses and may contain anything, also parentheses.
    fields = stat[stat.rfind(b")") + 2 :].split()
    return Process(
        pid,
        start_ticks=int(fields[19]),
        parent=int(fields[1]),
        state=fields[0].decode(),
        session=int(fields[3]),
        threads=int(fields[17]),
        cpu_ticks=sum(map(int, fields[11:15])),
    )


def still_runs(process: Process) -> bool:
    """Whether this very process is there and is no zombie."""
    now = read_process(process.pid)
    return now is not None and now.identity == process.identity and now.alive


def all_processes() -> dict[int, Process]:
    """Whatever this process can see, by pid."""
    pids = (int(entry.name) for entry in os.scandir("/proc") if entry.name.isdigit())
    return {process.pid: process for pid in pids if (process := read_process(pid))}


def descendants(root: Process) -> dict[int, Process]:
    """All processes below `root`, by pid; none when it is gone.

    What forks meanwhile may be missed: whoever needs them all asks until nothing new turns up.
    """
    pending = _children(root)
    if pending is None:
        found = _below(root.pid, all_processes())
    else:
        found = {}
        while pending:
            pid = pending.pop()
            process = read_process(pid)
            if process is not None and pid not in found:
                found[pid] = process
                pending += _children(process) or ()
    # Looked at last: a root that ended meanwhile makes the list incomplete, or somebody else's.
    return found if still_runs(root) else {}


def child(parent: Process, pid_inside: int) -> Process | None:
    """The child of `parent` that has this pid in its own pid namespace."""
    listed = _children(parent)
    pids = listed if listed is not None else list(_below(parent.pid, all_processes()))
    for pid in pids:
        process = read_process(pid)
        if process is not None and process.parent == parent.pid and inner_pid(pid) == pid_inside:
            return process
    return None


def in_session(leader: Process) -> dict[int, Process]:
    """All processes of the session that `leader` started with setsid(2), also when it has just ended."""
    found = all_processes()
    if leader.pid in found and found[leader.pid].identity != leader.identity:
        return {}  # somebody else's session has this number now
    return {pid: process for pid, process in found.items() if process.session == leader.pid != pid}


def inner_pid(pid: int) -> int | None:
    """The pid of a process as its own pid namespace sees it, or None when it is gone."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    for line in status.splitlines():
        if line.startswith("NSpid:"):
            return int(line.split()[-1])
    return pid  # a kernel without pid namespaces


def command_words(pid: int) -> list[bytes]:
    """The command line, as the process may have changed it; nothing of one that is gone."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb", buffering=0) as file:
            return file.read(_COMMAND_LINE_BYTES).split(b"\0")
    except (FileNotFoundError, ProcessLookupError):
        return []


def written_bytes(pid: int) -> int:
    """What a process and the children that it waited for have written to disks, or put into memory for them,
    proc_pid_io(5); 0 of one that is gone or may not be looked into."""
    try:
        lines = Path(f"/proc/{pid}/io").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return 0
    return int(dict(line.split(": ", 1) for line in lines).get("write_bytes", 0))


def of_command(now: Mapping[int, Process], before: Set[Identity], ancestors: Set[int]) -> list[Process]:
    """Of the processes `now`, those that a command started: they were not there `before` it, and do not
    descend from one that was. Descending from `ancestors`, the sandbox's root and its shell, does not count.
    """
    spared = dict.fromkeys(ancestors, False)
    for process in now.values():
        line: list[int] = []
        current: Process | None = process
        while current is not None and current.pid not in spared:
            line.append(current.pid)
            spared[current.pid] = current.identity in before
            if spared[current.pid]:
                break
            current = now.get(current.parent)
        verdict = current is not None and spared[current.pid]
        spared.update(dict.fromkeys(line, verdict))
    return [
        process
        for process in now.values()
        if process.alive and process.pid not in ancestors and not spared[process.pid]
    ]


def send_signal(process: Process, number: signal.Signals) -> None:
    """Signal this very process; nothing happens when it is gone."""
    try:
        pidfd = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return
    except OSError as error:
        if error.errno not in _PIDFD_MISSING:
            raise
        _send_signal_by_pid(process, number)
        return
    try:
        current = read_process(process.pid)
        if current is not None and current.start_ticks == process.start_ticks:
            signal.pidfd_send_signal(pidfd, number)
    except ProcessLookupError:
        pass  # it ended between the two calls
    finally:
        os.close(pidfd)


def _send_signal_by_pid(process: Process, number: signal.Signals) -> None:
    """Where there are no pidfds. Pids are not used again at once, so little can happen in between."""
    current = read_process(process.pid)
    if current is not None and current.start_ticks == process.start_ticks:
        try:
            os.kill(process.pid, number)
        except ProcessLookupError:
            pass  # it ended between the two calls


def send_signals(processes: Iterable[Process], number: signal.Signals) -> None:
    for process in processes:
        send_signal(process, number)


def _children(process: Process) -> list[int] | None:
    """None where the kernel does not list children (CONFIG_PROC_CHILDREN, gVisor)."""
    try:
        if process.threads == 1:
            return _children_of_thread(process.pid, process.pid)
        found = []
        for entry in os.scandir(f"/proc/{process.pid}/task"):
            found += _children_of_thread(process.pid, int(entry.name))
        return found
    except ProcessLookupError:
        return []
    except FileNotFoundError:
        return None if Path(f"/proc/{process.pid}/task").exists() else []


def _children_of_thread(pid: int, thread: int) -> list[int]:
    with open(f"/proc/{pid}/task/{thread}/children", "rb", buffering=0) as file:
        return [int(child) for child in file.read().split()]


def _below(root: int, processes: Mapping[int, Process]) -> dict[int, Process]:
    children: dict[int, list[Process]] = {}
    for process in processes.values():
        children.setdefault(process.parent, []).append(process)
    found: dict[int, Process] = {}
    pending = list(children.get(root, ()))
    while pending:
        process = pending.pop()
        found[process.pid] = process
        pending += children.get(process.pid, ())
    return found
