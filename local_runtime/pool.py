"""Sandboxes that are ready before a session asks for one."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from cli_mcp.execution import SandboxUnavailable

_FIRST_RETRY_SECONDS = 1.0
_LONGEST_RETRY_SECONDS = 60.0


Ready = TypeVar("Ready")


class WarmPool(Generic[Ready]):
    """Keeps `size` sandboxes ready from `start` to `close`; failing, it tries again ever less often."""

    def __init__(self, size: int, create: Callable[[], Awaitable[Ready]]) -> None:
        self._size = size
        self._create = create
        self._ready: deque[Ready] = deque()
        self._claimed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._ready)

    def start(self) -> None:
        self._task = asyncio.create_task(self._refill())

    def claim(self) -> Ready | None:
        """A sandbox that is the caller's from now on, if one is ready."""
        if not self._ready:
            return None
        self._claimed.set()
        return self._ready.popleft()

    async def close(self) -> list[Ready]:
        """Stop refilling. Returns the sandboxes that nobody claimed, for the caller to end."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        unclaimed = list(self._ready)
        self._ready.clear()
        return unclaimed

    async def _refill(self) -> None:
        retry_seconds = _FIRST_RETRY_SECONDS
        while True:
            self._claimed.clear()
            while len(self._ready) < self._size:
                try:
                    self._ready.append(await self._create())
                except SandboxUnavailable:
                    await asyncio.sleep(retry_seconds)
                    retry_seconds = min(2 * retry_seconds, _LONGEST_RETRY_SECONDS)
                else:
                    retry_seconds = _FIRST_RETRY_SECONDS
            await self._claimed.wait()
