"""What the kernel counts as killed for want of memory."""

from pathlib import Path

import pytest

from sandbox_agent.memory import MemoryFiles, MemoryKills


def files(directory: Path, counters: str, limit: str) -> MemoryFiles:
    (directory / "counters").write_text(counters)
    (directory / "limit").write_text(limit)
    return MemoryFiles(directory / "counters", directory / "limit")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("low 0\nhigh 0\nmax 4\noom 1\noom_kill 1\noom_group_kill 0\n", "oom 2\noom_kill 2\n"),
        ("oom_kill_disable 0\nunder_oom 0\noom_kill 0\n", "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n"),
    ],
    ids=["version 2", "version 1"],
)
def test_a_kill_is_told_once(tmp_path: Path, before: str, after: str) -> None:
    found = files(tmp_path, before, "536870912\n")
    kills = MemoryKills([MemoryFiles(tmp_path / "none", tmp_path / "none"), found])
    assert not kills.since_last_time()
    found.counters.write_text(after)
    assert kills.since_last_time()
    assert not kills.since_last_time()
    assert kills.limit_mib() == 512


@pytest.mark.parametrize("limit", ["max\n", "9223372036854771712\n", ""])
def test_a_container_may_have_no_limit(tmp_path: Path, limit: str) -> None:
    assert MemoryKills([files(tmp_path, "oom_kill 0\n", limit)]).limit_mib() is None


def test_without_counters_nothing_was_killed(tmp_path: Path) -> None:
    kills = MemoryKills([MemoryFiles(tmp_path / "none", tmp_path / "none")])
    assert not kills.since_last_time()
    assert kills.limit_mib() is None
