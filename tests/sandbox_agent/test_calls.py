"""No call runs twice, whatever its connections do, and what is remembered is bounded."""

import asyncio
from contextlib import aclosing

import pytest

from cli_mcp.agent_api import Failure, FailureKind, RefusalKind
from cli_mcp.execution import ExecutionError, Progress, ProgressCallback, SessionBusy
from sandbox_agent import calls
from sandbox_agent.calls import KEEP_SECONDS, Call, CallLimits, CallTable, Work
from sandbox_agent.refused import Refused


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Runs:
    """Work that counts how often it was begun, and ends when it is told to."""

    def __init__(self) -> None:
        self.begun = 0
        self.interrupted = 0
        self.end = asyncio.Event()
        self.report: ProgressCallback | None = None

    async def work(self, on_progress: ProgressCallback) -> bytes:
        self.begun += 1
        self.report = on_progress
        try:
            await self.end.wait()
        except asyncio.CancelledError:
            self.interrupted += 1
            raise
        return b"done"


def encode(failure: Failure) -> bytes:
    return f"{failure.kind}: {failure.message}".encode()


async def at_once(on_progress: ProgressCallback) -> bytes:
    return b"result"


async def followed(call: Call) -> tuple[list[Progress], bytes]:
    async with aclosing(call.follow()) as reports:
        seen = [report async for report in reports]
    return seen, await call.result()


async def test_a_call_that_is_asked_for_again_is_joined_while_it_runs_and_after() -> None:
    runs, table = Runs(), CallTable()
    first = table.enter("a", "content", runs.work, encode)
    followers = [
        asyncio.create_task(followed(table.enter("a", "content", runs.work, encode))) for _ in range(3)
    ]
    await asyncio.sleep(0.01)
    assert runs.report is not None
    runs.report(Progress(1.0))
    await asyncio.sleep(0.01)
    runs.end.set()
    assert [await follower for follower in followers] == [([Progress(1.0)], b"done")] * 3
    assert table.knows("a") and not table.knows("b")
    assert table.enter("a", "content", runs.work, encode) is first
    assert await followed(first) == ([], b"done")
    assert runs.begun == 1


async def test_whether_a_call_ends_soon_can_be_waited_for() -> None:
    runs, table = Runs(), CallTable()
    call = table.enter("a", "content", runs.work, encode)
    assert not await call.ends_within(0.01)
    waiting = asyncio.create_task(call.ends_within(10))
    await asyncio.sleep(0)
    runs.end.set()
    assert await waiting
    assert await call.ends_within(0)
    assert (await call.result(), runs.interrupted) == (b"done", 0)


