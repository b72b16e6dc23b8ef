"""Keeps one sandbox's workspace within its limit, and the host's disk from filling up.

No quota of the kernel is at hand, so the workspace is measured while something runs in the sandbox, deleted
files that are still open included. Once it is over the limit its processes are stopped, and until there is
room again commands run with a file size limit of 0: they can delete and not write. RLIMIT_FSIZE keeps a
single file from outrunning the measurements.
"""

import asyncio
import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from local_runtime import trees

log = logging.getLogger(__name__)

MEBIBYTE = 1 << 20
GIBIBYTE = 1 << 30
# What always stays free on the host's disk, for everything else that lives on it.
HOST_FREE_BYTES = GIBIBYTE
HOST_FREE_FILES = 20_000
# What a command may add to a workspace that is full: names take space too.
_GROWTH_WHILE_FULL_BYTES = MEBIBYTE
_INTERVAL_SECONDS = 0.5
_INTERVAL_WHILE_FULL_SECONDS = 0.2
# How often to see whether something runs without a command.
_IDLE_SECONDS = 2.0
# Measuring takes at most a tenth of one CPU.
_INTERVAL_PER_COST = 10.0
CONCURRENT_MEASUREMENTS = 2
_UNLIMITED_BYTES = 1 << 62


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


@dataclass(frozen=True, slots=True)
class Full:
    """Why nothing may be written: `reason` for the caller, and whether it is this workspace's doing."""

    reason: str
    over_limit: bool


def verdict(used_bytes: int, limit_bytes: int, host: HostSpace) -> Full | None:
    """Whether a workspace that uses `used_bytes` may be written to."""
    if used_bytes > limit_bytes:
        return Full(
            f"/workspace is over its limit of {readable_size(limit_bytes)}; until files are deleted, "
            "commands cannot write",
            over_limit=True,
        )
    if host.low:
        return Full(
            f"the machine's disk has less than {readable_size(HOST_FREE_BYTES)} left, which stays free; "
            "until there is more, commands cannot write",
            over_limit=False,
        )
    return None


def readable_size(size_bytes: int) -> str:
    for unit, name in ((GIBIBYTE, "GiB"), (MEBIBYTE, "MiB"), (1024, "KiB")):
        if size_bytes >= unit:
            return f"{size_bytes / unit:.1f}".removesuffix(".0") + f" {name}"
    return f"{size_bytes} bytes"


class Controlled(Protocol):
    """What the guard may do to a sandbox."""

    def forbid_writing(self, forbidden: bool) -> None:
        """Take from all running processes, and what they start, the right to write files, or give it back;
        as far as the host permits it."""
        ...

    async def stop_processes(self, reason: str, *, shell_too: bool) -> None:
        """End the running command, whose result gives `reason`, and all else; the shell only if asked to."""
        ...

    def deleted_bytes(self, device: int) -> int:
        """What files of the workspace without a name take. Called from a thread."""
        ...

    def cpu_ticks(self) -> int:
        """A number that changes when anything has run in the sandbox. Called from a thread."""
        ...


class DiskGuard:
    """Watches one workspace, given as an open directory, from `start` to `close`.

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
        """Set while nothing may be written."""
        self._fd = workspace_fd
        self._limit_bytes = limit_bytes
        self._sandbox = sandbox
        self._measurements = measurements
        self._host_space = host_space
        self._allowed_bytes = 0  # while full
        self._cost_seconds = 0.0
        self._busy = asyncio.Event()
        self._looking = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self._measuring: asyncio.Future[int] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._watch())

    async def close(self) -> None:
        """Returns when the directory is not used any more."""
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
        """Look once more if the workspace was full; go on watching if processes are left (`busy`)."""
        if self.full is not None:
            await self.look()
        if not busy:
            self._busy.clear()

    async def look(self) -> None:
        """Measure and act on it."""
        async with self._looking:
            before = self.full
            # Over the limit it does not matter by how much, unless it is to be seen whether it grows.
            used = await self._measure(_UNLIMITED_BYTES if before else self._limit_bytes)
            self.full = verdict(used, self._limit_bytes, self._host_space(self._fd))
            if self.full is None:
                if before is not None:
                    self._sandbox.forbid_writing(False)
                return
            # Also when it was full before: the shell may have been replaced by one that can write.
            self._sandbox.forbid_writing(True)
            if self.full.over_limit and (before is None or not before.over_limit):
                await self._sandbox.stop_processes(self.full.reason, shell_too=False)
                used = await self._measure(_UNLIMITED_BYTES)
            elif before is not None and used > self._allowed_bytes:
                # Everything else was stopped before, so it may be the shell itself that goes on.
                await self._sandbox.stop_processes(self.full.reason, shell_too=True)
            allowed = used + _GROWTH_WHILE_FULL_BYTES
            self._allowed_bytes = allowed if before is None else min(allowed, self._allowed_bytes)

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
            await asyncio.sleep(max(shortest, _INTERVAL_PER_COST * self._cost_seconds))

    async def _measure(self, stop_at_bytes: int) -> int:
        async with self._measurements:
            self._measuring = asyncio.ensure_future(asyncio.to_thread(self._used_bytes, stop_at_bytes))
            return await asyncio.shield(self._measuring)

    def _used_bytes(self, stop_at_bytes: int) -> int:
        started = time.monotonic()
        deleted_bytes = self._sandbox.deleted_bytes(os.fstat(self._fd).st_dev)
        size = trees.measure(self._fd, stop_at_bytes=stop_at_bytes - deleted_bytes)
        self._cost_seconds = time.monotonic() - started
        return size.used_bytes + deleted_bytes
