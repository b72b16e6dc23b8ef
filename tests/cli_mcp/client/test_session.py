"""What a client makes of results, against texts; and what it has bash do, run by a bash of this machine."""

import base64
import subprocess
from pathlib import Path
from typing import Any

import pytest

from cli_mcp.client.connection import ClientError, Connection, Target
from cli_mcp.client.session import (
    Result,
    Session,
    Stream,
    parse_result,
    read_command,
    with_stdin,
    write_command,
)

CONTENT = {
    "exit_code": 1,
    "stdout": "é\n",
    "stderr": "",
    "cwd": "/tmp",
    "encoding": "utf-8",
    "truncated": False,
    "stdout_bytes": 3,
    "stderr_bytes": 0,
    "output_file": None,
}
EMPTY = Stream(b"", True, 0)
CUT = "a\n[... 29 bytes left out ...]\nb"
FILES = "/workspace/.cli-mcp"


@pytest.mark.parametrize(
    ("changes", "stdout", "stderr"),
    [
        ({}, Stream("é\n".encode(), True, 3), EMPTY),
        (
            {"encoding": "base64", "stdout": "//4AAQ==", "stdout_bytes": 4},
            Stream(b"\xff\xfe\0\1", True, 4),
            EMPTY,
        ),
        (  # the line about what is left out is as long as that: the text has the right number of bytes
            {"truncated": True, "stdout": CUT, "stdout_bytes": len(CUT), "output_file": f"{FILES}/7.stdout"},
            Stream(CUT.encode(), False, len(CUT), f"{FILES}/7.stdout"),
            EMPTY,
        ),
        (
            {"truncated": True, "stderr": CUT, "stderr_bytes": 90_000, "output_file": f"{FILES}/7.stderr"},
            Stream("é\n".encode(), True, 3),
            Stream(CUT.encode(), False, 90_000, f"{FILES}/7.stderr"),
        ),
        (  # both are cut, and the result names the first file alone
            {
                "truncated": True,
                "stdout": CUT,
                "stdout_bytes": 90_000,
                "stderr": CUT,
                "stderr_bytes": len(CUT),
                "output_file": f"{FILES}/7.stdout",
            },
            Stream(CUT.encode(), False, 90_000, f"{FILES}/7.stdout"),
            Stream(CUT.encode(), False, len(CUT), f"{FILES}/7.stderr"),
        ),
        (
            {"truncated": True, "stdout": CUT, "stdout_bytes": 90_000},
            Stream(CUT.encode(), False, 90_000, None),
            EMPTY,
        ),
    ],
)
def test_a_result_has_the_streams_as_bytes_and_says_which_are_whole(
    changes: dict[str, Any], stdout: Stream, stderr: Stream
) -> None:
    assert parse_result({"structuredContent": CONTENT | changes}) == Result(1, stdout, stderr, "/tmp")


@pytest.mark.parametrize(
    ("changes", "notes"),
    [
        ({"session": "new"}, ("new session",)),
        ({"session": "continued"}, ()),
        ({"session": "new", "notes": ["new session", "memory ran out"]}, ("new session", "memory ran out")),
        ({"notes": ["stdout: 90,000 bytes, all in F", "timed out after 1 s"]}, ()),
    ],
)
def test_notes_are_those_that_the_client_does_not_say_itself(
    changes: dict[str, Any], notes: tuple[str, ...]
) -> None:
    assert parse_result({"structuredContent": CONTENT | changes}).notes == notes


def test_a_tool_error_is_raised_in_the_servers_words() -> None:
    with pytest.raises(ClientError, match="No session"):
        parse_result({"content": [{"type": "text", "text": "No session."}], "isError": True})


@pytest.mark.parametrize(
    "result",
    [
        None,
        [],
        {},
        {"structuredContent": {"exit_code": 1}},
        {"structuredContent": CONTENT | {"stdout": 7}},
        {"structuredContent": CONTENT | {"encoding": "base64", "stdout": "!"}},
        {"structuredContent": CONTENT | {"exit_code": "x"}},
    ],
)
def test_what_is_no_result_is_an_error_and_no_traceback(result: Any) -> None:
    with pytest.raises(ClientError):
        parse_result(result)


