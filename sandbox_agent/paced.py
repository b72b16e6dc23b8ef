"""Reads a pipe that any process of a sandbox can write to: who floods it waits, and is hung up on.

A turn of the event loop reads little, and the more time the last turns took the later is the next one. So a
flood costs the reader a fixed share of its time, whatever comes, however fast and in pieces of whatever size.
"""

import asyncio
import os
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Pace:
    """`turn_bytes` are read at most before others have their turn. Reading and `feed` may take
    `burst_seconds` of the processor at once and `share` of it in the long run. `flood_bytes` are more than
    anybody honest writes."""

    turn_bytes: int
    burst_seconds: float
    share: float
    flood_bytes: int


class PacedReader:
    """Gives what comes on `fd`, a non-blocking descriptor that stays the caller's, to `feed`, from `start` to
    `stop`. It stops for good at the end of the pipe, where `feed` gets nothing, and with `on_flood` when
    `pace.flood_bytes` were read since `forgive`. `read` is for what is not read with read(2)."""

    def __init__(
        self,
        fd: int,
        pace: Pace,
        feed: Callable[[bytes], None],
        *,
        on_flood: Callable[[], None],
        before_turn: Callable[[], None] = lambda: None,
        read: Callable[[int], bytes] | None = None,
        processor_seconds: Callable[[], float] = time.thread_time,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._fd = fd
        self._pace = pace
        self._feed = feed
        self._on_flood = on_flood
        self._before_turn = before_turn
        self._receive = read or (lambda limit_bytes: os.read(fd, limit_bytes))
        self._processor_seconds = processor_seconds
        self._wanted = False
        self._ended = False
        self._pause: asyncio.TimerHandle | None = None
        self._owed_seconds = 0.0  # that were taken and not yet waited for
        self._owed_at = 0.0
        self._read_bytes = 0

    def start(self) -> None:
        if not self._wanted and not self._ended:
            self._wanted = True
            if self._pause is None:
                self._loop.add_reader(self._fd, self._turn)

    def stop(self) -> None:
        """No more is read until `start`. A pause that is due stays due."""
        if self._wanted:
            self._wanted = False
            if self._pause is None:
                self._loop.remove_reader(self._fd)

    def forgive(self) -> None:
        """What came so far is no flood: something was waited for, and came."""
        self._read_bytes = 0

    def close(self) -> None:
        """For good, before `fd` is closed."""
        self.stop()
        self._ended = True
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None

    def read(self) -> None:
        """Take what lies in the pipe now, as far as a turn goes."""
        if not self._ended:
            self._take()

    def _turn(self) -> None:
        self._before_turn()
        self._take()
        excess_seconds = self._owed_seconds - self._pace.burst_seconds
        if excess_seconds > 0 and not self._ended:
            if self._wanted:
                self._loop.remove_reader(self._fd)
            self._pause = self._loop.call_later(excess_seconds / self._pace.share, self._go_on)

    def _take(self) -> None:
        begun = self._processor_seconds()
        try:
            data = self._receive(self._pace.turn_bytes)
        except BlockingIOError:
            return
        if not data:  # or it would be readable for ever
            self.close()
        self._feed(data)
        now = self._loop.time()
        paid_seconds = (now - self._owed_at) * self._pace.share
        self._owed_seconds = max(0.0, self._owed_seconds - paid_seconds) + self._processor_seconds() - begun
        self._owed_at = now
        self._read_bytes += len(data)
        if self._read_bytes > self._pace.flood_bytes and not self._ended:
            self.close()
            self._on_flood()

    def _go_on(self) -> None:
        self._pause = None
        if self._wanted:
            self._loop.add_reader(self._fd, self._turn)
