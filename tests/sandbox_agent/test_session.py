import asyncio
import time
from pathlib import Path

import pytest

from cli_mcp.execution import (
    KEEP_OUTPUT,
    ExecutionError,
    Outcome,
    Progress,
    SandboxUnavailable,
    SessionBusy,
    SessionEnded,
)
from sandbox_agent.confined import ConfinedDirectory
from sandbox_agent.launch import DirectLauncher
from sandbox_agent.session import ShellSession
from sandbox_agent.snapshot import Snapshot
from sandbox_agent.state_file import StateFile
from tests.sandbox_agent.conftest import (
    ENVIRONMENT,
    MakeSession,
    TestSession,
    ignore_progress,
    processes_with,
    stdout,
    wait_until,
)


async def started(session: TestSession, command: str) -> "asyncio.Task[object]":
    task: asyncio.Task[object] = asyncio.create_task(session.sh(command))
    while not session.running:
        await asyncio.sleep(0.005)
    return task


# --- the queue --------------------------------------------------------------------------------------------


async def test_calls_run_one_after_the_other_in_their_order(session: TestSession) -> None:
    calls = [session.sh(f"echo {n} >>log; sleep 0.02; echo {n} >>log") for n in range(10)]
    await asyncio.gather(*calls)
    assert (session.directory / "workspace/log").read_text().split() == [
        str(n) for n in range(10) for _ in (0, 1)
    ]


@pytest.mark.parametrize(
    ("waits_seconds", "notes"), [(1.2, 1), (0.2, 0)], ids=["a wait that is told", "a short one"]
)
async def test_the_time_of_a_queued_call_begins_when_it_does(
    session: TestSession, waits_seconds: float, notes: int
) -> None:
    first = await started(session, f"sleep {waits_seconds}")
    outcome = await session.sh("sleep 0.5; echo done", timeout_seconds=0.9)
    assert stdout(outcome) == "done\n"
    assert 490 <= outcome.duration_ms < 890
    assert sum("s for earlier commands of the session" in note for note in outcome.notes) == notes
    await first


async def test_a_queued_call_that_takes_too_long_is_ended_in_its_own_time(session: TestSession) -> None:
    first = await started(session, "sleep 0.5")
    outcome = await session.sh("sleep 60", timeout_seconds=0.6)
    assert outcome.timed_out
    assert 590 < outcome.duration_ms < 3000
    await first


@pytest.mark.parametrize("timeout_seconds", [0.05, 20])
async def test_a_call_that_waits_too_long_did_not_run(
    make_session: MakeSession, timeout_seconds: float
) -> None:
    session = await make_session(queue_seconds=0.2)
    first = await started(session, "sleep 1")
    with pytest.raises(SessionBusy, match="was not run: it waited"):
        await session.sh("touch ran", timeout_seconds=timeout_seconds)
    await first
    assert await session.out("ls") == ""


async def test_a_full_queue_refuses_at_once(make_session: MakeSession) -> None:
    session = await make_session(queue_limit=2)
    first = await started(session, "sleep 0.7")
    waiting = [asyncio.create_task(session.sh("echo queued")) for _ in range(2)]
    await asyncio.sleep(0.05)
    began = time.monotonic()
    with pytest.raises(SessionBusy, match="was not run"):
        await session.sh("touch ran")
    assert time.monotonic() - began < 0.4
    await first
    assert [stdout(await call) for call in waiting] == ["queued\n"] * 2
    assert await session.out("ls") == ""


async def test_a_thousand_calls_at_once_are_run_or_refused(session: TestSession) -> None:
    results = await asyncio.gather(*(session.sh(f"echo {n}") for n in range(1000)), return_exceptions=True)
    refused = [result for result in results if isinstance(result, SessionBusy)]
    assert len(refused) == 1000 - 1 - 16
    assert await session.out("echo alive") == "alive\n"


async def test_a_call_cancelled_in_the_queue_never_runs(session: TestSession) -> None:
    first = await started(session, "sleep 0.5")
    waiting = asyncio.create_task(session.sh("touch ran"))
    later = asyncio.create_task(session.sh("ls"))
    await asyncio.sleep(0.05)
    waiting.cancel()
    assert stdout(await later) == ""
    await first


async def test_a_call_that_is_cancelled_for_its_output_gives_it_and_the_shell_lives_on(
    session: TestSession,
) -> None:
    running = await started(session, "X=kept; echo so far; sleep 60")
    await asyncio.sleep(0.3)
    running.cancel(KEEP_OUTPUT)
    outcome = await running
    assert isinstance(outcome, Outcome)
    assert stdout(outcome) == "so far\n"
    assert outcome.exit_code != 0
    assert outcome.duration_ms < 10_000
    assert await session.out("echo $X") == "kept\n"


async def test_a_call_that_is_cancelled_without_has_no_result(session: TestSession) -> None:
    running = await started(session, "echo so far; sleep 60")
    await asyncio.sleep(0.1)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert await session.out("echo alive") == "alive\n"


# --- progress ---------------------------------------------------------------------------------------------


