"""A flood costs its reader a share that does not depend on the flood; what is wanted comes at once."""

import asyncio
import fcntl
import os
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from sandbox_agent.paced import Pace, PacedReader

_F_SETPIPE_SZ = 1031
TURN_SECONDS = 0.001
# Turns of a millisecond: four at once, then forty in a second.
PACE = Pace(turn_bytes=1_000, burst_seconds=0.0035, share=0.04, flood_bytes=1 << 30)
FREE = Pace(turn_bytes=1_000, burst_seconds=100, share=1, flood_bytes=10_000)


@dataclass
class Pipe:
    reading: int
    writing: int
    pieces: list[bytes] = field(default_factory=list)
    floods: int = 0
    clock_seconds: float = 0

    def reader(self, pace: Pace = PACE) -> PacedReader:
        return PacedReader(
            self.reading, pace, self.feed, on_flood=self.flooded, processor_seconds=lambda: self.clock_seconds
        )

    def feed(self, data: bytes) -> None:
        self.pieces.append(data)
        self.clock_seconds += TURN_SECONDS

    def flooded(self) -> None:
        self.floods += 1

    @property
    def taken(self) -> int:
        return sum(map(len, self.pieces))


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    reading, writing = os.pipe2(os.O_NONBLOCK)
    fcntl.fcntl(writing, _F_SETPIPE_SZ, 1 << 20)
    yield Pipe(reading, writing)
    os.close(reading)
    os.close(writing)


async def test_what_is_within_the_burst_is_read_at_once(pipe: Pipe) -> None:
    reader = pipe.reader()
    reader.start()
    os.write(pipe.writing, b"x" * 4_000)
    for _ in range(8):
        await asyncio.sleep(0)
    assert pipe.pieces == [b"x" * 1_000] * 4
    reader.close()


async def test_beyond_the_burst_a_flood_is_read_at_its_pace(pipe: Pipe) -> None:
    reader = pipe.reader()
    os.write(pipe.writing, b"x" * 500_000)
    reader.start()
    await asyncio.sleep(0.5)
    reader.close()
    assert 4_000 < pipe.taken <= 4_000 + 0.7 * 40_000
    assert max(map(len, pipe.pieces)) <= 1_000


async def test_a_flood_of_single_bytes_gets_few_turns(pipe: Pipe) -> None:
    reader = pipe.reader()
    reader.start()
    until = asyncio.get_running_loop().time() + 0.5
    while asyncio.get_running_loop().time() < until:
        os.write(pipe.writing, b"x")
        await asyncio.sleep(0)
    reader.close()
    assert 4 < len(pipe.pieces) <= 4 + 0.7 * 40


async def test_who_goes_on_is_hung_up_on_once(pipe: Pipe) -> None:
    reader = pipe.reader(FREE)
    reader.start()
    os.write(pipe.writing, b"x" * 50_000)
    for _ in range(40):
        await asyncio.sleep(0)
    assert (pipe.floods, pipe.taken) == (1, 11_000)


async def test_what_came_before_something_wanted_is_forgiven(pipe: Pipe) -> None:
    reader = pipe.reader(FREE)
    reader.start()
    for _ in range(5):
        os.write(pipe.writing, b"x" * 9_000)
        for _ in range(12):
            await asyncio.sleep(0)
        reader.forgive()
    reader.close()
    assert (pipe.floods, pipe.taken) == (0, 45_000)


async def test_nothing_is_read_between_stop_and_start_nor_is_a_pause_left_out(pipe: Pipe) -> None:
    reader = pipe.reader(Pace(1_000, burst_seconds=0, share=0.0001, flood_bytes=1 << 30))
    reader.start()
    os.write(pipe.writing, b"x" * 9_000)
    await asyncio.sleep(0.01)
    reader.stop()
    reader.start()
    await asyncio.sleep(0.05)
    assert pipe.taken == 1_000
    reader.close()


async def test_after_the_end_of_the_pipe_nothing_turns(pipe: Pipe) -> None:
    other, writing = os.pipe2(os.O_NONBLOCK)
    reader = PacedReader(other, PACE, pipe.pieces.append, on_flood=pipe.flooded)
    reader.start()
    os.close(writing)
    await asyncio.sleep(0.01)
    assert pipe.pieces == [b""]
    reader.start()
    assert not asyncio.get_running_loop().remove_reader(other)
    os.close(other)
