"""The processes of a sandbox as the kernel shows them: who they are, which belong to a command, signals.

A pid alone may be somebody else's by the time it is used; a process is its pid and its start time, and
signals go through a pidfd opened before the two were compared. See proc_pid_stat(5) and pidfd_open(2).
"""

import os
import signal
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Process:
    pid: int
    start_ticks: int
    parent: int
    state: str

    @property
    def identity(self) -> tuple[int, int]:
        return self.pid, self.start_ticks

    @property
    def alive(self) -> bool:
        """False for a zombie: it only waits to be reaped."""
        return self.state not in "ZX"


def read_process(pid: int) -> Process | None:
    """The process with this pid now, or None."""
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
            stat = file.read()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name stands in parentheses and may contain anything, also parentheses.
    fields = stat[stat.rfind(b")") + 2 :].split()
    return Process(pid, start_ticks=int(fields[19]), parent=int(fields[1]), state=fields[0].decode())


def descendants(root: int) -> dict[int, Process]:
    """All processes below `root`, by pid.

    What forks meanwhile may be missed; whoever needs them all asks until nothing new turns up.
    """
    found: dict[int, Process] = {}
    pending = _children(root)
    if pending is None:
        return _below(root, _all_processes())
    while pending:
        pid = pending.pop()
        process = read_process(pid)
        if process is None or pid in found:
            continue
        found[pid] = process
        pending += _children(pid) or ()
    return found


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


def of_command(
    now: Mapping[int, Process], before: Set[tuple[int, int]], ancestors: Set[int]
) -> list[Process]:
    """Of the processes `now`, those that a command started: they were not there `before` it and do not descend
    from one that was. `ancestors` are the pids whose children count nonetheless: sandbox root and shell."""

    def spared(process: Process) -> bool:
        seen: set[int] = set()
        current: Process | None = process
        while current is not None and current.pid not in ancestors and current.pid not in seen:
            if current.identity in before:
                return True
            seen.add(current.pid)
            current = now.get(current.parent)
        return process.pid in ancestors

    return [process for process in now.values() if process.alive and not spared(process)]


def send_signal(process: Process, number: signal.Signals) -> None:
    """Signal this very process; nothing happens when it is gone."""
    try:
        pidfd = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return
    try:
        current = read_process(process.pid)
        if current is not None and current.start_ticks == process.start_ticks:
            signal.pidfd_send_signal(pidfd, number)
    except ProcessLookupError:
        pass  # it ended between the two calls
    finally:
        os.close(pidfd)


def send_signals(processes: Iterable[Process], number: signal.Signals) -> None:
    for process in processes:
        send_signal(process, number)


def _children(pid: int) -> list[int] | None:
    """None where the kernel does not list children (CONFIG_PROC_CHILDREN, gVisor)."""
    found: list[int] = []
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except (FileNotFoundError, ProcessLookupError):
        return found
    for thread in threads:
        try:
            with open(f"/proc/{pid}/task/{thread}/children", "rb", buffering=0) as file:
                found += map(int, file.read().split())
        except FileNotFoundError:
            if os.path.exists(f"/proc/{pid}/task/{thread}/stat"):
                return None
        except ProcessLookupError:
            pass
    return found


def _all_processes() -> dict[int, Process]:
    pids = (int(name) for name in os.listdir("/proc") if name.isdigit())
    return {process.pid: process for pid in pids if (process := read_process(pid))}


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
