"""`cli-mcp shell` as a process: on a terminal of its own, and with lines from a pipe."""

import asyncio
import fcntl
import os
import re
import stat
import sys
import termios
from asyncio.subprocess import PIPE, STDOUT, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from cli_mcp.client.shell import is_unfinished, readable_id
from mcp_server.tool import check_session_id
from tests.mcp_server.fake_backend import (
    TOKEN,
    FakeBackend,
    RunningServer,
    eventually,
    outcome,
    running_server,
)

INTERRUPT, END_OF_INPUT = b"\x03", b"\x04"


def command_line(server: RunningServer, tmp_path: Path) -> list[str]:
    token = tmp_path / "token-file"
    token.write_text(TOKEN)
    arguments = ["shell", server.origin, "--session", "s1", "--token-file", str(token)]
    # History belongs to the user; here to nobody but the test.
    script = "import cli_mcp.client.shell as shell, pathlib, sys; "
    script += f"shell.own_state_directory = lambda: pathlib.Path({str(tmp_path / 'state')!r}); "
    script += "import cli_mcp.cli; sys.exit(cli_mcp.cli.run(sys.argv[1:]))"
    return [sys.executable, "-c", script, *arguments]


class Terminal:
    def __init__(self, process: Process, master: int) -> None:
        self.process = process
        self._master = master
        self.screen = b""

    async def type(self, keys: bytes) -> None:
        os.write(self._master, keys)

    async def until(self, text: bytes) -> bytes:
        """What appeared up to `text`, and forget it."""
        async with asyncio.timeout(30):
            while text not in self.screen:
                await asyncio.sleep(0.01)
                try:
                    self.screen += os.read(self._master, 65536)
                except BlockingIOError:
                    continue
                except OSError:  # EIO: the program has ended
                    assert text in self.screen, self.screen
        before, _, self.screen = self.screen.partition(text)
        return before


@asynccontextmanager
async def on_a_terminal(server: RunningServer, tmp_path: Path) -> AsyncIterator[Terminal]:
    master, slave = os.openpty()
    os.set_blocking(master, False)
    process = await asyncio.create_subprocess_exec(
        *command_line(server, tmp_path),
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        env=os.environ | {"TERM": "dumb"},
    )
    os.close(slave)
    try:
        yield Terminal(process, master)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        os.close(master)


async def test_a_conversation_at_the_prompt(tmp_path: Path) -> None:
    async with (
        running_server(FakeBackend(outcome(b"hi"))) as server,
        on_a_terminal(server, tmp_path) as terminal,
    ):
        assert b"Session s1" in await terminal.until(b"/workspace $ ")
        await terminal.type(b"echo hi\n")
        # The prompt comes on a line of its own although the output did not end one.
        assert b"hi\r\n" in await terminal.until(b"/workspace $ ")
        server.backend.outcome = outcome(b"", b"no\n", exit_code=3)
        await terminal.type(b"false\n")
        assert b"no" in await terminal.until(b"/workspace $ ")
        await terminal.type(END_OF_INPUT)
        await terminal.until(b"--session s1")
        assert await terminal.process.wait() == 3
        assert [command for _, command, _ in server.backend.calls] == [":", "echo hi", "false"]


async def test_ctrl_c_interrupts_the_command_and_keeps_the_session(tmp_path: Path) -> None:
    async with running_server() as server, on_a_terminal(server, tmp_path) as terminal:
        await terminal.until(b"/workspace $ ")
        await terminal.type(b"sleep 60\n")
        await eventually(lambda: server.backend.running == 1)
        await terminal.type(INTERRUPT)
        await terminal.until(b"/workspace $ ")
        await eventually(lambda: server.backend.interrupted == ["sleep 60"])
        await terminal.type(b"echo again\n")
        assert b"hi" in await terminal.until(b"/workspace $ ")
        await terminal.type(b"exit\n")
        assert await terminal.process.wait() == 0


async def test_ctrl_c_at_the_prompt_only_drops_the_line(tmp_path: Path) -> None:
    async with running_server() as server, on_a_terminal(server, tmp_path) as terminal:
        await terminal.until(b"/workspace $ ")
        await terminal.type(b"rm -rf")
        await terminal.until(b"rm -rf")
        await terminal.type(INTERRUPT)
        await terminal.until(b"/workspace $ ")
        await terminal.type(b"echo\n")
        await terminal.until(b"/workspace $ ")
        await terminal.type(END_OF_INPUT)
        assert await terminal.process.wait() == 0
        assert [command for _, command, _ in server.backend.calls] == [":", "echo"]


