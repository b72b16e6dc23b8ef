"""client-go's rate-limited work queue: a key waits at most once, and delays and failures are counted per key.

Source: k8s.io/client-go/util/workqueue; the first delay is 5 ms, doubled by each failure, at most 1,000 s.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

FIRST_BACKOFF_SECONDS = 0.005
MAX_BACKOFF_SECONDS = 1000.0


class WorkQueue:
    """Hands out ready keys in the order in which they were added."""

    def __init__(self, clock: Callable[[], datetime]) -> None:
        self._clock = clock
        self._ready: dict[str, None] = {}
        self._waiting: dict[str, datetime] = {}
        self._failures: dict[str, int] = {}

    def add(self, key: str) -> None:
        self._ready.setdefault(key)

    def add_after(self, key: str, seconds: float) -> None:
        """Of several delays of a key the earliest counts."""
        if seconds <= 0:
            self.add(key)
            return
        due = self._clock() + timedelta(seconds=seconds)
        self._waiting[key] = min(due, self._waiting.get(key, due))

    def add_rate_limited(self, key: str) -> float:
        """After a failure; returns the delay in seconds."""
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        delay = min(FIRST_BACKOFF_SECONDS * 2.0**failures, MAX_BACKOFF_SECONDS)
        self.add_after(key, delay)
        return delay

    def forget(self, key: str) -> None:
        """After a success: the next failure starts at the first delay again."""
        self._failures.pop(key, None)

    def pop(self) -> str | None:
        """The next ready key, None when there is none now."""
        self._release_due()
        key = next(iter(self._ready), None)
        if key is not None:
            del self._ready[key]
        return key

    def seconds_to_next(self) -> float | None:
        """0 when a key is ready, None when nothing waits."""
        self._release_due()
        if self._ready:
            return 0.0
        if not self._waiting:
            return None
        return (min(self._waiting.values()) - self._clock()).total_seconds()

    def _release_due(self) -> None:
        now = self._clock()
        for key in sorted(
            (key for key, due in self._waiting.items() if due <= now), key=self._waiting.__getitem__
        ):
            del self._waiting[key]
            self.add(key)
