import os
from pathlib import Path

import pytest

from sandbox_agent.snapshot import Snapshot
from sandbox_agent.state_file import StateFile

EMPTY = Snapshot(b"/", b"", b"", b"", b"")


def test_a_saved_state_is_found_again_and_replaced(tmp_path: Path) -> None:
    file = StateFile(tmp_path / "state")
    assert file.load() is None
    for snapshot in (EMPTY, Snapshot(b"/x", b"v", b"f", b"a", b"u")):
        file.save(snapshot)
        assert file.load() == snapshot
    assert [path.name for path in tmp_path.iterdir()] == ["state"]


@pytest.mark.parametrize("kind", ["link", "fifo", "directory", "garbage", "huge", "device"])
def test_a_state_file_that_something_else_took_the_place_of_is_no_state(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "state"
    match kind:
        case "link":
            (tmp_path / "other").write_bytes(EMPTY.dump())
            path.symlink_to("other")
        case "fifo":
            os.mkfifo(path)
        case "directory":
            path.mkdir()
        case "garbage":
            path.write_bytes(b"garbage")
        case "huge":
            with path.open("wb") as file:
                file.truncate(1 << 30)
        case "device":
            path.symlink_to("/dev/zero")
    assert StateFile(path).load() is None


def test_saving_never_writes_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("precious")
    for name in ("state", "state.new"):
        (tmp_path / name).symlink_to("victim")
    StateFile(tmp_path / "state").save(EMPTY)
    assert (tmp_path / "victim").read_text() == "precious"
    assert StateFile(tmp_path / "state").load() == EMPTY
