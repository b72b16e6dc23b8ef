"""Ends what holds too much memory in the buffers of its sockets, where control groups do not (version 1).

The kernel's limit for them keeps a socket from taking more, but every new one gets a first packet all the
same, and there can be tens of thousands.
"""

import asyncio
import logging
from typing import Protocol

log = logging.getLogger(__name__)

_INTERVAL_SECONDS = 0.25
# Of what the kernel tries to keep them to.
_MOST_TIMES = 2


class Holder(Protocol):
    """A sandbox; none of it may block."""

    def socket_bytes(self) -> int: ...

    def stop_at_once(self, reason: str) -> None:
        """End everything in it."""
        ...


class SocketWatch:
    """In use between `start` and `close`; `limit_bytes` is what the kernel was told for each sandbox."""

    def __init__(self, limit_bytes: int) -> None:
        self._most_bytes = _MOST_TIMES * limit_bytes
        self._holders: set[Holder] = set()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._watch())

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def add(self, holder: Holder) -> None:
        self._holders.add(holder)

    def remove(self, holder: Holder) -> None:
        self._holders.discard(holder)

    def look(self) -> None:
        for holder in tuple(self._holders):
            if holder.socket_bytes() > self._most_bytes:
                log.warning("a session holds too much memory in its sockets: it is stopped")
                holder.stop_at_once(
                    f"The session's sockets held more than {self._most_bytes >> 20} MiB of memory; all its "
                    "processes were ended."
                )

    async def _watch(self) -> None:
        while True:
            self.look()
            await asyncio.sleep(_INTERVAL_SECONDS)
