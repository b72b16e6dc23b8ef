"""The disk guard, with a sandbox that writes down what is done to it."""

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from local_runtime import disk
from local_runtime.deleted import Unnamed
from local_runtime.disk import DiskGuard, readable_size, verdict
from local_runtime.host_disk import GIBIBYTE, HOST_FREE_BYTES, HOST_FREE_FILES, MEBIBYTE, HostSpace
from local_runtime.trees import GiveUp

LIMIT_BYTES = 4 * MEBIBYTE
PLENTY = HostSpace(100 * GIBIBYTE, 1_000_000)
LOW = HostSpace(HOST_FREE_BYTES - 1, 1_000_000)


class Recorder:
    """A sandbox whose processes do nothing."""

    def __init__(self) -> None:
        self.forbidden = False
        self.stopped: list[str] = []
        self.shell_stopped = False
        self.deleted = Unnamed(0, 0, complete=True)
        self.ticks = 0
        self.stood_still = 0
        self.give_up = False

    def forbid_writing(self, forbidden: bool) -> None:
        self.forbidden = forbidden

    async def stop_processes(self, reason: str, *, shell_too: bool) -> None:
        self.stopped.append(reason)
        self.shell_stopped = shell_too

    @contextmanager
    def standing_still(self) -> Iterator[None]:
        self.stood_still += 1
        self.give_up = False
        yield

    def unnamed(self, device: int, give_up: GiveUp) -> Unnamed:
        return replace(self.deleted, complete=False) if self.give_up else self.deleted

    def written_bytes(self) -> int:
        return 0

    def cpu_ticks(self) -> int:
        return self.ticks


class Host:
    space = PLENTY

    def __call__(self, fd: int) -> HostSpace:
        return self.space


@pytest.fixture
def sandbox() -> Recorder:
    return Recorder()


@pytest.fixture
def host() -> Host:
    return Host()


@pytest.fixture
def guard(tmp_path: Path, sandbox: Recorder, host: Host) -> Iterator[DiskGuard]:
    fd = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    yield DiskGuard(fd, LIMIT_BYTES, sandbox, asyncio.Semaphore(1), host_space=host)
    os.close(fd)


def fill(directory: Path, name: str, size_bytes: int) -> Path:
    file = directory / name
    file.write_bytes(os.urandom(size_bytes))
    return file


@pytest.mark.parametrize(
    ("used_bytes", "host_space", "full", "over_limit"),
    [
        (LIMIT_BYTES, PLENTY, False, False),
        (LIMIT_BYTES + 1, PLENTY, True, True),
        (0, LOW, True, False),
        (LIMIT_BYTES + 1, LOW, True, True),
        (0, HostSpace(HOST_FREE_BYTES, None), False, False),
        (0, HostSpace(GIBIBYTE * 9, HOST_FREE_FILES - 1), True, False),
    ],
)
def test_a_workspace_is_full_when_its_limit_or_the_hosts_reserve_is_reached(
    used_bytes: int, host_space: HostSpace, full: bool, over_limit: bool
) -> None:
    found = verdict(used_bytes, LIMIT_BYTES, host_space.low)
    assert (found is not None) is full
    assert (found is not None and found.over_limit) is over_limit


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [(10 * GIBIBYTE, "10 GiB"), (1536 * MEBIBYTE, "1.5 GiB"), (64 * MEBIBYTE, "64 MiB"), (512, "512 bytes")],
)
def test_sizes_are_readable(size_bytes: int, text: str) -> None:
    assert readable_size(size_bytes) == text


async def test_going_over_the_limit_stops_everything_and_forbids_writing(
    guard: DiskGuard, sandbox: Recorder, tmp_path: Path
) -> None:
    fill(tmp_path, "a", LIMIT_BYTES + MEBIBYTE)
    await guard.look()
    assert guard.full is not None and "limit of 4 MiB" in guard.full.reason
    assert sandbox.stopped == [guard.full.reason]
    assert sandbox.forbidden


async def test_while_full_only_growth_is_stopped(guard: DiskGuard, sandbox: Recorder, tmp_path: Path) -> None:
    fill(tmp_path, "a", LIMIT_BYTES + 3 * MEBIBYTE)
    await guard.look()
    sandbox.stopped.clear()
    await guard.look()
    assert sandbox.stopped == []
    fill(tmp_path, "b", 2 * MEBIBYTE)
    await guard.look()
    assert len(sandbox.stopped) == 1


async def test_the_shell_is_spared_at_first_and_stopped_when_something_still_grows(
    guard: DiskGuard, sandbox: Recorder, tmp_path: Path
) -> None:
    fill(tmp_path, "a", LIMIT_BYTES + MEBIBYTE)
    await guard.look()
    assert sandbox.stopped and not sandbox.shell_stopped
    fill(tmp_path, "b", 2 * MEBIBYTE)
    await guard.look()
    assert sandbox.shell_stopped


async def test_deleted_files_that_are_in_use_count(
    guard: DiskGuard, sandbox: Recorder, tmp_path: Path
) -> None:
    fill(tmp_path, "a", LIMIT_BYTES - MEBIBYTE)
    await guard.look()
    assert guard.full is None
    sandbox.deleted = replace(sandbox.deleted, used_bytes=2 * MEBIBYTE)
    await guard.look()
    assert guard.full is not None and sandbox.stopped


