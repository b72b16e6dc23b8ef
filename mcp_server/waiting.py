"""Waiting for the first of several things."""

import asyncio
from collections.abc import Awaitable


async def first_of(*awaited: Awaitable[object], seconds: float | None = None) -> None:
    """Return when one of them is done, or after `seconds`. Coroutines are cancelled then; tasks run on."""
    tasks = [asyncio.ensure_future(one) for one in awaited]
    try:
        await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for one, task in zip(awaited, tasks, strict=True):
            if one is not task:
                task.cancel()
