"""What the first process of a container owes itself: no other may end it, stop it or look into it.

The shell's processes have the same uid. Within its pid namespace pid 1 gets no signal for which it has no
handler, not even SIGKILL (pid_namespaces(7)); so it has none at all, and takes the few that it wants by
waiting for them while they are blocked.
"""

import ctypes
import os
import signal
import threading
from collections.abc import Callable

_PR_SET_DUMPABLE = 4  # prctl(2)
_SI_FROM_KERNEL_OR_KILL = 0  # sigaction(2): si_code of what no process can make up
_STOP_SIGNALS = frozenset((signal.SIGTERM, signal.SIGINT))

_prctl = ctypes.CDLL(None, use_errno=True).prctl


def protect() -> None:
    """Before the first thread and the first child: no other process of this uid can trace this one, or read
    its memory, environment or descriptors, and no signal interrupts it. Raises OSError.

    Children have the signals blocked too, until unblock_signals() is called in them.
    """
    if _prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    signal.pthread_sigmask(signal.SIG_BLOCK, _STOP_SIGNALS)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Python's own handler would be one


def unblock_signals() -> None:
    """For a child between fork and exec."""
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def on_stop(callback: Callable[[], object]) -> None:
    """After protect(): have `callback` called, in a thread, when this process is told to stop."""

    def wait() -> None:
        while True:
            received = signal.sigwaitinfo(_STOP_SIGNALS)
            if counts_as_stop(os.getpid(), received.si_code, received.si_pid):
                callback()

    threading.Thread(target=wait, name="signals", daemon=True).start()


def counts_as_stop(own_pid: int, code: int, sender: int) -> bool:
    """Whether a signal is an order to stop. To pid 1 it is one only from outside of its pid namespace, where
    the sender has no number here; kill(2) cannot lie about that and sigqueue(3), which can, has another code.
    """
    return own_pid != 1 or (sender == 0 and code >= _SI_FROM_KERNEL_OR_KILL)


def kill_all_others() -> bool:
    """As pid 1: end every other process of the pid namespace, at once and with none slipping away
    (kill(2), pid -1). Returns whether it did; any other process does nothing of that kind."""
    if os.getpid() != 1:
        return False
    try:
        os.kill(-1, signal.SIGKILL)
    except ProcessLookupError:
        pass  # there are no others
    return True