async def test_room_that_was_freed_cannot_be_taken_again_while_full(
    guard: DiskGuard, sandbox: Recorder, tmp_path: Path
) -> None:
    fill(tmp_path, "a", LIMIT_BYTES + MEBIBYTE)
    freed = fill(tmp_path, "b", 8 * MEBIBYTE)
    await guard.look()
    sandbox.stopped.clear()
    freed.unlink()
    await guard.look()
    assert sandbox.stopped == []
    fill(tmp_path, "c", 4 * MEBIBYTE)
    await guard.look()
    assert len(sandbox.stopped) == 1


async def test_freeing_space_gives_writing_back(guard: DiskGuard, sandbox: Recorder, tmp_path: Path) -> None:
    file = fill(tmp_path, "a", LIMIT_BYTES + MEBIBYTE)
    await guard.look()
    file.unlink()
    await guard.after_command(busy=False)
    assert guard.full is None
    assert not sandbox.forbidden


async def test_a_full_disk_stops_nobody_who_does_not_write(
    guard: DiskGuard, sandbox: Recorder, host: Host, tmp_path: Path
) -> None:
    host.space = LOW
    await guard.look()
    await guard.look()
    assert sandbox.forbidden
    assert sandbox.stopped == []
    fill(tmp_path, "a", 2 * MEBIBYTE)
    await guard.look()
    assert len(sandbox.stopped) == 1
    host.space = PLENTY
    await guard.look()
    assert not sandbox.forbidden


async def test_it_watches_from_a_command_on_until_nothing_runs(
    guard: DiskGuard, sandbox: Recorder, tmp_path: Path
) -> None:
    guard.start()
    try:
        await guard.before_command()
        fill(tmp_path, "a", LIMIT_BYTES + MEBIBYTE)
        async with asyncio.timeout(20):
            while not sandbox.stopped:
                await asyncio.sleep(0.05)
    finally:
        await guard.close()


async def test_without_a_command_it_looks_when_something_ran_and_only_then(
    guard: DiskGuard, sandbox: Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("local_runtime.disk._IDLE_SECONDS", 0.02)
    guard.start()
    try:
        await asyncio.sleep(0.3)  # the first look is for what happened before
        fill(tmp_path, "a", LIMIT_BYTES + MEBIBYTE)
        await asyncio.sleep(0.3)
        assert sandbox.stopped == []
        sandbox.ticks += 1
        async with asyncio.timeout(20):
            while not sandbox.stopped:
                await asyncio.sleep(0.05)
    finally:
        await guard.close()


async def test_closing_waits_for_a_measurement(guard: DiskGuard, tmp_path: Path) -> None:
    for number in range(2000):
        (tmp_path / str(number)).touch()
    guard.start()
    await guard.before_command()
    await asyncio.sleep(0)
    await guard.close()


async def test_what_cannot_be_measured_while_it_runs_is_measured_standing_still(
    guard: DiskGuard, sandbox: Recorder
) -> None:
    await guard.look()
    assert sandbox.stood_still == 0
    sandbox.give_up = True
    await guard.look()
    assert sandbox.stood_still == 1
    assert guard.full is None


async def test_what_cannot_be_measured_at_all_counts_as_full(guard: DiskGuard, sandbox: Recorder) -> None:
    sandbox.deleted = replace(sandbox.deleted, complete=False)
    await guard.look()
    assert guard.full == disk.UNMEASURABLE
    assert sandbox.stopped and sandbox.forbidden


async def test_descriptors_that_stay_under_way_in_a_socket_count_as_full(
    guard: DiskGuard, sandbox: Recorder
) -> None:
    sandbox.deleted = replace(sandbox.deleted, descriptors_under_way=1)
    await guard.look()
    assert guard.full is None
    await guard.look()
    assert guard.full == disk.UNMEASURABLE


async def test_a_process_that_cannot_be_looked_into_may_run_until_the_disk_has_lost_what_it_may_hold(
    guard: DiskGuard, sandbox: Recorder, host: Host
) -> None:
    sandbox.deleted = replace(sandbox.deleted, hidden=True)
    await guard.look()
    assert guard.full is None
    host.space = HostSpace(PLENTY.free_bytes - 2 * disk._LEAST_ROOM_BYTES, PLENTY.free_files)
    await guard.look()
    assert guard.full == disk.UNMEASURABLE


async def test_a_workspace_that_goes_on_growing_while_it_is_full_gets_no_more_commands(
    guard: DiskGuard, sandbox: Recorder, tmp_path: Path
) -> None:
    fill(tmp_path, "a", LIMIT_BYTES + MEBIBYTE)
    await guard.look()
    assert guard.refused is None
    fill(tmp_path, "b", disk._GROWTH_AT_MOST_BYTES + 2 * MEBIBYTE)
    await guard.look()
    assert guard.refused is not None and "DELETE" in guard.refused


async def test_it_looks_at_once_when_the_disk_has_lost_what_may_still_be_written(
    guard: DiskGuard, sandbox: Recorder, host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk, "_INTERVAL_SECONDS", 60.0)
    guard.start()
    try:
        await guard.before_command()
        await asyncio.sleep(0.3)  # the first look
        fill(tmp_path, "a", LIMIT_BYTES + MEBIBYTE)
        await asyncio.sleep(0.3)
        assert sandbox.stopped == []
        host.space = HostSpace(PLENTY.free_bytes - 2 * disk._LEAST_ROOM_BYTES, PLENTY.free_files)
        async with asyncio.timeout(20):
            while not sandbox.stopped:
                await asyncio.sleep(0.02)
    finally:
        await guard.close()
