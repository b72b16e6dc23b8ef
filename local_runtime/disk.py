"""Keeps each sandbox's workspace within its limit, and the host's disk from filling up.

Where a workspace has a file system of its own (see `images`) the kernel holds it to its size, and there is
little to do. Elsewhere it is measured while something runs in the sandbox. What was written since bounds how
large it can be by now; when that is beyond the limit, everything in the sandbox stands still while it is
measured again. Over the limit its processes are stopped, and until there is room again commands run with a
file size limit of 0: they can delete and not write.
"""

import asyncio
import logging
import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Protocol

from local_runtime import trees
from local_runtime.deleted import Unnamed
from local_runtime.host_disk import GIBIBYTE, HOST_FREE_BYTES, MEBIBYTE, HostSpace, Usage
from local_runtime.images import MountedImage
from local_runtime.trees import GiveUp

log = logging.getLogger(__name__)

# What a command may add to a workspace that is full: names take space too.
_GROWTH_WHILE_FULL_BYTES = MEBIBYTE
# Beyond this somebody makes it grow on purpose, by means that no limit of a process stops.
_GROWTH_AT_MOST_BYTES = 16 * MEBIBYTE
# Less than this is as good as nothing.
_ROOM_BYTES = MEBIBYTE
_ROOM_FILES = 16
_INTERVAL_SECONDS = 0.5
_INTERVAL_WHILE_FULL_SECONDS = 0.2
# How often to see whether the disk has lost as much as this workspace may still take.
_GLANCE_SECONDS = 0.05
_LEAST_ROOM_BYTES = 8 * MEBIBYTE
# How often to see whether something runs without a command.
_IDLE_SECONDS = 2.0
# Measuring takes at most a tenth of one CPU.
_INTERVAL_PER_COST = 10.0
CONCURRENT_MEASUREMENTS = 2
_UNLIMITED_BYTES = 1 << 62
# Only somebody with tens of thousands of descriptors, or of directories, takes longer.
_MOST_SECONDS_STANDING_STILL = 10.0
# Descriptors on their way through a socket hide files. Honest ones arrive before the next look.
_LOOKS_WITH_DESCRIPTORS_UNDER_WAY = 2


@dataclass(frozen=True, slots=True)
class Full:
    """Why nothing may be written: `reason` for the caller, and whether it is this workspace's doing."""

    reason: str
    over_limit: bool


def verdict(used_bytes: int, limit_bytes: int, host_low: bool) -> Full | None:
    """Whether a workspace that uses `used_bytes` may be written to."""
    if used_bytes > limit_bytes:
        return Full(
            f"/workspace is over its limit of {readable_size(limit_bytes)}; until files are deleted, "
            "commands cannot write",
            over_limit=True,
        )
    return HOST_LOW if host_low else None


def readable_size(size_bytes: int) -> str:
    for unit, name in ((GIBIBYTE, "GiB"), (MEBIBYTE, "MiB"), (1024, "KiB")):
        if size_bytes >= unit:
            return f"{size_bytes / unit:.1f}".removesuffix(".0") + f" {name}"
    return f"{size_bytes} bytes"


HOST_LOW = Full(
    f"the machine's disk has less than {readable_size(HOST_FREE_BYTES)} left, which stays free; "
    "until there is more, commands cannot write",
    over_limit=False,
)
UNMEASURABLE = Full(
    "what /workspace takes could not be measured, since it changed all the time, was hidden or took too "
    "long; it counts as full",
    over_limit=True,
)


class Guard(Protocol):
    """What keeps a workspace within its limit, from `start` to `close`."""

    full: Full | None
    """Set while nothing may be written."""

    refused: str | None
    """Why no more commands may run here at all."""

    def start(self) -> None: ...

    async def close(self) -> None:
        """Returns when the directory is not used any more."""
        ...

    async def before_command(self) -> None: ...

    async def after_command(self, *, busy: bool) -> None:
        """`busy`: something still runs."""
        ...

    def usage(self) -> Usage:
        """See host_disk.Writer; called from a thread."""
        ...

    def allow(self, growth_bytes: int | None, *, host_low: bool) -> None:
        """See host_disk.Writer."""
        ...


