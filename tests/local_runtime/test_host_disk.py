"""The watch over the host's disk, with sandboxes that write down what is done to them."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from local_runtime.host_disk import (
    GIBIBYTE,
    HOST_FREE_BYTES,
    MEBIBYTE,
    HostSpace,
    HostWatch,
    Usage,
    allowances,
    growing,
)

FILES = 1_000_000
PLENTY = HostSpace(100 * GIBIBYTE, FILES)
SCARCE = HostSpace(HOST_FREE_BYTES + 300 * MEBIBYTE, FILES)
LOW = HostSpace(HOST_FREE_BYTES - 1, FILES)


class Recorder:
    def __init__(self, used: Usage) -> None:
        self.used = used
        self.allowed: int | None = None
        self.host_low = False
        self.stopped = 0

    def usage(self) -> Usage:
        return self.used

    def allow(self, growth_bytes: int | None, *, host_low: bool) -> None:
        self.allowed, self.host_low = growth_bytes, host_low

    def stop_at_once(self, reason: str) -> None:
        self.stopped += 1


class Ended(Recorder):
    def usage(self) -> Usage:
        raise FileNotFoundError


class Host:
    space = PLENTY

    def __call__(self, fd: int) -> HostSpace:
        return self.space


@pytest.fixture
def host() -> Host:
    return Host()


@pytest.fixture
def watch(tmp_path: Path, host: Host) -> Iterator[HostWatch]:
    fd = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    yield HostWatch(fd, host_space=host)
    os.close(fd)


def bounded(room_bytes: int = GIBIBYTE, unwritten_bytes: int = 0, written_bytes: int = 0) -> Recorder:
    return Recorder(Usage(written_bytes, unwritten_bytes, room_bytes))


@pytest.mark.parametrize(
    ("budget", "rooms", "allowed"),
    [
        (90, [100, 100, 100], [30, 30, 30]),
        (90, [10, 100, 100], [10, 40, 40]),
        (90, [100, 5, 10], [75, 5, 10]),
        (1000, [100, 5, 10], [100, 5, 10]),
        (0, [100, 5], [0, 0]),
        (-5, [100, 5], [0, 0]),
        (5, [], []),
    ],
)
def test_what_is_left_is_shared_and_never_promised_twice(
    budget: int, rooms: list[int], allowed: list[int]
) -> None:
    assert allowances(budget, rooms) == allowed
    assert sum(allowed) <= max(budget, 0)


async def test_while_there_is_plenty_nobody_is_asked_or_bounded(watch: HostWatch) -> None:
    writer = Ended(Usage(0))
    watch.add(writer)
    await watch.look()
    assert writer.allowed is None


async def test_when_it_gets_scarce_all_together_may_take_what_is_above_the_reserve(
    watch: HostWatch, host: Host
) -> None:
    writers = [bounded(), bounded(), bounded(room_bytes=10 * MEBIBYTE)]
    for writer in writers:
        watch.add(writer)
    host.space = SCARCE
    await watch.look()
    assert [writer.allowed for writer in writers] == [145 * MEBIBYTE, 145 * MEBIBYTE, 10 * MEBIBYTE]
    host.space = PLENTY
    await watch.look()
    assert [writer.allowed for writer in writers] == [None, None, None]


async def test_what_waits_in_memory_to_be_written_counts(watch: HostWatch, host: Host) -> None:
    writer = bounded(unwritten_bytes=200 * MEBIBYTE)
    watch.add(writer)
    host.space = SCARCE
    await watch.look()
    assert writer.allowed == 100 * MEBIBYTE
    writer.used = Usage(0, 400 * MEBIBYTE, GIBIBYTE)
    await watch.look()
    assert writer.allowed == 0 and writer.host_low


async def test_whoever_writes_without_a_bound_when_the_disk_gets_low_is_stopped_and_nobody_else(
    watch: HostWatch, host: Host
) -> None:
    writing, idle = Recorder(Usage(0)), Recorder(Usage(0))
    watch.add(writing)
    watch.add(idle)
    host.space = SCARCE
    await watch.look()
    writing.used, idle.used = Usage(100 * MEBIBYTE), Usage(1000)
    host.space = LOW
    await watch.look()
    assert (writing.stopped, idle.stopped) == (1, 0)
    assert writing.host_low and idle.host_low


async def test_whoever_is_bounded_may_use_up_what_it_was_allowed(watch: HostWatch, host: Host) -> None:
    writer = bounded()
    watch.add(writer)
    host.space = SCARCE
    await watch.look()
    writer.used = Usage(300 * MEBIBYTE, 0, GIBIBYTE)
    host.space = LOW
    for _ in range(5):
        await watch.look()
    assert writer.stopped == 0
    writer.used = Usage(301 * MEBIBYTE, 0, GIBIBYTE)
    await watch.look()
    assert writer.stopped == 1


async def test_a_sandbox_that_ends_meanwhile_keeps_nobody_from_being_bounded(
    watch: HostWatch, host: Host
) -> None:
    ended, writer = Ended(Usage(0)), bounded()
    watch.add(ended)
    watch.add(writer)
    host.space = SCARCE
    await watch.look()
    assert writer.allowed == 300 * MEBIBYTE
    watch.remove(ended)
    await watch.look()
    assert writer.allowed == 300 * MEBIBYTE


def test_the_largest_growth_comes_first() -> None:
    small, large = Recorder(Usage(0)), Recorder(Usage(0))
    before = {small: Usage(0), large: Usage(0)}
    now = {small: Usage(10 * MEBIBYTE), large: Usage(20 * MEBIBYTE)}
    assert growing(before, now, low_looks=0) == [large, small]


def test_a_full_list_of_files_is_low_as_well() -> None:
    assert HostSpace(100 * GIBIBYTE, 10).low
    assert not HostSpace(100 * GIBIBYTE, None).low
