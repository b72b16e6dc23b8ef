"""Processes that stand still for a moment."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from local_runtime.standstill import standing_still
from sandbox_agent import processes
from sandbox_agent.processes import Process

COUNTS = "import itertools, sys\nfor i in itertools.count(): open(sys.argv[1], 'w').write(str(i))"


@pytest.fixture
def family(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A shell whose child changes a file all the time."""
    script = '"$@" & wait'
    command = ["bash", "-c", script, "bash", sys.executable, "-c", COUNTS, str(tmp_path / "count")]
    process = subprocess.Popen(command)
    deadline = time.monotonic() + 10
    while not (tmp_path / "count").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    yield process
    for found in running(process):
        processes.send_signal(found, signal.SIGKILL)
    process.wait()


def running(process: subprocess.Popen[bytes]) -> list[Process]:
    root = processes.read_process(process.pid)
    return [] if root is None else [root, *processes.descendants(root).values()]


def changes(tmp_path: Path) -> bool:
    file = tmp_path / "count"
    before = file.stat().st_mtime_ns
    deadline = time.monotonic() + 0.3
    while time.monotonic() < deadline:
        time.sleep(0.01)
        if file.stat().st_mtime_ns != before:
            return True
    return False


def test_nothing_changes_meanwhile_and_all_goes_on_afterwards(
    family: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    assert changes(tmp_path)
    with standing_still(lambda: running(family)):
        time.sleep(0.05)  # a signal takes effect when the process runs next
        assert not changes(tmp_path)
    assert changes(tmp_path)


def test_what_stood_still_before_does_so_afterwards(family: subprocess.Popen[bytes], tmp_path: Path) -> None:
    child = running(family)[-1]
    processes.send_signal(child, signal.SIGSTOP)
    deadline = time.monotonic() + 5
    while running(family)[-1].state != "T" and time.monotonic() < deadline:
        time.sleep(0.01)
    with standing_still(lambda: running(family)):
        pass
    assert not changes(tmp_path)
