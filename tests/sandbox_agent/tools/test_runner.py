"""The program as a server that is not in the sandbox runs it."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cli_mcp.execution import ROOT_VARIABLE
from sandbox_agent.tools.runner import READY, START


class Program:
    def __init__(self, root: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "sandbox_agent.tools.runner", "--without", "HIDDEN"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, ROOT_VARIABLE: str(root), "HIDDEN": "x", "SHOWN": "y"},
        )
        assert self.process.stdin and self.process.stdout
        self.stdin, self.stdout = self.process.stdin, self.process.stdout

    def send(self, line: bytes) -> None:
        self.stdin.write(line)
        self.stdin.flush()

    def call(self, number: int, tool: str, /, **arguments: Any) -> None:
        self.send(json.dumps({"id": number, "name": tool, "arguments": arguments}).encode() + b"\n")

    def answer(self) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(self.stdout.readline())
        return answer


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Program]:
    started = Program(tmp_path)
    assert started.stdout.readline() == READY
    yield started
    started.stdin.close()
    started.process.wait(20)
    started.stdout.close()


def test_calls_are_answered_and_failures_told(program: Program, tmp_path: Path) -> None:
    program.call(1, "write_file", path="x", content="ä")
    assert program.answer()["result"]["bytes"] == 2
    assert (tmp_path / "x").read_text() == "ä"
    program.call(2, "read_file", path="none")
    assert "no such file" in program.answer()["error"]
    program.call(3, "no_such_tool")
    assert "no tool" in program.answer()["error"]


def test_a_call_that_waits_holds_up_no_other(program: Program) -> None:
    program.call(1, "process_start", command="sleep 60", name="p")
    assert program.answer()["id"] == 1
    program.call(2, "tail_log", name="p", follow=3)
    program.call(3, "list_directory")
    assert program.answer()["id"] == 3
    assert program.answer()["id"] == 2


def test_what_is_no_request_is_passed_over_and_a_start_answered(program: Program) -> None:
    for line in (b'ound": 1}}\n', b"\n", b"[]\n", b'{"id": 1}\n', b"\xff\n", START):
        program.send(line)
    assert program.stdout.readline() == READY
    program.call(1, "process_list")
    assert program.answer() == {"id": 1, "result": {"processes": []}}


def test_its_processes_end_with_it_and_do_not_see_what_is_not_for_them(program: Program) -> None:
    program.call(1, "process_start", command="echo $SHOWN$HIDDEN; sleep 60", name="p")
    pid = program.answer()["result"]["pid"]
    program.call(2, "tail_log", name="p", follow=20, offset=0)
    assert program.answer()["result"]["content"] == "y\n"
    program.stdin.close()
    program.process.wait(20)
    deadline = time.monotonic() + 10
    while Path(f"/proc/{pid}/cmdline").exists() and Path(f"/proc/{pid}/cmdline").read_bytes():
        assert time.monotonic() < deadline
        time.sleep(0.05)