async def test_who_waits_whether_a_call_ends_soon_asks_for_its_result(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(calls, "RECONNECT_SECONDS", 0.2)
    runs, table = Runs(), CallTable()
    call = table.enter("a", "content", runs.work, encode)
    assert not await call.ends_within(0.4)
    assert runs.interrupted == 0
    assert (await call.result()).startswith(b"interrupted: It was interrupted: no connection")
    assert runs.interrupted == 1


async def test_a_jti_stands_for_one_content() -> None:
    table = CallTable()
    call = table.enter("a", "one", at_once, encode)
    for _ in range(2):
        with pytest.raises(Refused) as refused:
            table.enter("a", "other", at_once, encode)
        assert refused.value.kind is RefusalKind.MALFORMED
        await call.result()


@pytest.mark.parametrize("error", [SessionBusy("busy here"), ExecutionError("wrong")])
async def test_an_error_of_the_call_is_its_result(error: ExecutionError) -> None:
    async def work(on_progress: ProgressCallback) -> bytes:
        raise error

    assert await CallTable().enter("a", "", work, encode).result() == encode(Failure.of(error))


async def test_an_interrupted_call_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    runs, table = Runs(), CallTable()
    call = table.enter("a", "", runs.work, encode)
    table.interrupt("unknown", "nobody minds")
    table.interrupt("a", "It was cancelled.")
    table.interrupt("a", "Twice.")
    assert await call.result() == encode(Failure(FailureKind.INTERRUPTED, "It was cancelled."))
    table.interrupt("a", "Too late.")
    assert runs.interrupted == 1


async def test_a_call_that_nobody_follows_is_interrupted_and_one_that_is_followed_again_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(calls, "RECONNECT_SECONDS", 0.3)
    table, left, kept, never = CallTable(), Runs(), Runs(), Runs()
    table.enter("never", "", never.work, encode)
    for jti, runs in (("left", left), ("kept", kept)):
        connection = asyncio.create_task(followed(table.enter(jti, "", runs.work, encode)))
        await asyncio.sleep(0.01)
        connection.cancel()
        await asyncio.wait([connection])
    again = asyncio.create_task(followed(table.enter("kept", "", kept.work, encode)))
    result = await asyncio.wait_for(table.enter("left", "", left.work, encode).result(), 5)
    assert result.startswith(b"interrupted: It was interrupted: no connection")
    await asyncio.sleep(0.3)
    assert (left.interrupted, never.interrupted, kept.interrupted) == (1, 1, 0)
    kept.end.set()
    assert (await again)[1] == b"done"
    assert (left.begun, never.begun, kept.begun) == (1, 1, 1)


async def test_an_ended_call_is_known_as_long_as_its_token_could_come_again() -> None:
    clock = Clock()
    table = CallTable(clock=clock)
    await table.enter("a", "", at_once, encode).result()
    clock.now = KEEP_SECONDS
    assert table.knows("a")
    clock.now = KEEP_SECONDS + 1
    assert not table.knows("a")


async def test_a_call_that_runs_long_is_known_from_its_end_on() -> None:
    clock, runs = Clock(), Runs()
    table = CallTable(clock=clock)
    call = table.enter("a", "", runs.work, encode)
    clock.now = 10 * KEEP_SECONDS
    assert table.knows("a")
    runs.end.set()
    await call.result()
    await asyncio.sleep(0)
    clock.now += KEEP_SECONDS
    assert table.knows("a")


async def test_old_results_are_forgotten_when_they_take_too_much_room_and_do_not_run_again() -> None:
    begun: list[str] = []

    def large(jti: str) -> Work:
        async def work(on_progress: ProgressCallback) -> bytes:
            begun.append(jti)
            return b"x" * 60_000

        return work

    clock = Clock()
    table = CallTable(CallLimits(results_bytes=100_000), clock)
    for jti in ("old", "new"):
        await table.enter(jti, "", large(jti), encode).result()
        await asyncio.sleep(0)
    assert await table.enter("new", "", large("new"), encode).result() == b"x" * 60_000
    assert b"no longer kept" in await table.enter("old", "", large("old"), encode).result()
    assert begun == ["old", "new"]
    clock.now = KEEP_SECONDS + 1
    await table.enter("later", "", large("later"), encode).result()
    await asyncio.sleep(0)
    assert not table.knows("old") and not table.knows("new")
    assert await table.enter("later", "", large("later"), encode).result() == b"x" * 60_000


async def test_so_many_calls_run_and_are_known_and_no_more() -> None:
    runs = Runs()
    table = CallTable(CallLimits(running=2, finished=3))
    running = [table.enter(jti, "", runs.work, encode) for jti in ("a", "b")]
    with pytest.raises(Refused) as refused:
        table.enter("c", "", runs.work, encode)
    assert refused.value.kind is RefusalKind.TOO_MANY_CALLS
    assert table.enter("a", "", runs.work, encode) is running[0]
    runs.end.set()
    await asyncio.gather(*(call.result() for call in running))
    await asyncio.sleep(0)
    await table.enter("d", "", at_once, encode).result()
    await asyncio.sleep(0)
    with pytest.raises(Refused):
        table.enter("e", "", at_once, encode)
    assert not table.knows("e")


async def test_a_bug_in_a_call_is_logged_and_the_table_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    async def work(on_progress: ProgressCallback) -> bytes:
        raise ZeroDivisionError

    table = CallTable()
    with pytest.raises(ZeroDivisionError):
        await table.enter("a", "", work, encode).result()
    await asyncio.sleep(0)
    assert "an error of the agent's own" in caplog.text
    assert table.knows("a")
    assert await table.enter("b", "", at_once, encode).result() == b"result"
