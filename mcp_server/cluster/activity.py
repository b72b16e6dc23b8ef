"""Stamps of last activity: while a session is in use its pod says so, often enough that it never expires.

At most every sixth of idleTimeout a pod is stamped, by whichever replica notices first that it is due; a
stamp that fails is tried again soon. The hooks retire a pod a good deal later than its last stamp.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta

from mcp_server.cluster.kubernetes import KubernetesError
from mcp_server.cluster.pods import SandboxPod

logger = logging.getLogger(__name__)

STAMPS_PER_IDLE_TIMEOUT = 6
_SHORTEST_INTERVAL = timedelta(seconds=1)
# Wall clocks jump, and those of machines that were suspended most of all.
_LONGEST_WAIT_SECONDS = 1.0
_LONGEST_RETRY_SECONDS = 5.0


@dataclass(slots=True, eq=False)
class _InUse:
    task: asyncio.Task[None]
    due: asyncio.Event
    users: int = 0


class Activity:
    """`stamp` writes; `current` gives the pod of a uid as it is known now."""

    def __init__(
        self,
        stamp: Callable[[SandboxPod], Awaitable[None]],
        current: Callable[[str], SandboxPod | None],
        idle_timeout: Callable[[], timedelta],
        now: Callable[[], datetime],
    ) -> None:
        self._stamp = stamp
        self._current = current
        self._idle_timeout = idle_timeout
        self._now = now
        self._in_use: dict[str, _InUse] = {}
        self._writing: dict[str, asyncio.Task[None]] = {}

    @asynccontextmanager
    async def kept(self, pod: SandboxPod) -> AsyncIterator[None]:
        """The pod is in use inside of this block."""
        entry = self._in_use.get(pod.uid)
        if entry is None:
            due = asyncio.Event()
            entry = _InUse(asyncio.create_task(self._keep(pod, due)), due)
            self._in_use[pod.uid] = entry
        entry.users += 1
        try:
            yield
        finally:
            entry.users -= 1
            if not entry.users:
                del self._in_use[pod.uid]
                entry.task.cancel()

    def stamp_all(self) -> None:
        """Stamp whatever is in use now: after a time without the API server others may think it idle."""
        for entry in self._in_use.values():
            entry.due.set()

    def is_expiring(self, pod: SandboxPod) -> bool:
        """Whether the hooks may be about to retire the pod, as far as its last stamp tells."""
        return pod.last_activity is None or self._now() - pod.last_activity >= self._idle_timeout()

    async def _keep(self, pod: SandboxPod, due: asyncio.Event) -> None:
        last = pod.last_activity
        while True:
            known = self._current(pod.uid)
            seen = known.last_activity if known is not None else None
            last = max((moment for moment in (last, seen) if moment is not None), default=None)
            interval = max(self._idle_timeout() / STAMPS_PER_IDLE_TIMEOUT, _SHORTEST_INTERVAL)
            seconds = 0.0 if last is None else (last + interval - self._now()).total_seconds()
            if seconds > 0 and not due.is_set():
                await _either(due, min(seconds, _LONGEST_WAIT_SECONDS))
                continue
            due.clear()
            try:
                started = self._now()
                await asyncio.shield(self._write(pod))
                last = started
            except KubernetesError as error:
                logger.warning("pod %s could not be stamped as in use: %s", pod.name, error)
                await asyncio.sleep(min(interval.total_seconds() / 4, _LONGEST_RETRY_SECONDS))

    def _write(self, pod: SandboxPod) -> asyncio.Task[None]:
        """One at a time for each pod, and on its own: a command may be over before its stamp is written."""
        task = self._writing.get(pod.uid)
        if task is None:
            task = self._writing[pod.uid] = asyncio.create_task(self._stamp_once(pod))
        return task

    async def _stamp_once(self, pod: SandboxPod) -> None:
        try:
            await self._stamp(pod)
        finally:
            del self._writing[pod.uid]


async def _either(event: asyncio.Event, seconds: float) -> None:
    """Return when `event` is set, after `seconds` at the latest."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return