class FileSystemGuard:
    """For a workspace that is a file system of its own: the kernel refuses what goes beyond its size, and the
    caller is told."""

    def __init__(self, mounted: MountedImage, limit_bytes: int) -> None:
        self.full: Full | None = None
        self.refused: str | None = None
        self._mounted = mounted
        self._limit_bytes = limit_bytes
        self._allowed_bytes: int | None = None
        self._host_low = False

    def start(self) -> None:
        pass

    async def close(self) -> None:
        self._mounted.close()

    async def before_command(self) -> None:
        self.full = HOST_LOW if self._host_low else None

    async def after_command(self, *, busy: bool) -> None:
        self.full = self._fullness()

    def usage(self) -> Usage:
        return self._mounted.usage()

    def allow(self, growth_bytes: int | None, *, host_low: bool) -> None:
        self._host_low = host_low
        if host_low:
            self.full = HOST_LOW
        if growth_bytes is not None or self._allowed_bytes is not None:
            self._allowed_bytes = growth_bytes
            self._mounted.allow(growth_bytes)

    def _fullness(self) -> Full | None:
        if self._host_low:
            return HOST_LOW
        room = self._mounted.room()
        if room.files < _ROOM_FILES:
            return Full(f"/workspace holds its {room.all_files:,} files; delete some to make room", True)
        if room.bytes >= _ROOM_BYTES:
            return None
        if self._allowed_bytes is not None and self._allowed_bytes < _ROOM_BYTES:
            return HOST_LOW
        size = readable_size(self._limit_bytes)
        return Full(f"/workspace is full: its limit is {size}; delete files to make room", True)


class Controlled(Protocol):
    """What the guard may do to a sandbox."""

    def forbid_writing(self, forbidden: bool) -> None:
        """Take from all running processes, and what they start, the right to write files, or give it back;
        as far as the host permits it."""
        ...

    async def stop_processes(self, reason: str, *, shell_too: bool) -> None:
        """End the running command, whose result gives `reason`, and all else; the shell only if asked to."""
        ...

    def standing_still(self) -> AbstractContextManager[None]:
        """Nothing runs in the sandbox meanwhile. Called from a thread."""
        ...

    def unnamed(self, device: int, give_up: GiveUp) -> Unnamed:
        """What files of the workspace without a name take. Called from a thread."""
        ...

    def written_bytes(self) -> int:
        """What its processes have written so far. Called from a thread."""
        ...

    def cpu_ticks(self) -> int:
        """A number that changes when anything has run in the sandbox. Called from a thread."""
        ...