async def test_the_history_outlives_the_prompt_and_is_private(tmp_path: Path) -> None:
    history = tmp_path / "state" / "shell-history"
    async with running_server() as server:
        for command in (b"echo first\n", b"echo second\n"):
            async with on_a_terminal(server, tmp_path) as terminal:
                await terminal.until(b"/workspace $ ")
                await terminal.type(command)
                await terminal.until(b"/workspace $ ")
                await terminal.type(END_OF_INPUT)
                await terminal.process.wait()
    assert history.read_text().splitlines() == ["echo first", "echo second"]
    assert stat.S_IMODE(history.stat().st_mode) == 0o600
    mode = stat.S_IMODE(history.parent.stat().st_mode)
    assert mode & 0o001, f"a local server's sandboxes could not reach their files through {mode:o}"


async def test_a_refused_command_does_not_end_the_prompt(tmp_path: Path) -> None:
    async with running_server() as server, on_a_terminal(server, tmp_path) as terminal:
        await terminal.until(b"/workspace $ ")
        server.backend.error = RuntimeError()
        await terminal.type(b"fail\n")
        assert b"internal error, id" in await terminal.until(b"/workspace $ ")
        await terminal.type(END_OF_INPUT)
        assert await terminal.process.wait() == 0


async def test_lines_from_a_pipe_run_in_order_and_the_last_status_counts(tmp_path: Path) -> None:
    async with running_server(FakeBackend(outcome(b"\xff\n", exit_code=4))) as server:
        process = await asyncio.create_subprocess_exec(
            *command_line(server, tmp_path), stdin=PIPE, stdout=PIPE, stderr=PIPE
        )
        stdout, stderr = await process.communicate(b"cd /tmp\n\n  pwd  \n")
        assert (process.returncode, stdout, stderr) == (4, b"\xff\n\xff\n", b"")
        assert [command for _, command, _ in server.backend.calls] == ["cd /tmp", "  pwd  "]


async def test_commands_of_several_lines_from_a_pipe_are_one_call_each(tmp_path: Path) -> None:
    commands = ["for i in 1 2\ndo\n  echo $i\ndone", "cat <<x\na\n\nb\nx", "echo 'a\n\nb'", "echo a \\\n  b"]
    async with running_server() as server:
        process = await asyncio.create_subprocess_exec(
            *command_line(server, tmp_path), stdin=PIPE, stdout=PIPE, stderr=PIPE
        )
        await process.communicate("\n".join([*commands, "echo 'open"]).encode())
        assert [command for _, command, _ in server.backend.calls] == [*commands, "echo 'open"]


async def test_a_command_goes_on_until_it_is_whole_and_its_exit_code_is_shown(tmp_path: Path) -> None:
    async with (
        running_server(FakeBackend(outcome(b"", exit_code=3))) as server,
        on_a_terminal(server, tmp_path) as terminal,
    ):
        await terminal.until(b"/workspace $ ")
        await terminal.type(b"if false\n")
        await terminal.until(b"> ")
        await terminal.type(b"then true; fi\n")
        assert b"[exit code 3]" in await terminal.until(b"/workspace $ ")
        await terminal.type(b"echo 'never mind\n")
        await terminal.until(b"> ")
        await terminal.type(INTERRUPT)
        await terminal.until(b"/workspace $ ")
        await terminal.type(END_OF_INPUT)
        assert await terminal.process.wait() == 3
        assert [command for _, command, _ in server.backend.calls] == [":", "if false\nthen true; fi"]


@pytest.mark.parametrize(
    "command", ["ls", "echo $(", "fi", "echo 'a", "cat <<x", "a ||", "a \\", "{ a", "f() {"]
)
def test_bash_tells_what_is_unfinished(command: str) -> None:
    assert is_unfinished(command) == (command not in ("ls", "fi"))


def test_nothing_of_an_unfinished_command_is_run(tmp_path: Path) -> None:
    assert is_unfinished(f"touch {tmp_path}/ran; $(touch {tmp_path}/ran) `touch {tmp_path}/ran` '")
    assert not (tmp_path / "ran").exists()


async def test_without_a_server_the_prompt_says_what_to_start(tmp_path: Path) -> None:
    async with running_server() as server:
        command = command_line(server, tmp_path)
    process = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, stderr=STDOUT)
    output, _ = await process.communicate(b"true\n")
    assert process.returncode == 125
    assert re.fullmatch(rb"cli-mcp: No connection to .*cli-mcp local.*\n", output)


@pytest.mark.parametrize("attempt", range(20))
def test_a_readable_id_is_a_session_id(attempt: int) -> None:
    assert check_session_id(readable_id())
