"""Reaps orphans: processes that ended and whose parent had ended before, so that pid 1 became their parent.

asyncio collects its own children at once; taking one away from it would lose its exit status. So what counts
as an orphan is a zombie that was there already at the last look.
"""

import asyncio
import os

from sandbox_agent import processes
from sandbox_agent.processes import Identity

LOOK_SECONDS = 2.0


class Reaper:
    """At work until `close`."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._seen: frozenset[Identity] = frozenset()
        self._timer = self._loop.call_later(LOOK_SECONDS, self._look)

    def close(self) -> None:
        self._timer.cancel()

    def _look(self) -> None:
        zombies = frozenset(_zombie_children()) if _a_child_ended() else frozenset()
        for pid, _ in zombies & self._seen:
            try:
                os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:
                pass  # asyncio has it, after all
        self._seen = zombies - self._seen
        self._timer = self._loop.call_later(LOOK_SECONDS, self._look)


def _a_child_ended() -> bool:
    """Whether there is anything to look for; takes nothing."""
    try:
        return os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return False


def _zombie_children() -> list[Identity]:
    found = processes.all_processes().values()
    return [process.identity for process in found if process.parent == os.getpid() and not process.alive]
