"""Keeps the reserve of the host's disk, which all else on it lives from: whoever writes is stopped first.

Workspaces together may be promised more than the disk has. When it gets scarce each that has a file system of
its own may take no more than its part of what is left, which the kernel holds it to. Whoever has none, or
grows although nothing may be written, is stopped with all that runs in his sandbox.
"""

import asyncio
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

log = logging.getLogger(__name__)

MEBIBYTE = 1 << 20
GIBIBYTE = 1 << 30
# What always stays free on the host's disk, for everything else that lives on it.
HOST_FREE_BYTES = GIBIBYTE
HOST_FREE_FILES = 20_000
# Above this nobody can use up the reserve before the next look, nor what waits in memory to be written.
_NEAR_BYTES = 8 * HOST_FREE_BYTES
_INTERVAL_SECONDS = 0.25
_INTERVAL_WHILE_NEAR_SECONDS = 0.1
# At the look that finds the disk low, who has just written so much is what made it low.
_BURST_BYTES = 4 * MEBIBYTE
# Names and times that are changed take some; nobody who may not write does more by honest means.
_GROWTH_BYTES = 64 * 1024
_WROTE = "The machine's disk is low, and the session wrote to it: all its processes were ended."
# What is written between a look and what follows from it was allowed.
_LOOKS_UNTIL_TOLD = 2


@dataclass(frozen=True, slots=True)
class HostSpace:
    """What an unprivileged user could still write to a file system; `free_files` is None without inodes."""

    free_bytes: int
    free_files: int | None

    @classmethod
    def of(cls, fd: int) -> "HostSpace":
        status = os.fstatvfs(fd)
        # btrfs and others make inodes as they need them and say 0 of 0.
        return cls(status.f_bavail * status.f_frsize, status.f_favail if status.f_files else None)

    @property
    def low(self) -> bool:
        return self.free_bytes < HOST_FREE_BYTES or (
            self.free_files is not None and self.free_files < HOST_FREE_FILES
        )

    @property
    def near(self) -> bool:
        """Whether it can be low soon."""
        return self.free_bytes < _NEAR_BYTES or (
            self.free_files is not None and self.free_files < 2 * HOST_FREE_FILES
        )


@dataclass(frozen=True, slots=True)
class Usage:
    """What a sandbox does to the host's disk.

    `written_bytes` grows as it writes, `unwritten_bytes` of it the disk does not have yet and does not count
    either. `room_bytes` is what it may still write; None when nothing but being stopped keeps it from that.
    """

    written_bytes: int
    unwritten_bytes: int = 0
    room_bytes: int | None = None


class Writer(Protocol):
    """A sandbox, as far as it writes to the host's disk."""

    def usage(self) -> Usage:
        """Called from a thread; raises OSError when the sandbox is gone."""
        ...

    def allow(self, growth_bytes: int | None, *, host_low: bool) -> None:
        """How much it may grow from now on, None for all that its limit allows, and whether the host's
        reserve is in use. May not block."""
        ...

    def stop_at_once(self, reason: str) -> None:
        """End everything in it; `reason` is for the caller of the running command. May not block."""
        ...


W = TypeVar("W")


def allowances(budget_bytes: int, rooms: Sequence[int]) -> list[int]:
    """Equal parts of the budget, but to nobody more than its room; together no more than the budget."""
    allowed = [0] * len(rooms)
    left = max(budget_bytes, 0)
    for served, index in enumerate(sorted(range(len(rooms)), key=rooms.__getitem__)):
        allowed[index] = min(rooms[index], left // (len(rooms) - served))
        left -= allowed[index]
    return allowed


def growing(before: Mapping[W, Usage], now: Mapping[W, Usage], *, low_looks: int) -> list[W]:
    """Who is to be stopped because the disk is low, the largest growth first; `low_looks` earlier looks found
    it low, too."""
    told = low_looks >= _LOOKS_UNTIL_TOLD
    growth = {
        writer: usage.written_bytes - before[writer].written_bytes
        for writer, usage in now.items()
        if writer in before and (told or usage.room_bytes is None)
    }
    most = _GROWTH_BYTES if told else _BURST_BYTES
    return sorted((it for it in growth if growth[it] > most), key=growth.__getitem__, reverse=True)


class HostWatch:
    """Watches the file system of an open directory from `start` to `close`."""

    def __init__(self, directory: int, *, host_space: Callable[[int], HostSpace] = HostSpace.of) -> None:
        self._low_looks = 0
        self._directory = directory
        self._host_space = host_space
        self._writers: set[Writer] = set()
        self._seen: dict[Writer, Usage] = {}
        self._near = False
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        if self._task is None:
            self._task = asyncio.create_task(self._watch())

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def add(self, writer: Writer) -> None:
        self._writers.add(writer)

    def remove(self, writer: Writer) -> None:
        self._writers.discard(writer)

    async def look(self) -> None:
        """Act on what is left."""
        space = self._host_space(self._directory)
        if not space.near:
            if self._near:
                self._give_back()
            return
        self._near = True
        seen = await asyncio.to_thread(_usages, tuple(self._writers))
        # Once more: what was written meanwhile counts either here or there.
        space = self._host_space(self._directory)
        free_bytes = space.free_bytes - sum(usage.unwritten_bytes for usage in seen.values())
        low = HostSpace(free_bytes, space.free_files).low
        budget = 0 if low else free_bytes - HOST_FREE_BYTES
        bounded = {writer: room for writer, usage in seen.items() if (room := usage.room_bytes) is not None}
        allowed = dict(zip(bounded, allowances(budget, [*bounded.values()]), strict=True))
        for writer in seen.keys() & self._writers:
            writer.allow(allowed.get(writer), host_low=low)
        if low:
            for writer in growing(self._seen, seen, low_looks=self._low_looks):
                log.warning("a session writes while the disk is low: it is stopped")
                writer.stop_at_once(_WROTE)
        self._be_low(low)
        self._seen = seen

    def _give_back(self) -> None:
        self._near = False
        self._seen = {}
        self._be_low(False)
        for writer in self._writers:
            writer.allow(None, host_low=False)

    def _be_low(self, low: bool) -> None:
        if low != (self._low_looks > 0):
            log.warning("the disk is low, nothing may be written" if low else "the disk has room again")
        self._low_looks = self._low_looks + 1 if low else 0

    async def _watch(self) -> None:
        while True:
            try:
                await self.look()
            except OSError as error:
                log.warning("the disk's free space cannot be told, trying again: %s", error)
            await asyncio.sleep(_INTERVAL_WHILE_NEAR_SECONDS if self._near else _INTERVAL_SECONDS)


def _usages(writers: Sequence[Writer]) -> dict[Writer, Usage]:
    found = {}
    for writer in writers:
        try:
            found[writer] = writer.usage()
        except OSError as error:
            log.debug("a sandbox that ends is not asked: %s", error)
    return found
