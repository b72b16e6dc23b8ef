"""The `cli-mcp call` command as a process, against a server of the test."""

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from pathlib import Path

import pytest

from tests.mcp_server.fake_backend import (
    TOKEN,
    FakeBackend,
    RunningServer,
    eventually,
    outcome,
    running_server,
)


async def start(server: RunningServer, tmp_path: Path, *arguments: str, stdout: int = PIPE) -> Process:
    token = tmp_path / "token"
    token.write_text(TOKEN)
    options = ["call", server.origin, *arguments, "--token-file", str(token)]
    script = "import sys, cli_mcp.cli; sys.exit(cli_mcp.cli.main())"
    return await asyncio.create_subprocess_exec(
        sys.executable, "-c", script, *options, stdin=PIPE, stdout=stdout, stderr=PIPE
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
        assert (key.id, command, timeout_seconds) == ("cli", "x y", 60)


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
