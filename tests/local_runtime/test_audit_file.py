"""The audit log's file: whose it is, how large it gets, and what happens to a record that it cannot take."""

import json
import os
import stat
from pathlib import Path

import pytest

from local_runtime.audit_file import AuditFile


def line(path: str = "/") -> str:
    return json.dumps({"event": "request", "time": "2026-01-02T03:04:05.000Z", "client": "a", "path": path})


def paths(file: Path) -> list[str]:
    return [json.loads(line)["path"] for line in file.read_text().splitlines()]


def test_each_record_is_a_line_at_once(tmp_path: Path) -> None:
    file = AuditFile(tmp_path / "audit.jsonl")
    file.write_line(line("/a"))
    file.write_line(line("/b"))
    assert (tmp_path / "audit.jsonl").read_text() == f"{line('/a')}\n{line('/b')}\n"
    file.close()


@pytest.mark.parametrize("before", [None, 0o644])
def test_nobody_else_can_read_it(tmp_path: Path, before: int | None) -> None:
    path = tmp_path / "audit.jsonl"
    if before is not None:
        path.touch()
        path.chmod(before)
    AuditFile(path).close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_what_an_earlier_server_wrote_stays(tmp_path: Path) -> None:
    for path in ("/first", "/second"):
        file = AuditFile(tmp_path / "audit.jsonl")
        file.write_line(line(path))
        file.close()
    assert paths(tmp_path / "audit.jsonl") == ["/first", "/second"]


def test_a_large_file_becomes_the_previous_one_and_the_one_before_it_goes(tmp_path: Path) -> None:
    line_bytes = len(line("/10")) + 1
    file = AuditFile(tmp_path / "audit.jsonl", max_bytes=3 * line_bytes)
    for number in range(40):
        file.write_line(line(f"/{number}"))
    file.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["audit.jsonl", "audit.jsonl.1"]
    kept = [*paths(tmp_path / "audit.jsonl.1"), *paths(tmp_path / "audit.jsonl")]
    assert kept == [f"/{number}" for number in range(40 - len(kept), 40)]
    for path in tmp_path.iterdir():
        assert path.stat().st_size <= 4 * line_bytes
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_file_that_was_moved_away_is_made_again_when_it_is_large(tmp_path: Path) -> None:
    file = AuditFile(tmp_path / "audit.jsonl", max_bytes=50)
    file.write_line(line("/a"))
    (tmp_path / "audit.jsonl").rename(tmp_path / "moved")
    file.write_line(line("/b"))
    file.close()
    assert paths(tmp_path / "audit.jsonl") == ["/b"]


def test_a_link_in_its_place_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "audit.jsonl").symlink_to(tmp_path / "target")
    with pytest.raises(OSError, match=r"audit\.jsonl"):
        AuditFile(tmp_path / "audit.jsonl")
    assert not (tmp_path / "target").exists()


def test_a_record_that_cannot_be_written_goes_to_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A full disk, by the kernel's device for it; and what comes when there is space is written again."""
    file = AuditFile(tmp_path / "audit.jsonl")
    ours = os.dup(file._fd)
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, file._fd)
    file.write_line(line("/lost"))
    os.dup2(ours, file._fd)
    file.write_line(line("/kept"))
    file.close()
    os.close(full)
    os.close(ours)
    assert '"path": "/lost"' in caplog.text
    assert "No space left on device" in caplog.text
    assert paths(tmp_path / "audit.jsonl") == ["/kept"]
