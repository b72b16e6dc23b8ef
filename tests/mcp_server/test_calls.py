import asyncio

import pytest

from mcp_server.backend import SessionKey, SessionOutcome, SessionState
from mcp_server.calls import CallCancelled, CallKey, RunningCalls, ShuttingDown
from tests.mcp_server.fake_backend import outcome

KEY = CallKey(SessionKey("local", "s1"), 1)
RAN = SessionOutcome(outcome(), SessionState.NEW)


async def run(seconds: float = 0) -> SessionOutcome:
    await asyncio.sleep(seconds)
    return RAN


async def test_a_call_gives_the_outcome_of_its_command() -> None:
    calls = RunningCalls()
    call = calls.start(KEY, run(0.1))
    assert not await call.wait(0)
    assert await call.wait(5)
    assert call.result() is RAN
    assert len(calls) == 0


async def test_a_clean_up_is_not_interrupted_by_a_second_cancellation() -> None:
    cleaned: list[bool] = []

    async def stubborn() -> SessionOutcome:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.05)
            cleaned.append(True)
        return RAN

    calls = RunningCalls()
    call = calls.start(KEY, stubborn())
    await asyncio.sleep(0)
    call.cancel()
    await asyncio.sleep(0)
    calls.cancel(KEY)
    calls.cancel_all()
    await calls.finished()
    assert cleaned == [True]
    with pytest.raises(CallCancelled, match="The client went away"):
        call.result()


async def test_a_call_that_is_done_stays_so_when_it_is_cancelled() -> None:
    calls = RunningCalls()
    call = calls.start(KEY, run())
    await call.wait(5)
    call.cancel()
    assert call.result() is RAN


@pytest.mark.parametrize(
    "other",
    [
        CallKey(SessionKey("local", "s1"), 2),
        CallKey(SessionKey("local", "s1"), "1"),
        CallKey(SessionKey("local", "s2"), 1),
        CallKey(SessionKey("somebody", "s1"), 1),
    ],
)
async def test_a_cancellation_finds_only_the_call_of_its_owner_session_and_request(other: CallKey) -> None:
    calls = RunningCalls()
    call = calls.start(KEY, run(0.05))
    calls.cancel(other)
    await calls.finished()
    assert call.result() is RAN


async def test_a_cancellation_that_fits_two_calls_ends_neither() -> None:
    """Two clients may count their requests alike; either call may be meant."""
    calls = RunningCalls()
    both = [calls.start(KEY, run(0.05)), calls.start(KEY, run(0.05))]
    calls.cancel(KEY)
    await calls.finished()
    assert [call.result() for call in both] == [RAN, RAN]


async def test_after_close_nothing_starts_and_what_runs_may_finish() -> None:
    calls = RunningCalls()
    call = calls.start(KEY, run(0.05))
    calls.close()
    with pytest.raises(ShuttingDown):
        calls.start(KEY, run())
    await calls.finished()
    assert call.result() is RAN
    assert not calls.accepting


async def test_a_call_that_fails_after_its_client_left_disturbs_nobody() -> None:
    async def fail() -> SessionOutcome:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            raise RuntimeError("during clean-up") from None
        return RAN

    calls = RunningCalls()
    call = calls.start(KEY, fail())
    await asyncio.sleep(0)
    call.cancel()
    await calls.finished()
    assert len(calls) == 0
