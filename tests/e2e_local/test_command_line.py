"""`cli-mcp call` and `sessions` against real sandboxes."""

import hashlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.e2e_local.harness import _RUN, Server


def command_line(server: Server, tmp_path: Path, subcommand: str, *arguments: str) -> list[str]:
    token = tmp_path / "token"
    token.write_text(server.token)
    url = server.url.removesuffix("/mcp")
    return [sys.executable, "-c", _RUN, subcommand, url, "--token-file", str(token), *arguments]


def call(
    server: Server, tmp_path: Path, *arguments: str, data: bytes = b""
) -> "subprocess.CompletedProcess[bytes]":
    command = command_line(server, tmp_path, "call", "--session", "cli", *arguments)
    return subprocess.run(command, input=data, capture_output=True, timeout=100, check=False)


OUTPUTS = [
    "echo hi",
    "printf 'no end'",
    "head -c 3000000 /dev/urandom | tee copy",
    "seq 200000 | tee copy; exit 3",
    "seq 200000 >&2",
    "head -c 200000 /dev/zero; head -c 90000 /dev/zero >&2",
    "yes $'a\\u2028b\\u0085' | head -c 50029",
]


@pytest.mark.parametrize("command", OUTPUTS)
def test_the_whole_output_arrives_byte_for_byte(server: Server, tmp_path: Path, command: str) -> None:
    ran = call(server, tmp_path, "--quiet", f"{{ {command}; }} > >(tee out) 2> >(tee err >&2); wait")
    sums = server.call("cli", "sha256sum out err; rm -f copy").stdout.split()
    assert [hashlib.sha256(data).hexdigest() for data in (ran.stdout, ran.stderr)] == [sums[0], sums[2]]


def test_stdin_of_any_size_arrives_and_the_session_keeps_its_state(server: Server, tmp_path: Path) -> None:
    data = os.urandom(2_500_000)
    ran = call(server, tmp_path, "-q", "X=kept; sha256sum; false", data=data)
    assert ran.stdout.split()[0].decode() == hashlib.sha256(data).hexdigest()
    assert ran.returncode == 1
    assert call(server, tmp_path, "-q", "echo $X; ls .cli-mcp | grep stdin").stdout == b"kept\n"


def test_what_a_command_gave_before_its_time_was_over_is_shown(server: Server, tmp_path: Path) -> None:
    ran = call(server, tmp_path, "--timeout", "1", "echo so far; sleep 30")
    assert (ran.returncode, ran.stdout) == (124, b"so far\n")
    assert b"cli-mcp: the command timed out" in ran.stderr


def test_what_a_command_gave_before_ctrl_c_is_shown(server: Server, tmp_path: Path) -> None:
    command = command_line(server, tmp_path, "call", "--session", "cli", "echo so far; touch begun; sleep 60")
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    time.sleep(3)  # for it to begin: nothing else can look into the session meanwhile
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=30)
    assert (process.returncode, stdout) == (130, b"so far\n"), stderr
    assert b"Traceback" not in stderr


def test_sessions_are_listed_and_ended(server: Server, tmp_path: Path) -> None:
    server.call("mine", "true")

    def sessions(*arguments: str) -> bytes:
        command = command_line(server, tmp_path, "sessions", *arguments)
        return subprocess.run(command, capture_output=True, check=True).stdout

    assert b"mine " in sessions()
    sessions("--end", "mine", "--workspace")
    assert b"mine " not in sessions()
