"""The warm pool, with sandboxes that are nothing."""

import asyncio
from collections.abc import Callable

import pytest

from cli_mcp.execution import SandboxUnavailable
from local_runtime import pool
from local_runtime.pool import WarmPool


class Maker:
    """Makes a number of `sandboxes`; the first `failures` attempts fail."""

    def __init__(self, failures: int = 0) -> None:
        self.made = self.attempts = 0
        self._failures = failures

    async def __call__(self) -> object:
        self.attempts += 1
        await asyncio.sleep(0)
        if self.attempts <= self._failures:
            raise SandboxUnavailable("not now")
        self.made += 1
        return self.made


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.01)


def warm_pool(size: int, maker: Maker) -> WarmPool[object]:
    return WarmPool(size, maker)


async def test_it_is_filled_and_filled_again_after_a_claim() -> None:
    maker = Maker()
    ready = warm_pool(2, maker)
    ready.start()
    await until(lambda: len(ready) == 2)
    assert ready.claim() == 1
    await until(lambda: len(ready) == 2)
    assert maker.made == 3
    assert await ready.close() == [2, 3]


async def test_an_empty_pool_has_nothing_to_claim() -> None:
    ready = warm_pool(0, Maker())
    ready.start()
    assert ready.claim() is None
    assert await ready.close() == []


async def test_after_failures_it_tries_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "_FIRST_RETRY_SECONDS", 0.02)
    maker = Maker(failures=3)
    ready = warm_pool(1, maker)
    ready.start()
    await until(lambda: len(ready) == 1)
    assert maker.attempts == 4
    await ready.close()


async def test_failing_on_and_on_it_tries_ever_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "_FIRST_RETRY_SECONDS", 0.02)
    maker = Maker(failures=1000)
    ready = warm_pool(1, maker)
    ready.start()
    await asyncio.sleep(0.5)
    assert maker.attempts <= 6
    await ready.close()
