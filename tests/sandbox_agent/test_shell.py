"""What a result says when the shell or its sandbox had to be replaced."""

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from cli_mcp.execution import SandboxUnavailable
from sandbox_agent import processes
from sandbox_agent.confined import ConfinedDirectory
from sandbox_agent.launch import DirectLauncher, Launched
from sandbox_agent.snapshot import Snapshot
from sandbox_agent.state_file import StateFile
from tests.forged_results import HEADLESS
from tests.sandbox_agent.conftest import ENVIRONMENT, TestSession, alive, stdout, wait_until


@pytest.mark.parametrize(
    ("command", "exit_code"),
    [
        ("exit 3", 3),
        ("exit 300", 300 % 256),
        ("exec true", 0),
        ("exec sh -c 'exit 5'", 5),
        ("set -e; (exit 6)", 6),
        ("kill -9 $$", 128 + signal.SIGKILL),
        ("kill -SEGV $$", 128 + signal.SIGSEGV),
        ("kill -HUP $$", 128 + signal.SIGHUP),
    ],
)
async def test_the_shells_end_is_the_commands_and_costs_nothing_but_the_shell(
    session: TestSession, command: str, exit_code: int
) -> None:
    job = int(await session.out("sleep 60 >/dev/null 2>&1 & echo $!"))
    pid = await session.out("echo $$")
    outcome = await session.sh(f"echo before; {command}")
    assert (outcome.exit_code, outcome.shell_restarted) == (exit_code, True)
    assert [note.partition(".")[0] for note in outcome.notes] == ["The command ended the shell"]
    assert stdout(outcome) == "before\n"
    assert alive(job)
    assert job in outcome.background
    assert await session.out("echo $$") != pid


async def test_a_shell_that_was_killed_between_commands_is_replaced_and_that_is_said(
    session: TestSession,
) -> None:
    shell = int(await session.out("STATE=kept; echo $$"))
    os.kill(shell, signal.SIGKILL)
    assert wait_until(lambda: not alive(shell))
    outcome = await session.sh("echo $STATE")
    assert (stdout(outcome), outcome.shell_restarted) == ("kept\n", True)
    assert any("had ended since" in note for note in outcome.notes)


async def test_a_sandbox_that_was_killed_between_commands_is_replaced_and_that_is_said(
    session: TestSession,
) -> None:
    supervisor = int(await session.out("STATE=kept; sleep 60 & echo $PPID"))
    os.kill(supervisor, signal.SIGKILL)
    assert wait_until(lambda: not alive(supervisor))
    outcome = await session.sh("echo $STATE")
    assert (stdout(outcome), outcome.shell_restarted, outcome.background) == ("kept\n", True, ())
    assert any("background processes are gone" in note for note in outcome.notes)


async def test_a_state_too_large_to_keep_is_said_when_it_matters(session: TestSession) -> None:
    await session.sh("SMALL=1")
    outcome = await session.sh("LARGE=$(head -c 9000000 /dev/zero | tr '\\0' x); SMALL=2")
    assert outcome.notes == ()
    assert await session.out("echo ${#LARGE} $SMALL") == "9000000 2\n"
    outcome = await session.sh("exit")
    assert any("could not be kept" in note for note in outcome.notes)
    assert await session.out("echo ${#LARGE} $SMALL") == "0 1\n"


async def test_a_state_that_breaks_a_new_shell_is_given_up_and_that_is_said(tmp_path: Path) -> None:
    for name in ("exchange", "workspace"):
        (tmp_path / name).mkdir()
    state_file = StateFile(tmp_path / "state")
    state_file.save(Snapshot(b"/", b"kill -9 $$\n", b"", b"", b""))
    launcher = DirectLauncher(tmp_path / "exchange", tmp_path / "workspace", ENVIRONMENT)
    with ConfinedDirectory(tmp_path / "workspace") as workspace:
        session = TestSession(launcher, workspace, state_file=state_file)
        await session.start()
        try:
            outcome = await session.sh("echo on")
            assert stdout(outcome) == "on\n"
            assert any("could not be brought back" in note for note in outcome.notes)
            assert (await session.sh("true")).notes == ()
        finally:
            await session.close("over")


async def test_a_shell_that_cannot_report_is_replaced_and_that_is_said(session: TestSession) -> None:
    await session.sh("STATE=kept")
    outcome = await session.sh("STATE=changed; enable -n printf", 10)
    assert outcome.shell_restarted
    assert any("could not report" in note for note in outcome.notes)
    assert await session.out("echo $STATE") == "kept\n"


class MemoryLauncher(DirectLauncher):
    """Knows of one death by memory, and can be told to start nothing any more."""

    causes: list[str]
    refuses = False

    async def launch(
        self, argv: Sequence[str], *, stdin: int, output: int, pass_fds: Sequence[int]
    ) -> Launched:
        if self.refuses:
            raise SandboxUnavailable("no room")
        return await super().launch(argv, stdin=stdin, output=output, pass_fds=pass_fds)

    def cause_of_death(self) -> str | None:
        return self.causes.pop() if self.causes else None


async def test_the_launchers_causes_and_refusals_reach_the_caller(tmp_path: Path) -> None:
    for name in ("exchange", "workspace"):
        (tmp_path / name).mkdir()
    launcher = MemoryLauncher(tmp_path / "exchange", tmp_path / "workspace", ENVIRONMENT)
    launcher.causes = []
    with ConfinedDirectory(tmp_path / "workspace") as workspace:
        session = TestSession(launcher, workspace)
        await session.start()
        try:
            for command in ("sh -c 'kill -9 $$'", "kill -9 $$"):
                launcher.causes = ["Memory ran out at 512 MiB."]
                outcome = await session.sh(f"STATE=kept; {command}")
                assert outcome.exit_code == 137
                assert "Memory ran out at 512 MiB." in outcome.notes
            launcher.refuses = True
            supervisor = int(await session.out("echo $PPID"))
            os.kill(supervisor, signal.SIGKILL)
            assert wait_until(lambda: not alive(supervisor))
            with pytest.raises(SandboxUnavailable, match="no room"):
                await session.sh("echo never")
            launcher.refuses = False
            assert await session.out("echo $STATE") == "kept\n"
        finally:
            await session.close("over")


async def test_a_process_without_its_first_thread_is_listed_and_ends_with_its_command(
    session: TestSession,
) -> None:
    (session.directory / "workspace" / "headless.py").write_text(HEADLESS)
    outcome = await session.sh(f"{sys.executable} headless.py & sleep 0.5; echo $!")
    pid = int(stdout(outcome))
    assert pid in outcome.background
    os.kill(pid, signal.SIGKILL)
    outcome = await session.sh(f"{sys.executable} headless.py & echo $!; sleep 60", timeout_seconds=1)
    assert outcome.timed_out
    assert not [
        it for it in processes.all_processes().values() if it.pid == int(stdout(outcome)) and it.alive
    ]
