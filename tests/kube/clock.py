"""A clock that only moves when a test says so, and Kubernetes' way to write its time.

Kubernetes stores times in RFC 3339 with whole seconds, in UTC (metav1.Time).
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta


class Clock:
    """Call it to read the time; `advance` is the only thing that moves it."""

    def __init__(self, start: datetime = datetime(2026, 1, 1, tzinfo=UTC)) -> None:
        self._now = start

    def __call__(self) -> datetime:
        return self._now

    def advance(self, seconds: float) -> None:
        """Move forward; time never goes back."""
        if seconds < 0:
            raise ValueError(f"a clock cannot go back by {-seconds} s")
        self._now += timedelta(seconds=seconds)


def wall_clock() -> datetime:
    """The machine's time, for a server that real clients use."""
    return datetime.now(UTC)


def timestamp(moment: datetime) -> str:
    """`2026-01-01T00:00:00Z`."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