class InBash(Session):
    """Runs commands here, with the limit of a server on what a result carries."""

    def __init__(self, tmp_path: Path, limit_bytes: int, setup: str = "") -> None:
        super().__init__(Connection(Target("http://127.0.0.1:1/mcp", "s1", None)))
        self._cwd, self._limit_bytes, self._setup = tmp_path, limit_bytes, setup

    def run(self, command: str, timeout_seconds: Any, on_progress: Any, request_id: Any = None) -> Result:
        script = f"{self._setup}\n{command}"
        ran = subprocess.run(["bash", "-c", script], cwd=self._cwd, capture_output=True, check=False)
        kept = ran.stdout[: self._limit_bytes]
        stdout = Stream(kept, kept == ran.stdout, len(ran.stdout))
        return Result(ran.returncode, stdout, Stream(ran.stderr, True, len(ran.stderr)), "/")


DATA = bytes(range(256)) * 300
HOSTILE = (
    "set -euxo pipefail -o noclobber; alias head=false; tail() { echo no; }; head() { echo no; }; umask 0"
)


@pytest.mark.parametrize("limit_bytes", [100_000, 50_000, 7_001])
@pytest.mark.parametrize("setup", ["", HOSTILE])
def test_a_cut_stream_is_fetched_whole_whatever_the_session_is_like(
    tmp_path: Path, limit_bytes: int, setup: str
) -> None:
    (tmp_path / "it's 7.stdout").write_bytes(DATA)
    session = InBash(tmp_path, limit_bytes, setup)
    stream = Stream(b"", False, len(DATA), str(tmp_path / "it's 7.stdout"))
    assert b"".join(session.rest(stream)) == DATA


@pytest.mark.parametrize(
    ("kept", "missing"), [(DATA[:60_000], "first 60,000 of 76,800"), (b"", "first 0 of")]
)
def test_what_is_not_there_any_more_is_said(tmp_path: Path, kept: bytes, missing: str) -> None:
    file = tmp_path / "7.stdout"
    file.write_bytes(kept)
    got = b""
    with pytest.raises(ClientError, match=missing):
        for piece in InBash(tmp_path, 50_000).rest(Stream(b"", False, len(DATA), str(file))):
            got += piece
    assert got == kept


def test_a_file_that_the_sandbox_removed_is_said(tmp_path: Path) -> None:
    stream = Stream(b"", False, len(DATA), str(tmp_path / "none"))
    with pytest.raises(ClientError, match="first 0 of"):
        list(InBash(tmp_path, 50_000).rest(stream))


@pytest.mark.parametrize("setup", ["", HOSTILE])
@pytest.mark.parametrize("data", [b"a\n", b"\0\xff'$(x)\\", DATA])
def test_what_is_uploaded_is_what_a_command_reads_and_then_gone(
    tmp_path: Path, setup: str, data: bytes
) -> None:
    file = tmp_path / "deep" / "it's stdin"
    half = len(data) // 2
    for piece in (data[:half], data[half:]):
        assert InBash(tmp_path, 1, setup).run(write_command(str(file), piece), None, None).exit_code == 0
    assert file.stat().st_mode & 0o777 == 0o600
    command = with_stdin("cat <<'x' && base64\nit's\nx\n", str(file))
    ran = InBash(tmp_path, 1_000_000, setup).run(command, None, None)
    assert ran.stdout.data.partition(b"\n")[0] == b"it's"
    assert base64.b64decode(ran.stdout.data.partition(b"\n")[2]) == data
    assert not file.exists()


def test_a_command_with_stdin_runs_in_the_sessions_own_shell(tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(b"x\n")
    script = f"{with_stdin('read -r line; cd /; (exit 7)', str(tmp_path / 'in'))}; echo $? $line $PWD"
    assert InBash(tmp_path, 1_000).run(script, None, None).stdout.data == b"7 x /\n"


def test_reading_gives_what_was_asked_for(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"0123456789")
    assert InBash(tmp_path, 100).run(read_command("f", 3, 4), None, None).stdout.data == b"3456"
