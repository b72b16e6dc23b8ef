"""The `cli-mcp call` command as a process, against a server of the test."""

import asyncio
import base64
import os
import shlex
import signal
import subprocess
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from dataclasses import replace
from pathlib import Path

import pytest

from cli_mcp.execution import Outcome
from mcp_server.backend import OpenSession, SessionState
from tests.mcp_server.fake_backend import (
    TOKEN,
    FakeBackend,
    RunningServer,
    eventually,
    outcome,
    running_server,
)


async def start(
    server: RunningServer, tmp_path: Path, *arguments: str, stdin: int = DEVNULL, stdout: int = PIPE
) -> Process:
    token = tmp_path / "token"
    token.write_text(TOKEN)
    options = ["call", server.origin, "--token-file", str(token), *arguments]
    script = "import sys, cli_mcp.cli; sys.exit(cli_mcp.cli.main())"
    return await asyncio.create_subprocess_exec(
        sys.executable, "-c", script, *options, stdin=stdin, stdout=stdout, stderr=PIPE
    )


async def run(server: RunningServer, tmp_path: Path, *arguments: str) -> tuple[int | None, bytes, bytes]:
    process = await start(server, tmp_path, *arguments)
    stdout, stderr = await process.communicate()
    return process.returncode, stdout, stderr


async def test_the_output_goes_to_the_same_streams_byte_for_byte(tmp_path: Path) -> None:
    backend = FakeBackend(outcome(b"\xff\x00out", b"err\r\n\xfe", exit_code=7))
    async with running_server(backend) as server:
        assert await run(server, tmp_path, "x y") == (7, b"\xff\x00out", b"err\r\n\xfe")
        (key, command, timeout_seconds) = backend.calls[0]
        assert (key.id, command, timeout_seconds) == ("cli", "x y", 55)


@pytest.mark.parametrize(
    "arguments", [("x", "--session", "s9", "--timeout", "7"), ("--session", "s9", "--timeout", "7", "x")]
)
async def test_session_and_timeout_are_passed_on(arguments: tuple[str, ...], tmp_path: Path) -> None:
    """Before or after the command, as the first screen of local mode writes it."""
    async with running_server() as server:
        assert await run(server, tmp_path, *arguments) == (0, b"hi\n", b"")
        (key, _, timeout_seconds) = server.backend.calls[0]
        assert (key.id, timeout_seconds) == ("s9", 7)


async def test_progress_goes_to_stderr(tmp_path: Path) -> None:
    async with running_server() as server:
        status, stdout, stderr = await run(server, tmp_path, "sleep 0.7")
        assert (status, stdout) == (0, b"hi\n")
        assert b"half way" in stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("x", "--session", "Not-Valid"), b"lower-case"),
        (("x", "--session", "s\u00e9ance"), b"lower-case"),
        (("x", "--session", ""), b"lower-case"),
        (("x", "--session", "a b"), b"lower-case"),
        (("x", "--session", "s\n1"), b"lower-case"),
        (("x", "--session", "\u4f1a\u8bdd"), b"lower-case"),
        (("x", "--timeout", "-1"), b"`timeout`"),
        (("   ",), b"`command`"),
    ],
)
async def test_a_call_without_result_is_status_125_and_a_line_that_says_why(
    tmp_path: Path, arguments: tuple[str, ...], words: bytes
) -> None:
    async with running_server() as server:
        status, stdout, stderr = await run(server, tmp_path, *arguments)
        assert (status, stdout) == (125, b"")
        assert stderr.startswith(b"cli-mcp: ")
        assert words in stderr
        assert b"Traceback" not in stderr


async def test_ctrl_c_interrupts_the_command_on_the_server(tmp_path: Path) -> None:
    async with running_server() as server:
        process = await start(server, tmp_path, "sleep 60")
        await eventually(lambda: server.backend.running == 1, 20)
        process.send_signal(signal.SIGINT)
        _, stderr = await process.communicate()
        assert process.returncode == 130
        assert b"Traceback" not in stderr
        await eventually(lambda: server.backend.interrupted == ["sleep 60"])


async def test_a_reader_that_has_seen_enough_causes_no_traceback(tmp_path: Path) -> None:
    async with running_server(FakeBackend(outcome(b"line\n" * 10_000))) as server:
        read_end, write_end = os.pipe()
        process = await start(server, tmp_path, "x", stdout=write_end)
        os.close(read_end)
        os.close(write_end)
        assert process.stderr is not None
        assert await process.stderr.read() == b""
        assert await process.wait() == 141


