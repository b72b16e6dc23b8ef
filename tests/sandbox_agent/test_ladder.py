"""A command that runs out of time leaves no process behind, and the shell keeps its state if it can."""

import asyncio
import time

import pytest

from tests.sandbox_agent.conftest import TestSession, alive, processes_with, wait_until

IGNORE = "import signal,time\nfor s in (2,15,1,3): signal.signal(s, signal.SIG_IGN)\ntime.sleep(60)"
FLEE = (
    "import os,signal,time\nfor s in (2,15): signal.signal(s, signal.SIG_IGN)\nend = time.time() + 20\n"
    "while time.time() < end:\n  if os.fork(): os._exit(0)\n  os.setsid(); time.sleep(0.0005)"
)
# Each command shows in its processes' command lines; {mark} is a number that no other test uses.
STUBBORN = {
    "sleep": "sleep {mark}; echo after",
    "list": "sleep {mark} && echo after || echo after",
    "loop": "while :; do sleep {mark}; done; echo after",
    "pipeline": "sleep {mark} | sleep {mark} | cat; echo after",
    "subshell": "(sleep {mark}; echo after); echo after",
    "function": "f() {{ sleep {mark}; echo after; }}; f; echo after",
    "substitution": "x=$(sleep {mark}); echo after",
    "process-substitution": "cat <(sleep {mark}); echo after",
    "own-background-jobs": "sleep {mark} & sleep {mark} & wait; echo after",
    "disowned": "sleep {mark} & disown; sleep {mark}; echo after",
    "nohup": "nohup sleep {mark} >/dev/null 2>&1 & sleep {mark}; echo after",
    "setsid": "setsid sleep {mark} & setsid -w sleep {mark}; echo after",
    "double-fork": "(setsid sleep {mark} &) ; sleep {mark}; echo after",
    "other-shell": "bash -c 'sleep {mark} & sleep {mark} & wait'; echo after",
    "other-shell-with-job-control": "bash -mc 'sleep {mark} & sleep {mark} & wait'; echo after",
    "ignores-signals": f'python3 -c "{IGNORE}" {{mark}}; echo after',
    "forks-and-ends-all-the-time": f'python3 -c "{FLEE}" {{mark}}; sleep {{mark}}; echo after',
    "ignores-int": "(trap '' INT; sleep {mark}; sleep {mark}); echo after",
    "stopped": "sleep {mark} & kill -STOP $!; sleep {mark}; echo after",
    "no-job-control": "set +m; sleep {mark}; echo after",
    "reads-a-fifo": "mkfifo f; sleep {mark} & read x <f; echo after",
    "coproc": "coproc sleep {mark}; wait; echo after",
    "builtin-loop-with-child": "sleep {mark} & while :; do :; done; echo after",
    "respawning": "bash -c 'trap \"\" INT TERM; while :; do sleep {mark}; done'; echo after",
    "int-trap": "trap 'echo interrupted' INT; sleep {mark}; sleep {mark}; sleep {mark}",
}  # fmt: skip


@pytest.mark.parametrize(("number", "command"), list(enumerate(STUBBORN.values())), ids=STUBBORN.keys())
async def test_a_timeout_ends_every_process_and_keeps_the_shell(
    session: TestSession, number: int, command: str
) -> None:
    mark = f"6{number}.{session.directory.stat().st_ino}"
    await session.sh("STATE=kept")
    began = time.monotonic()
    outcome = await session.sh(command.format(mark=mark), timeout_seconds=0.4)
    assert time.monotonic() - began < 6
    assert (outcome.timed_out, outcome.exit_code) == (True, 124)
    assert processes_with(mark) == []
    assert b"after" not in outcome.stdout.head
    assert not outcome.shell_restarted
    assert outcome.background == ()
    assert await session.out('echo "$STATE $?"') == "kept 124\n"


