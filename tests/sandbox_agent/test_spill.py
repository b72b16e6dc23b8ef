import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandbox_agent.confined import ConfinedDirectory
from sandbox_agent.spill import SpillDirectory, SpillLimits

LIMITS = SpillLimits(file_bytes=100, files=3, total_bytes=250)


@pytest.fixture
def spill(tmp_path: Path) -> Iterator[SpillDirectory]:
    with ConfinedDirectory(tmp_path) as workspace:
        yield SpillDirectory(workspace, None, LIMITS)


def names(tmp_path: Path) -> list[str]:
    return sorted(os.listdir(tmp_path / ".cli-mcp"))


def test_a_file_takes_the_first_bytes_up_to_its_limit(spill: SpillDirectory, tmp_path: Path) -> None:
    file = spill.create("1.stdout", 10)
    file.append(b"01234")
    assert not file.full
    file.append(b"56789abc")
    assert (file.full, file.size_bytes) == (True, 10)
    file.append(b"more")
    file.close()
    assert (tmp_path / ".cli-mcp/1.stdout").read_bytes() == b"0123456789"


def test_a_file_that_is_being_written_is_never_removed(spill: SpillDirectory, tmp_path: Path) -> None:
    first = spill.create("1.stdout", 100)
    for number in range(2, 6):
        file = spill.create(f"{number}.stdout", 100)
        file.append(b"x" * 60)
        file.close()
    assert names(tmp_path) == ["1.stdout", "4.stdout", "5.stdout"]
    first.close()
    spill.create("6.stdout", 100).close()
    assert names(tmp_path) == ["4.stdout", "5.stdout", "6.stdout"]


def test_files_that_are_all_being_written_leave_no_room(spill: SpillDirectory) -> None:
    files = [spill.create(f"{number}.stdout", 100) for number in range(3)]
    with pytest.raises(OSError) as caught:
        spill.create("3.stdout", 100)
    assert caught.value.errno == errno.EDQUOT
    for file in files[:2]:
        file.append(b"x" * 100)
    with pytest.raises(OSError) as caught:
        files[2].append(b"x" * 100)
    assert caught.value.errno == errno.EDQUOT
    for file in files:
        file.close()


def test_files_of_others_are_neither_counted_nor_removed(spill: SpillDirectory, tmp_path: Path) -> None:
    directory = tmp_path / ".cli-mcp"
    directory.mkdir()
    for name in ("1.txt", "x.stdout", "1.stdout.gz", "1.background.log"):
        (directory / name).write_text("x" * 1000)
    assert spill.adopt() == 0
    for number in range(5):
        spill.create(f"{number}.stdout", 100).close()
    assert {"1.txt", "x.stdout", "1.stdout.gz", "1.background.log"} <= set(names(tmp_path))


def test_a_name_that_is_taken_is_no_file(spill: SpillDirectory, tmp_path: Path) -> None:
    (tmp_path / ".cli-mcp").mkdir()
    (tmp_path / ".cli-mcp/1.stdout").write_text("mine")
    with pytest.raises(FileExistsError):
        spill.create("1.stdout", 100)
    assert (tmp_path / ".cli-mcp/1.stdout").read_text() == "mine"


def test_what_the_sandbox_removed_or_replaced_does_not_stop_the_next(
    spill: SpillDirectory, tmp_path: Path
) -> None:
    for number in range(3):
        spill.create(f"{number}.stdout", 100).close()
    (tmp_path / ".cli-mcp/0.stdout").unlink()
    (tmp_path / ".cli-mcp/1.stdout").unlink()
    (tmp_path / ".cli-mcp/1.stdout").mkdir()
    for number in range(3, 7):
        spill.create(f"{number}.stdout", 100).close()
    assert names(tmp_path) == ["1.stdout", "4.stdout", "5.stdout", "6.stdout"]


def test_limits_within_a_workspace_take_at_most_half_of_it() -> None:
    small, large = SpillLimits.within(256 << 20), SpillLimits.within(1 << 40)
    assert small.total_bytes == 128 << 20
    assert small.background_file_bytes <= small.file_bytes < small.total_bytes
    assert large == SpillLimits()