class DiskGuard:
    """Measures one workspace, given as an open directory, that shares the host's file system.

    `measurements` bounds how many workspaces are measured at the same time.
    """

    def __init__(
        self,
        workspace_fd: int,
        limit_bytes: int,
        sandbox: Controlled,
        measurements: asyncio.Semaphore,
        *,
        host_space: Callable[[int], HostSpace] = HostSpace.of,
    ) -> None:
        self.full: Full | None = None
        self.refused: str | None = None
        self._fd = workspace_fd
        self._limit_bytes = limit_bytes
        self._sandbox = sandbox
        self._measurements = measurements
        self._host_space = host_space
        self._host_low = False
        self._allowed_bytes = 0  # while full
        self._most_bytes = 0  # while full
        self._used_bytes = 0
        self._free_at_look_bytes = 0
        self._free_before_hiding_bytes = 0
        self._hidden = False
        self._looks_with_descriptors_under_way = 0
        self._cost_seconds = 0.0
        self._busy = asyncio.Event()
        self._looking = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self._measuring: asyncio.Future[_Measured] | None = None

    def start(self) -> None:
        self._free_at_look_bytes = self._free_bytes()
        self._task = asyncio.create_task(self._watch())

    async def close(self) -> None:
        if self._task is None:
            return
        self._task.cancel()
        await asyncio.wait([self._task])
        if self._measuring is not None:
            await asyncio.wait([self._measuring])

    async def before_command(self) -> None:
        """Watch from now on; look first if the workspace was full."""
        if self.full is not None:
            await self.look()
        self._busy.set()

    async def after_command(self, *, busy: bool) -> None:
        """Look once more if the workspace was or may be full; go on watching if processes are left."""
        if self.full is not None or self._host_low or self._may_be_full():
            await self.look()
        if not busy:
            self._busy.clear()

    def usage(self) -> Usage:
        return Usage(self._sandbox.written_bytes())

    def allow(self, growth_bytes: int | None, *, host_low: bool) -> None:
        self._host_low = host_low

    async def look(self) -> None:
        """Measure and act on it."""
        async with self._looking:
            before = self.full
            # Over the limit it does not matter by how much, unless it is to be seen whether it grows.
            found = await self._measure(_UNLIMITED_BYTES if before else self._limit_bytes)
            host_low = self._host_low or self._host_space(self._fd).low
            full = verdict(found.used_bytes, self._limit_bytes, host_low)
            self.full = full if found.known else UNMEASURABLE
            if self.full is None:
                if before is not None:
                    self._sandbox.forbid_writing(False)
                return
            # Also when it was full before: the shell may have been replaced by one that can write.
            self._sandbox.forbid_writing(True)
            used = found.used_bytes
            if self.full.over_limit and (before is None or not before.over_limit):
                await self._sandbox.stop_processes(self.full.reason, shell_too=False)
                used = (await self._measure(_UNLIMITED_BYTES)).used_bytes
                self._most_bytes = used + _GROWTH_AT_MOST_BYTES
            elif before is not None and used > self._allowed_bytes:
                # Everything else was stopped before, so it may be the shell itself that goes on.
                await self._sandbox.stop_processes(self.full.reason, shell_too=True)
                used = (await self._measure(_UNLIMITED_BYTES)).used_bytes
                if self.full.over_limit and used > self._most_bytes:
                    self._refuse()
            allowed = used + _GROWTH_WHILE_FULL_BYTES
            self._allowed_bytes = allowed if before is None else min(allowed, self._allowed_bytes)

    def _refuse(self) -> None:
        self.refused = (
            f"Not run: /workspace went on growing although it was over its limit of "
            f"{readable_size(self._limit_bytes)}. No command runs in it any more; end the session with its "
            "workspace (DELETE /sessions/ID?workspace=true) or use another session."
        )
        log.warning("a workspace went on growing although it was full: its session is refused")

    async def _watch(self) -> None:
        ticks: int | None = None
        while True:
            try:
                async with asyncio.timeout(_IDLE_SECONDS):
                    await self._busy.wait()
                ticks = None
            except TimeoutError:
                # A shell without a command can do a lot, too: PROMPT_COMMAND, loadable builtins.
                before, ticks = ticks, await asyncio.to_thread(self._sandbox.cpu_ticks)
                if ticks == before:
                    continue
            try:
                await self.look()
            except OSError as error:
                log.warning("a workspace cannot be measured, trying again: %s", error)
            shortest = _INTERVAL_SECONDS if self.full is None else _INTERVAL_WHILE_FULL_SECONDS
            await self._wait(max(shortest, _INTERVAL_PER_COST * self._cost_seconds))

    async def _wait(self, seconds: float) -> None:
        """At most so long: until the workspace may be full, or nothing may be written."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            await asyncio.sleep(min(left, _GLANCE_SECONDS))
            if self._may_be_full() or (self._host_low and self.full is None):
                return

    async def _measure(self, stop_at_bytes: int) -> "_Measured":
        async with self._measurements:
            self._measuring = asyncio.ensure_future(asyncio.to_thread(self._measure_now, stop_at_bytes))
            found = await asyncio.shield(self._measuring)
        self._looks_with_descriptors_under_way += 1
        if not found.descriptors_under_way:
            self._looks_with_descriptors_under_way = 0
        if self._looks_with_descriptors_under_way >= _LOOKS_WITH_DESCRIPTORS_UNDER_WAY:
            return replace(found, known=False)
        return found

    def _measure_now(self, stop_at_bytes: int) -> "_Measured":
        """While it runs, as long as nobody can have filled the workspace meanwhile; else standing still."""
        started = time.monotonic()
        free_bytes, room_bytes = self._free_bytes(), self._room_bytes()
        found = self._count(stop_at_bytes, lambda: free_bytes - self._free_bytes() > room_bytes // 2)
        if found.used_bytes <= self._limit_bytes and not found.known:
            with self._sandbox.standing_still():
                free_bytes = self._free_bytes()
                until = time.monotonic() + _MOST_SECONDS_STANDING_STILL
                found = self._count(stop_at_bytes, lambda: time.monotonic() > until)
        self._used_bytes, self._free_at_look_bytes = found.used_bytes, free_bytes
        self._cost_seconds = time.monotonic() - started
        return replace(found, known=found.known and not self._may_hide_too_much(found, free_bytes))

    def _count(self, stop_at_bytes: int, give_up: GiveUp) -> "_Measured":
        unnamed = self._sandbox.unnamed(os.fstat(self._fd).st_dev, give_up)
        size = trees.measure(self._fd, stop_at_bytes=stop_at_bytes - unnamed.used_bytes, give_up=give_up)
        return _Measured(
            size.used_bytes + unnamed.used_bytes,
            known=size.complete and unnamed.complete,
            descriptors_under_way=unnamed.descriptors_under_way > 0,
            hidden=unnamed.hidden,
        )

    def _may_hide_too_much(self, found: "_Measured", free_bytes: int) -> bool:
        """Whether the disk has lost too much since there are processes that cannot be looked into."""
        if not (found.hidden and self._hidden):
            self._free_before_hiding_bytes = free_bytes
        self._hidden = found.hidden
        return self._free_before_hiding_bytes - free_bytes > self._room_bytes()

    def _may_be_full(self) -> bool:
        """Whether the disk has lost so much that this workspace may have taken the rest of what it may."""
        return self._free_at_look_bytes - self._free_bytes() > self._room_bytes() // 2

    def _room_bytes(self) -> int:
        return max(self._limit_bytes - self._used_bytes, _LEAST_ROOM_BYTES)

    def _free_bytes(self) -> int:
        return self._host_space(self._fd).free_bytes


@dataclass(frozen=True, slots=True)
class _Measured:
    """`known` is false when there may be more than what was found; `hidden` as in deleted.Unnamed."""

    used_bytes: int
    known: bool
    descriptors_under_way: bool = False
    hidden: bool = False
