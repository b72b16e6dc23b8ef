"""Orphans are reaped, and the children of asyncio keep their status."""

import asyncio
import ctypes
import os
import time
from collections.abc import Iterator

import pytest

from sandbox_agent import processes, reaper
from sandbox_agent.reaper import Reaper

_PR_SET_CHILD_SUBREAPER = 36


@pytest.fixture(autouse=True)
def parent_of_orphans(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What pid 1 is by its number, a subreaper is by asking."""
    monkeypatch.setattr(reaper, "LOOK_SECONDS", 0.1)
    prctl = ctypes.CDLL(None).prctl
    prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    yield
    prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def zombies() -> list[int]:
    found = processes.all_processes().values()
    return [each.pid for each in found if each.parent == os.getpid() and not each.alive]


async def test_orphans_are_reaped_and_children_of_asyncio_are_not_taken() -> None:
    work = Reaper()
    try:
        statuses = []
        for number in range(20):
            orphans = await asyncio.create_subprocess_exec(
                "bash", "-c", "for n in 1 2 3; do sleep 0.05 & done"
            )
            assert await orphans.wait() == 0
            child = await asyncio.create_subprocess_exec("bash", "-c", f"sleep 0.05; exit {number}")
            statuses.append(await child.wait())
        assert statuses == list(range(20))
        deadline = time.monotonic() + 10
        while zombies():
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)
    finally:
        work.close()


async def test_without_it_orphans_stay_as_zombies() -> None:
    orphans = await asyncio.create_subprocess_exec("bash", "-c", "sleep 0.05 & echo $!", stdout=-1)
    output, _ = await orphans.communicate()
    deadline = time.monotonic() + 10
    while int(output) not in zombies():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)
    os.waitpid(int(output), 0)