async def test_progress_tells_of_waiting_and_of_output(session: TestSession) -> None:
    seen: list[Progress] = []
    first = await started(session, "sleep 1.3")
    await session.run("echo line one; printf 'line two'; sleep 1.4", 20, seen.append)
    await first
    assert seen[0].queued
    assert not seen[-1].queued
    assert seen[-1].last_line == "line two"
    assert seen[-1].output_bytes == len("line one\nline two")
    assert [entry.elapsed_seconds for entry in seen] == sorted(entry.elapsed_seconds for entry in seen)


# --- ends -------------------------------------------------------------------------------------------------


async def test_closing_ends_running_and_waiting_calls_with_the_reason(session: TestSession) -> None:
    mark = f"64.{session.directory.stat().st_ino}"
    running = await started(session, f"setsid sleep {mark} & sleep {mark}")
    assert await asyncio.to_thread(wait_until, lambda: len(processes_with(mark)) >= 2)
    waiting = asyncio.create_task(session.sh("echo never"))
    await asyncio.sleep(0.05)
    began = time.monotonic()
    await session.close("ended by DELETE")
    assert time.monotonic() - began < 2
    for call in (running, waiting):
        with pytest.raises(SessionEnded, match="ended by DELETE"):
            await call
    assert await asyncio.to_thread(wait_until, lambda: processes_with(mark) == [])
    with pytest.raises(SessionEnded, match="ended by DELETE"):
        await session.sh("echo never")


async def test_closing_during_a_flood_of_output_is_prompt(session: TestSession) -> None:
    call = await started(session, "yes")
    await asyncio.sleep(0.3)
    await session.close("over")
    with pytest.raises(SessionEnded):
        await call


async def test_closing_twice_is_no_error_and_the_first_reason_stays(session: TestSession) -> None:
    await asyncio.gather(session.close("first"), session.close("second"))
    with pytest.raises(SessionEnded, match="first"):
        await session.sh("true")


async def test_a_command_with_nul_is_refused(session: TestSession) -> None:
    with pytest.raises(ExecutionError, match="NUL"):
        await session.sh("echo a\0b")


async def test_a_lone_surrogate_in_a_command_breaks_nothing(session: TestSession) -> None:
    assert await session.out("echo ok # \ud800") == "ok\n"


async def test_a_sandbox_that_cannot_be_launched_is_unavailable(tmp_path: Path) -> None:
    with ConfinedDirectory(tmp_path) as workspace:
        launcher = DirectLauncher(tmp_path, tmp_path / "nowhere", ENVIRONMENT)
        session = ShellSession(launcher, workspace)
        with pytest.raises(SandboxUnavailable):
            await session.start()
        await session.close("over")


async def test_idle_since_and_running_follow_the_commands(session: TestSession) -> None:
    before = session.idle_since
    call = await started(session, "sleep 0.2")
    assert session.running
    await call
    assert not session.running
    assert session.idle_since > before


# --- state over a restart of this process -----------------------------------------------------------------


async def test_a_new_session_finds_the_saved_state(tmp_path: Path) -> None:
    for name in ("exchange", "workspace"):
        (tmp_path / name).mkdir()
    state_file = StateFile(tmp_path / "state")
    outputs = []
    for command in ("X=1; mkdir d; cd d; f() { echo f$X; }", "f; pwd"):
        with ConfinedDirectory(tmp_path / "workspace") as workspace:
            launcher = DirectLauncher(tmp_path / "exchange", tmp_path / "workspace", ENVIRONMENT)
            session = ShellSession(launcher, workspace, state_file=state_file)
            await session.start()
            outputs.append(stdout(await session.run(command, 20, ignore_progress)))
            await session.close("restart")
    assert outputs == ["", f"f1\n{tmp_path}/workspace/d\n"]


class CountingStateFile(StateFile):
    saves = 0

    def save(self, snapshot: Snapshot) -> None:
        self.saves += 1
        super().save(snapshot)


async def test_a_state_is_saved_when_a_new_shell_would_get_another_one(tmp_path: Path) -> None:
    for name in ("exchange", "workspace"):
        (tmp_path / name).mkdir()
    state_file = CountingStateFile(tmp_path / "state")
    with ConfinedDirectory(tmp_path / "workspace") as workspace:
        launcher = DirectLauncher(tmp_path / "exchange", tmp_path / "workspace", ENVIRONMENT)
        session = ShellSession(launcher, workspace, state_file=state_file)
        await session.start()
        saves = []
        for command in (
            *("true", "false", "echo $RANDOM $EPOCHREALTIME $EPOCHSECONDS $LINENO $HISTCMD"),
            *("X=1", "X=1", "cd /", f"rm {tmp_path}/state", "true"),
        ):
            before = state_file.saves
            await session.run(command, 20, ignore_progress)
            saves.append((command, state_file.saves - before))
        await session.close("done")
    assert saves == [
        ("true", 1),  # the first
        ("false", 0),
        ("echo $RANDOM $EPOCHREALTIME $EPOCHSECONDS $LINENO $HISTCMD", 0),
        ("X=1", 1),
        ("X=1", 0),
        ("cd /", 1),
        (f"rm {tmp_path}/state", 1),
        ("true", 0),
    ]
