"""Makes everything in a sandbox stand still for a moment, to look at something that it could change."""

import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from sandbox_agent import processes
from sandbox_agent.processes import Identity, Process

_STOPPED = "Tt"
# A fork bomb is ahead of whoever stops it one by one, at first: nothing that is stopped forks.
_MOST_ROUNDS = 50


@contextmanager
def standing_still(running: Callable[[], Iterable[Process]]) -> Iterator[None]:
    """Stop what `running` lists, parents first, until nothing new turns up, and let it go on afterwards.

    Parents come first and go on last, so that none sees a child of its own stand still. What stood still
    before does so afterwards.
    """
    stopped: list[Process] = []
    try:
        known: set[Identity] = set()
        for _ in range(_MOST_ROUNDS):
            found = [process for process in running() if process.identity not in known]
            if not found:
                break
            for process in found:
                known.add(process.identity)
                if process.state not in _STOPPED:
                    processes.send_signal(process, signal.SIGSTOP)
                    stopped.append(process)
        yield
    finally:
        processes.send_signals(reversed(stopped), signal.SIGCONT)
