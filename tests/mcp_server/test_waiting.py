import asyncio

import pytest

from mcp_server.waiting import first_of


async def test_it_returns_with_the_first_and_cancels_the_coroutines_that_are_left() -> None:
    cancelled = asyncio.Event()

    async def slow() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    async with asyncio.timeout(10):
        await first_of(asyncio.sleep(0.01), slow())
        await cancelled.wait()


async def test_a_task_runs_on_and_keeps_its_failure_for_whoever_awaits_it() -> None:
    async def failing() -> None:
        await asyncio.sleep(0.01)
        raise ValueError

    lasting = asyncio.create_task(asyncio.Event().wait())
    failed = asyncio.create_task(failing())
    async with asyncio.timeout(10):
        await first_of(lasting, failed)
    assert not lasting.done()
    with pytest.raises(ValueError):
        await failed
    lasting.cancel()


async def test_it_does_not_wait_longer_than_asked() -> None:
    async with asyncio.timeout(10):
        await first_of(asyncio.Event().wait(), seconds=0.01)
