import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from sandbox_agent import processes
from sandbox_agent.processes import Process
from tests.forged_results import HEADLESS
from tests.sandbox_agent.conftest import wait_until


def process(pid: int, parent: int, state: str = "S", start_ticks: int = 0) -> Process:
    return Process(pid, start_ticks or pid, parent, state)


ROOT, SHELL = 10, 11
OLD = [process(SHELL, ROOT), process(20, SHELL), process(21, 20), process(30, ROOT)]


@pytest.mark.parametrize(
    ("new", "victims"),
    [
        ([], []),
        ([process(40, SHELL)], [40]),
        ([process(40, SHELL), process(41, 40), process(42, 41)], [40, 41, 42]),
        ([process(40, ROOT)], [40]),  # orphaned, or gone into a session of its own
        ([process(40, 20)], []),  # an earlier background job started it
        ([process(40, 21), process(41, 40)], []),
        ([process(40, 30)], []),  # an orphan of earlier commands did
        ([process(40, SHELL, "Z")], []),
        ([process(40, 41), process(41, 40)], [40, 41]),  # no list of processes makes this loop for ever
        ([process(20, SHELL, start_ticks=999)], [20]),  # the pid of an ended job was used again
    ],
)  # fmt: skip
def test_a_commands_processes_are_the_new_ones_that_no_earlier_job_started(
    new: list[Process], victims: list[int]
) -> None:
    now = {entry.pid: entry for entry in [*OLD, *new]}
    before = frozenset(entry.identity for entry in OLD)
    found = processes.of_command(now, before, {ROOT, SHELL})
    assert sorted(entry.pid for entry in found) == victims


def test_a_long_line_of_descent_takes_no_time_to_speak_of() -> None:
    now = {pid: process(pid, pid - 1) for pid in range(SHELL, 20_000)}
    began = time.monotonic()
    assert (
        len(processes.of_command(now, frozenset({now[15_000].identity}), {ROOT, SHELL})) == 15_000 - SHELL - 1
    )
    assert time.monotonic() - began < 2


@pytest.fixture
def tree() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(
        ["bash", "-c", "(sleep 60; :) & sleep 60 & echo; wait"],
        stdout=subprocess.PIPE,
        start_new_session=True,
    ) as bash:
        assert bash.stdout is not None
        bash.stdout.readline()
        leader = running(bash.pid)
        assert wait_until(lambda: len(processes.descendants(leader)) == 3)
        yield bash
        processes.send_signals(processes.in_session(leader).values(), signal.SIGKILL)
        bash.kill()


def running(pid: int) -> Process:
    found = processes.read_process(pid)
    assert found is not None
    return found


@pytest.mark.parametrize("children_listed", [True, False])
def test_all_descendants_are_found_also_where_the_kernel_lists_no_children(
    tree: subprocess.Popen[bytes], children_listed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not children_listed:
        monkeypatch.setattr(processes, "_children", lambda process: None)
    found = processes.descendants(running(tree.pid))
    assert len(found) == 3
    assert tree.pid not in found


def test_what_a_session_leader_leaves_behind_is_found(tree: subprocess.Popen[bytes]) -> None:
    leader = running(tree.pid)
    processes.send_signal(leader, signal.SIGKILL)
    tree.wait()
    left = processes.in_session(leader)
    assert len(left) == 3
    processes.send_signals(left.values(), signal.SIGKILL)


def test_a_root_whose_pid_is_somebody_elses_now_has_no_descendants(tree: subprocess.Popen[bytes]) -> None:
    assert processes.descendants(Process(tree.pid, start_ticks=1, parent=0, state="S")) == {}


def test_a_signal_reaches_the_process_that_was_meant_and_no_other(tree: subprocess.Popen[bytes]) -> None:
    processes.send_signal(Process(tree.pid, start_ticks=1, parent=0, state="S"), signal.SIGKILL)
    with pytest.raises(subprocess.TimeoutExpired):
        tree.wait(timeout=0.3)
    victim = running(tree.pid)
    processes.send_signal(victim, signal.SIGKILL)
    os.waitid(os.P_PID, tree.pid, os.WEXITED | os.WNOWAIT)
    assert not processes.still_runs(victim)
    tree.wait()
    processes.send_signal(victim, signal.SIGKILL)
    assert processes.read_process(tree.pid) is None


def test_a_process_name_with_parentheses_and_spaces_is_no_problem(tmp_path: object) -> None:
    program = f"{tmp_path}/a) R 1 (b"
    os.symlink("/bin/sleep", program)
    with subprocess.Popen([program, "60"]) as child:
        try:
            assert running(child.pid).parent == os.getpid()
        finally:
            child.kill()


def test_without_a_pid_namespace_the_inner_pid_is_the_pid() -> None:
    assert processes.inner_pid(os.getpid()) == os.getpid()
    assert processes.inner_pid(2**22 + 1) is None


def test_a_process_whose_first_thread_has_ended_is_alive_until_the_last_one_has() -> None:
    with subprocess.Popen([sys.executable, "-c", HEADLESS]) as headless:
        assert wait_until(lambda: running(headless.pid).state == "Z")
        found = running(headless.pid)
        assert found.alive and processes.still_runs(found)
        assert processes.of_command({found.pid: found}, frozenset(), frozenset({1})) == [found]
        processes.send_signal(found, signal.SIGKILL)
        assert wait_until(lambda: not running(headless.pid).alive)
