import asyncio
import ctypes
import os
from collections.abc import Callable

import pytest

from sandbox_agent.protocol import Report, ShellExit
from sandbox_agent.sandbox import Mailbox, SandboxDeath, Stop
from tests.sandbox_agent.conftest import TestSession, alive

LATER = 10.0


def now() -> float:
    return asyncio.get_running_loop().time()


_PIDFD_GETFD = 438  # of every architecture


async def test_answers_come_in_order_and_a_stop_before_them() -> None:
    mailbox = Mailbox()
    stop = Stop("why", at_once=True)
    for item in (ShellExit(1), SandboxDeath(), stop, Stop("a second one", at_once=False)):
        mailbox.put(item)
    until = now() + LATER
    assert await mailbox.answer_or_stop(until) == stop
    assert await mailbox.answer_or_stop(until) == ShellExit(1)
    assert await mailbox.answer_or_stop(until) == SandboxDeath()
    assert await mailbox.answer_or_stop(now() + 0.01) is None


async def test_whoever_asks_for_a_new_report_still_hears_that_the_shell_has_ended() -> None:
    mailbox = Mailbox()
    for item in (Report(0, 1, b"/", None), ShellExit(139)):
        mailbox.put(item)
    mailbox.drop_reports()
    assert await mailbox.answer(now() + LATER) == ShellExit(139)


async def test_a_stop_does_not_end_a_wait_for_an_answer() -> None:
    mailbox = Mailbox()
    mailbox.put(Stop("why", at_once=True))
    assert await mailbox.answer(now() + 0.05) is None
    mailbox.drop_stop()
    assert await mailbox.answer_or_stop(now() + 0.01) is None


async def test_a_wait_ends_when_something_comes() -> None:
    mailbox = Mailbox()
    asyncio.get_running_loop().call_later(0.02, mailbox.put, ShellExit(0))
    began = now()
    assert await mailbox.answer(began + LATER) == ShellExit(0)
    assert now() - began < LATER / 2


async def test_a_cancelled_wait_loses_no_answer() -> None:
    mailbox = Mailbox()
    wait = asyncio.create_task(mailbox.answer(now() + LATER))
    await asyncio.sleep(0)
    mailbox.put(ShellExit(0))
    wait.cancel()
    with pytest.raises(asyncio.CancelledError):
        await wait
    assert await mailbox.answer(now()) == ShellExit(0)


async def test_destroying_twice_at_the_same_time_is_done_once(session: TestSession) -> None:
    job = int(await session.out("setsid sleep 60 >/dev/null 2>&1 & echo $!"))
    sandbox = session._shell._sandbox
    assert sandbox is not None
    await asyncio.gather(*(sandbox.destroy() for _ in range(3)))
    assert not sandbox.running
    assert not alive(job) and not alive(sandbox.root.pid)
    assert await session.out("echo next") == "next\n"


async def test_a_sandbox_that_writes_into_its_reports_delays_this_process_once_for_each_command(
    session: TestSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    await session.out("true")
    sandbox = session._shell._sandbox
    assert sandbox is not None
    sleeps: list[float] = []
    monkeypatch.setattr("sandbox_agent.sandbox.time.sleep", sleeps.append)
    # Where bash puts aside what is closed for the command.
    noise = "for n in {1..100}; do for fd in {10..16}; do echo $n >&$fd; done; sleep 0.001; done 2>/dev/null"
    assert await session.out(f"{noise}; echo done") == "done\n"
    assert len(sleeps) == 1
    assert sleeps[0] < 0.001


def taken_end(pid: int, fd: int) -> int:
    """A descriptor of another process, which the superuser may take."""
    pidfd = os.pidfd_open(pid)
    try:
        taken = ctypes.CDLL(None, use_errno=True).syscall(_PIDFD_GETFD, pidfd, fd, 0)
    finally:
        os.close(pidfd)
    if taken < 0:
        pytest.skip("only the superuser can take the shell's descriptors")
    os.set_blocking(taken, False)
    return int(taken)


async def flood(fd: int, data: bytes, seconds: float, while_true: Callable[[], bool]) -> int:
    """Write `data` for as long as that; returns how many bytes were taken."""
    taken, until = 0, now() + seconds
    while now() < until and while_true():
        try:
            taken += os.write(fd, data)
        except BlockingIOError:
            await asyncio.sleep(0.001)
    return taken


async def test_who_floods_the_exits_is_slowed_and_then_ended_with_a_reason(session: TestSession) -> None:
    job = int(await session.out("setsid sleep 60 >/dev/null 2>&1 & echo $!"))
    sandbox = session._shell._sandbox
    assert sandbox is not None
    exits = taken_end(sandbox.root.pid, sandbox._fds.exits)
    taken = await flood(exits, b"0" * 4096, 30, while_true=lambda: sandbox.running)
    os.close(exits)
    assert taken < 1 << 20
    outcome = await session.sh("echo next")
    assert outcome.stdout.head == b"next\n"
    assert outcome.shell_restarted and "flooded" in " ".join(outcome.notes)
    assert not alive(job)


async def test_reports_are_read_only_while_one_is_waited_for(session: TestSession) -> None:
    await session.out("true")
    sandbox = session._shell._sandbox
    assert sandbox is not None
    reports = taken_end(sandbox.root.pid, sandbox._fds.reports)
    taken = await flood(reports, b"0" * 4096, 0.3, while_true=lambda: True)
    assert taken <= 1 << 18  # what fits into the socket
    os.close(reports)
    assert await session.out("echo next") == "next\n"
