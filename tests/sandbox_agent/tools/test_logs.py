import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli_mcp.execution import ToolFailed
from sandbox_agent.tools.logs import FileLog, ProcessLog, open_log_directory
from sandbox_agent.tools.root import Root


@pytest.fixture
def log(root: Root) -> Iterator[ProcessLog]:
    """A log that is rotated every 10 bytes."""
    log = ProcessLog(open_log_directory(root, "logs"), "p.log", limit_bytes=10)
    yield log
    log.close(remove=True)


def test_reading_goes_on_where_it_ended(log: ProcessLog) -> None:
    log.append(b"one")
    piece = log.read(0, 100)
    assert (piece.data, piece.offset, piece.gap) == (b"one", 0, None)
    assert log.read(3, 100).data == b""
    log.append(b"two")
    assert log.read(3, 100).data == b"two"
    assert log.read(1, 2).data == b"ne"


def test_without_an_offset_the_end_is_read(log: ProcessLog) -> None:
    log.append(b"123456")
    piece = log.read(None, 2)
    assert (piece.data, piece.offset, piece.size_bytes) == (b"56", 4, 6)


def test_an_offset_counts_through_a_rotation_until_the_file_is_gone(log: ProcessLog, directory: Path) -> None:
    log.append(b"0123456789abcde")
    assert (directory / "logs/p.log.1").read_bytes() == b"0123456789"
    assert (directory / "logs/p.log").read_bytes() == b"abcde"
    first = log.read(7, 100)
    assert (first.data, first.gap) == (b"789", None)
    assert log.read(10, 100).data == b"abcde"
    log.append(b"fghijKLM")
    piece = log.read(7, 100)
    assert (piece.data, piece.offset, piece.gap, piece.lost_bytes) == (b"abcdefghij", 10, "rotated", 3)
    assert sum(path.stat().st_size for path in (directory / "logs").iterdir()) <= 20


def test_a_log_that_the_sandbox_truncates_says_so_and_goes_on(log: ProcessLog, directory: Path) -> None:
    log.append(b"12345")
    os.truncate(directory / "logs/p.log", 0)
    log.append(b"67")
    piece = log.read(2, 100)
    assert (piece.data, piece.offset, piece.gap, piece.lost_bytes) == (b"67", 5, "truncated", 3)
    log.append(b"890ab")
    assert log.read(5, 100).data == b"67890"
    os.truncate(directory / "logs/p.log.1", 0)
    assert log.read(7, 100).gap == "truncated"
    assert log.read(10, 100).data == b"ab"


def test_a_log_that_the_sandbox_removes_or_replaces_goes_on(log: ProcessLog, directory: Path) -> None:
    log.append(b"12345")
    (directory / "logs/p.log").unlink()
    (directory / "logs/p.log").symlink_to("../../secret")
    secret = (directory.parent / "secret").read_text()
    log.append(b"67890abc")
    assert log.read(0, 100).data == b"1234567890" and log.read(10, 100).data == b"abc"
    assert (directory.parent / "secret").read_text() == secret


def test_an_offset_of_a_process_before_is_noticed_when_it_is_beyond_the_end(log: ProcessLog) -> None:
    log.append(b"new")
    piece = log.read(100, 10)
    assert (piece.data, piece.gap) == (b"new", "restarted")


def test_what_is_in_the_way_is_removed_but_for_a_directory(root: Root, directory: Path) -> None:
    (directory / "logs/d.log").mkdir(parents=True)
    os.mkfifo(directory / "logs/p.log")
    ProcessLog(open_log_directory(root, "logs"), "p.log").close(remove=False)
    assert (directory / "logs/p.log").is_file()
    with pytest.raises(ToolFailed, match="in the way"):
        ProcessLog(open_log_directory(root, "logs"), "d.log")


def test_a_file_is_followed_through_truncation_and_rotation(root: Root, directory: Path) -> None:
    path = directory / "app.log"
    path.write_bytes(b"first\n")
    piece = FileLog(root, "app.log", None).read(None, 100)
    assert piece.data == b"first\n" and piece.file_id is not None
    known = piece.file_id
    with path.open("ab") as file:
        file.write(b"second\n")
    assert FileLog(root, "app.log", known).read(6, 100).data == b"second\n"
    path.rename(directory / "app.log.1")
    path.write_bytes(b"third\n")
    rest = FileLog(root, "app.log", known).read(6, 100)
    assert (rest.data, rest.file_id, rest.gap) == (b"second\n", known, None)
    after = FileLog(root, "app.log", known).read(13, 100)
    assert (after.data, after.gap, after.lost_bytes) == (b"third\n", "rotated", 0)
    path.write_bytes(b"4\n")
    truncated = FileLog(root, "app.log", after.file_id).read(6, 100)
    assert (truncated.data, truncated.gap, truncated.lost_bytes) == (b"4\n", "truncated", None)
    path.unlink()
    (directory / "app.log.1").unlink()
    (directory / "other").write_bytes(b"x")
    path.write_bytes(b"5\n")
    gone = FileLog(root, "app.log", known).read(0, 100)
    assert (gone.data, gone.gap, gone.lost_bytes) == (b"5\n", "rotated", None)