@pytest.mark.parametrize(
    "command",
    [
        "while :; do :; done",
        "trap '' INT TERM; sleep 60",
        "for ((;;)); do :; done",
        "read x < <(sleep 60)",
        "kill -STOP $$",
        "wait -n 2>/dev/null; mkfifo g; exec 9<g",
    ],
)
async def test_a_builtin_that_does_not_return_is_interrupted(session: TestSession, command: str) -> None:
    await session.sh("STATE=kept")
    outcome = await session.sh(command, timeout_seconds=0.4)
    assert outcome.timed_out
    assert not outcome.shell_restarted
    assert await session.out("echo $STATE") == "kept\n"


@pytest.mark.parametrize("command", ["trap '' INT TERM; while :; do :; done", "exec sleep 60"])
async def test_a_shell_that_cannot_be_interrupted_is_replaced(session: TestSession, command: str) -> None:
    await session.sh("STATE=kept")
    outcome = await session.sh(command, timeout_seconds=0.4)
    assert (outcome.timed_out, outcome.shell_restarted, outcome.exit_code) == (True, True, 124)
    assert await session.out("echo $STATE") == "kept\n"


async def test_jobs_of_earlier_commands_and_what_they_start_are_spared(session: TestSession) -> None:
    job = int(await session.out("(while :; do sleep 0.1; done) & echo $!"))
    orphan = int(await session.out("(setsid sleep 60 & echo $!)"))
    outcome = await session.sh("sleep 60", timeout_seconds=0.7)
    assert outcome.timed_out
    assert alive(job) and alive(orphan)
    assert {job, orphan} <= set(outcome.background)


async def test_processes_that_replace_themselves_all_the_time_end(session: TestSession) -> None:
    # Eight at any time, each of which starts its successor and ends: one is always too young to be seen.
    storm = "f() { (sleep 0.01; f) & }; for i in 1 2 3 4 5 6 7 8; do f; done; sleep 60"
    outcome = await session.sh(storm, timeout_seconds=0.3)
    assert outcome.timed_out
    await asyncio.sleep(0.3)
    assert (await session.sh("true")).background == ()


async def test_a_killed_command_says_why_and_did_not_time_out(session: TestSession) -> None:
    call = asyncio.create_task(session.sh("STATE=lost; sleep 60; echo after"))
    await asyncio.sleep(0.3)
    began = time.monotonic()
    await session.kill_command("The workspace is full.")
    outcome = await call
    assert time.monotonic() - began < 3
    assert "The workspace is full." in outcome.notes
    assert outcome.exit_code == 137
    assert not outcome.timed_out
    assert outcome.stdout.head == b""


async def test_killing_when_nothing_runs_does_not_touch_the_next_command(session: TestSession) -> None:
    await session.kill_command("too late")
    outcome = await session.sh("sleep 0.2; echo done")
    assert (outcome.stdout.head, outcome.notes) == (b"done\n", ())


async def test_a_stop_that_comes_too_late_does_not_touch_the_next_command(session: TestSession) -> None:
    for turns in range(60):
        call = asyncio.create_task(session.sh("true"))
        await asyncio.sleep(0.0001 * turns)
        await session.kill_command("perhaps too late")
        await call
        outcome = await session.sh("echo next")
        assert (outcome.stdout.head, outcome.exit_code, outcome.notes) == (b"next\n", 0, ())


async def test_a_cancelled_call_ends_its_command_and_the_next_one_runs(session: TestSession) -> None:
    mark = f"63.{session.directory.stat().st_ino}"
    call = asyncio.create_task(session.sh(f"STATE=kept; sleep {mark}; STATE=changed"))
    assert await asyncio.to_thread(wait_until, lambda: processes_with(mark) != [])
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert await session.out("echo $STATE") == "kept\n"
    assert processes_with(mark) == []


async def test_a_call_that_is_cancelled_at_once_does_not_run_to_its_end(session: TestSession) -> None:
    call = asyncio.create_task(session.sh("sleep 20"))
    await asyncio.sleep(0)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    began = time.monotonic()
    assert await session.out("echo next") == "next\n"
    assert time.monotonic() - began < 8


async def test_many_timeouts_in_a_row_lose_no_command(session: TestSession) -> None:
    for number in range(12):
        await session.sh(f"N={number}; sleep 60; N=wrong", timeout_seconds=0.05)
        assert await session.out("echo $N") == f"{number}\n"