@pytest.mark.parametrize("arguments", [("call", "x"), ("sessions",), ("--help",), ("call", "--help")])
async def test_a_full_disk_is_one_line_and_no_traceback(arguments: tuple[str, ...], tmp_path: Path) -> None:
    async with running_server() as server:
        server.backend.sessions = [("local", OpenSession("s1", 2.0))]
        status, stderr = await on_a_full_disk(server, tmp_path, *arguments)
        assert (status, stderr) == (125, b"cli-mcp: cannot write the output: No space left on device\n")


async def on_a_full_disk(
    server: RunningServer, tmp_path: Path, name: str, *arguments: str
) -> tuple[int | None, bytes]:
    token = tmp_path / "token"
    token.write_text(TOKEN)
    options = () if "--help" in (name, *arguments) else (server.origin, "--token-file", str(token))
    script = "import sys, cli_mcp.cli; sys.exit(cli_mcp.cli.main())"
    command = [sys.executable, "-c", script, name, *options, *arguments]
    with open("/dev/full", "wb") as full:
        process = await asyncio.create_subprocess_exec(*command, stdin=DEVNULL, stdout=full, stderr=PIPE)
        _, stderr = await process.communicate()
    return process.returncode, stderr


async def test_stdin_is_what_the_command_reads(tmp_path: Path) -> None:
    async with running_server() as server:
        process = await start(server, tmp_path, "cat 'a b'", stdin=PIPE)
        await process.communicate(b"\xff line\n")
        upload, command = (command for _, command, _ in server.backend.calls)
    file = command.rpartition(" < ")[2]
    assert base64.b64encode(b"\xff line\n").decode() in upload
    assert file in upload
    assert shlex.quote("cat 'a b'") in command


async def test_an_empty_stdin_and_one_that_is_to_be_left_alone_change_nothing(tmp_path: Path) -> None:
    async with running_server() as server:
        process = await start(server, tmp_path, "x", stdin=PIPE)
        await process.communicate(b"")
        process = await start(server, tmp_path, "--no-stdin", "x", stdin=PIPE)
        assert await process.wait() == 0
        assert [command for _, command, _ in server.backend.calls] == ["x", "x"]


@pytest.mark.parametrize(
    ("ended", "status", "line"),
    [
        (
            replace(outcome(b"so far\n", exit_code=124), timed_out=True),
            124,
            b"cli-mcp: the command timed out",
        ),
        (outcome(b"so far\n", exit_code=124), 124, b"cli-mcp: exit status 124 is the command's own"),
        (outcome(b"so far\n", exit_code=125), 125, b"cli-mcp: exit status 125 is the command's own"),
        (outcome(b"so far\n", exit_code=1), 1, b""),
    ],
)
async def test_our_own_exit_statuses_and_the_commands_are_told_apart(
    tmp_path: Path, ended: Outcome, status: int, line: bytes
) -> None:
    async with running_server(FakeBackend(ended)) as server:
        exit_status, stdout, stderr = await run(server, tmp_path, "x")
        assert (exit_status, stdout) == (status, b"so far\n")
        assert stderr.startswith(line)
        assert bool(stderr) == bool(line)


async def test_a_new_session_is_told_on_stderr_unless_quiet(tmp_path: Path) -> None:
    async with running_server(FakeBackend(session_state=SessionState.NEW)) as server:
        assert await run(server, tmp_path, "x") == (0, b"hi\n", b"cli-mcp: new session\n")
        assert await run(server, tmp_path, "x", "--quiet") == (0, b"hi\n", b"")


@pytest.mark.parametrize(
    ("arguments", "remedy"),
    [
        (("echo", "hi"), b"'echo hi'"),
        (("ls", "-l"), b"quote the whole command"),
        (("-x", "ls"), b"quote the whole command"),
        ((), b"no command"),
        (("ls", "--timeout", "soon"), b"seconds"),
        (("ls", "--timeout", "nan"), b"seconds"),
    ],
)
async def test_wrong_use_is_one_line_with_the_remedy(
    tmp_path: Path, arguments: tuple[str, ...], remedy: bytes
) -> None:
    async with running_server() as server:
        status, stdout, stderr = await run(server, tmp_path, *arguments)
        assert (status, stdout) == (2, b"")
        assert remedy in stderr
        assert stderr.count(b"\n") == 1
        assert server.backend.calls == []


def test_no_heavy_module_is_imported() -> None:
    """They would cost more than most commands take: 0.9 s, all together."""
    script = "import sys, cli_mcp.cli, cli_mcp.client.call, cli_mcp.client.sessions; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    heavy = {"asyncio", "mcp", "pydantic", "httpx2", "anyio", "aiohttp", "cryptography", "yaml", "starlette"}
    assert heavy & set(loaded.stdout.split()) == set()
