"""When a pod in use is stamped. Its clock stands still; waits are those of the loop."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

import pytest

from mcp_server.cluster.activity import Activity
from mcp_server.cluster.kubernetes import Unanswered
from mcp_server.cluster.pods import SandboxPod
from tests.mcp_server.cluster.harness import eventually

NOW = datetime(2026, 1, 1, tzinfo=UTC)
IDLE = timedelta(minutes=6)
POD = SandboxPod("p", "uid", "1", last_activity=NOW)


@dataclass
class Stamps:
    written: list[str] = field(default_factory=list)
    begun: int = 0
    failures: int = 0
    answer: asyncio.Event = field(default_factory=asyncio.Event)

    async def write(self, pod: SandboxPod) -> None:
        self.begun += 1
        await self.answer.wait()
        if self.failures:
            self.failures -= 1
            raise Unanswered("no answer")
        self.written.append(pod.uid)


@pytest.fixture
def stamps() -> Stamps:
    stamps = Stamps()
    stamps.answer.set()
    return stamps


def activity(stamps: Stamps, known: SandboxPod | None = POD, idle: timedelta = IDLE) -> Activity:
    return Activity(stamps.write, lambda uid: known, lambda: idle, lambda: NOW)


@pytest.mark.parametrize(
    ("last", "expiring"),
    [(None, True), (NOW - IDLE, True), (NOW - IDLE + timedelta(seconds=1), False), (NOW, False)],
)
def test_a_pod_is_expiring_from_its_idle_timeout_on(
    stamps: Stamps, last: datetime | None, expiring: bool
) -> None:
    assert activity(stamps).is_expiring(replace(POD, last_activity=last)) is expiring


@pytest.mark.parametrize("last", [None, NOW - IDLE / 6])
async def test_a_pod_that_is_due_is_stamped_once_however_many_use_it(
    stamps: Stamps, last: datetime | None
) -> None:
    used = replace(POD, last_activity=last)
    kept = activity(stamps, used)
    async with kept.kept(used), kept.kept(used):
        await eventually(lambda: stamps.written == ["uid"])
        await asyncio.sleep(0.05)
    assert stamps.written == ["uid"]


async def test_a_pod_that_was_stamped_lately_is_not_stamped_even_if_by_another_replica(
    stamps: Stamps,
) -> None:
    async with activity(stamps, known=POD).kept(replace(POD, last_activity=None)):
        await asyncio.sleep(0.05)
    assert stamps.begun == 0


async def test_after_a_time_without_news_all_that_is_in_use_is_stamped(stamps: Stamps) -> None:
    kept = activity(stamps)
    other = replace(POD, uid="other")
    async with kept.kept(POD):
        async with kept.kept(other):
            pass
        kept.stamp_all()
        await eventually(lambda: stamps.written == ["uid"])


async def test_a_stamp_that_has_begun_is_written_also_when_the_command_is_over(stamps: Stamps) -> None:
    stamps.answer.clear()
    async with activity(stamps, known=None).kept(replace(POD, last_activity=None)):
        await eventually(lambda: stamps.begun == 1)
    stamps.answer.set()
    await eventually(lambda: stamps.written == ["uid"])


async def test_a_stamp_that_fails_is_tried_again_soon(stamps: Stamps) -> None:
    stamps.failures = 1
    kept = activity(stamps, known=None, idle=timedelta(seconds=1))
    async with kept.kept(replace(POD, last_activity=None)):
        await eventually(lambda: stamps.written == ["uid"])
    assert stamps.begun == 2
