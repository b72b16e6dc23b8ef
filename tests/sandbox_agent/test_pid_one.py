"""Signals and protection of the first process; test_agent_attacks.py shows them against a real shell."""

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from sandbox_agent.pid_one import counts_as_stop, kill_all_others

_SI_USER, _SI_QUEUE, _SI_TKILL, _SI_KERNEL = 0, -1, -6, 128


@pytest.mark.parametrize(
    ("own_pid", "code", "sender", "stops"),
    [
        (1, _SI_USER, 0, True),
        (1, _SI_KERNEL, 0, True),
        (1, _SI_USER, 7, False),
        (1, _SI_QUEUE, 0, False),
        (1, _SI_TKILL, 0, False),
        (1, _SI_TKILL, 7, False),
        # Elsewhere anybody with this uid could end the process in other ways.
        (5, _SI_USER, 7, True),
        (5, _SI_QUEUE, 7, True),
    ],
)
def test_what_counts_as_an_order_to_stop(own_pid: int, code: int, sender: int, stops: bool) -> None:
    assert counts_as_stop(own_pid, code, sender) is stops


def test_only_pid_1_kills_all_others() -> None:
    assert os.getpid() != 1
    assert not kill_all_others()


def run(text: str, prefix: tuple[str, ...] = ()) -> str:
    command = (*prefix, sys.executable, "-I", "-c", textwrap.dedent(text))
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout


def test_a_protected_process_hides_itself_and_its_children_are_as_usual() -> None:
    out = run("""
        import os, pathlib, signal, subprocess
        from sandbox_agent import pid_one
        pid_one.protect()
        print(os.stat("/proc/self/mem").st_uid, signal.getsignal(signal.SIGINT) is signal.SIG_DFL)
        for preexec in (None, pid_one.unblock_signals):
            text = subprocess.check_output(["grep", "SigBlk", "/proc/self/status"], preexec_fn=preexec)
            print(int(text.split()[1], 16) != 0)
    """)
    assert out.split() == ["0", "True", "True", "False"]


def test_a_stop_is_told_in_a_thread_and_again_for_the_next() -> None:
    out = run("""
        import os, signal, threading
        from sandbox_agent import pid_one
        pid_one.protect()
        stops = threading.Semaphore(0)
        pid_one.on_stop(stops.release)
        for number in (signal.SIGTERM, signal.SIGINT):
            os.kill(os.getpid(), number)
            print(stops.acquire(timeout=10))
    """)
    assert out.split() == ["True", "True"]


@pytest.mark.skipif(os.geteuid() != 0, reason="making a pid namespace takes root")
def test_pid_1_ends_all_others_at_once() -> None:
    out = run(
        """
        import subprocess
        from sandbox_agent import pid_one
        others = [subprocess.Popen(["sleep", "60"]) for _ in range(5)]
        print(pid_one.kill_all_others(), [other.wait(10) for other in others] == [-9] * 5)
        print(pid_one.kill_all_others())
        """,
        ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc"),
    )
    assert out.split() == ["True", "True", "True"]


def test_a_signal_wakes_nobody_who_did_not_ask() -> None:
    assert signal.SIGTERM not in signal.pthread_sigmask(signal.SIG_BLOCK, ())
    assert Path("/proc/self/mem").stat().st_uid == os.geteuid()
