"""The state directory."""

import os
import threading
from pathlib import Path

import pytest

from local_runtime.state import (
    StateDirectory,
    StateInUse,
    exchange_in_memory,
    first_closed,
    session_name,
)


@pytest.fixture
def state(tmp_path: Path) -> StateDirectory:
    return StateDirectory.open(tmp_path / "instance")


@pytest.mark.parametrize(
    "session",
    ["a", "a-b", "x" * 63, "../../etc", "a/b", ".", "..", "", "\0", "a\nb", "\udcff", "ä", "-" * 50],
)
def test_the_name_of_any_session_is_just_a_name(session: str) -> None:
    name = session_name("local", session)
    assert "/" not in name and "\0" not in name
    assert name not in (".", "..", "") and not name.startswith("-")
    assert len(os.fsencode(name)) < 100


def test_different_sessions_and_owners_have_different_names() -> None:
    pairs = [("a", "b"), ("b", "a"), ("a", "c"), ("", "ab"), ("ab", ""), ("a", "b/"), ("a", "B")]
    assert len({session_name(*pair) for pair in pairs}) == len(pairs)


def test_a_name_shows_the_session_to_a_reader() -> None:
    assert session_name("local", "build-7").startswith("build-7-")


def test_a_second_server_is_refused_until_the_first_has_gone(tmp_path: Path, state: StateDirectory) -> None:
    with pytest.raises(StateInUse, match="--state-dir"):
        StateDirectory.open(tmp_path / "instance")
    state.close()
    StateDirectory.open(tmp_path / "instance").close()


def test_the_token_stays_the_same_and_private(tmp_path: Path, state: StateDirectory) -> None:
    token = state.token()
    assert state.token() == token
    assert len(token) >= 43
    assert state.token_file.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("content", ["", "short", "x" * 43 + "\nsecond line", "ä" * 43])
def test_a_token_that_is_none_is_replaced(state: StateDirectory, content: str) -> None:
    state.token_file.write_text(content)
    token = state.token()
    assert token != content.strip()
    assert state.token_file.read_text() == f"{token}\n"


def test_a_token_file_that_is_a_link_is_replaced_and_not_written_through(
    tmp_path: Path, state: StateDirectory
) -> None:
    victim = tmp_path / "victim"
    victim.write_text("kept")
    state.token_file.symlink_to(victim)
    state.token()
    assert victim.read_text() == "kept"
    assert not state.token_file.is_symlink()


def test_a_claimed_workspace_is_the_same_directory(state: StateDirectory) -> None:
    pooled = state.new_workspace()
    inode = pooled.stat().st_ino
    claimed = state.claim_workspace(pooled, "a")
    assert claimed.stat().st_ino == inode
    assert claimed.stat().st_mode & 0o777 == 0o700
    assert state.kept_workspace("a") == claimed
    assert state.kept_workspace("b") is None


def test_a_workspace_is_never_a_link(state: StateDirectory) -> None:
    (state.sessions / "a").symlink_to("/")
    assert state.kept_workspace("a") is None


def test_what_is_discarded_is_gone_at_once_and_deleted_later(state: StateDirectory) -> None:
    workspace = state.claim_workspace(state.new_workspace(), "a")
    (workspace / "file").touch()
    state.discard(workspace)
    assert state.kept_workspace("a") is None
    state.empty_trash()
    assert list(state.trash.iterdir()) == []


def test_leftovers_of_a_killed_server_are_cleared(tmp_path: Path, state: StateDirectory) -> None:
    state.new_workspace()
    os.mkfifo(state.new_exchange() / "1.out")
    kept = state.claim_workspace(state.new_workspace(), "a")
    state.close()
    again = StateDirectory.open(tmp_path / "instance")
    assert list(again.pool.iterdir()) == list(again.exchange.iterdir()) == []
    assert again.kept_workspace("a") == kept


@pytest.mark.parametrize(("mode", "closed"), [(0o711, False), (0o755, False), (0o700, True), (0o750, True)])
def test_a_directory_that_others_may_not_pass_is_found(state_root: Path, mode: int, closed: bool) -> None:
    inner = state_root / "outer" / "inner"
    inner.mkdir(parents=True)
    inner.parent.chmod(mode)
    assert (first_closed(inner) == inner.parent) is closed


def test_a_program_out_of_reach_is_copied_with_its_libraries(state_root: Path) -> None:
    hidden = state_root / "hidden"
    program = hidden / "package" / "_bin" / "program"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    (hidden / "package.libs").mkdir()
    (hidden / "package.libs" / "library.so").touch()
    state = StateDirectory.open(state_root / "instance")
    assert state.program_for_sandboxes(program) == program
    hidden.chmod(0o700)
    copy = state.program_for_sandboxes(program)
    assert first_closed(copy.parent) is None
    assert os.access(copy, os.X_OK)
    assert (copy.parent / ".." / ".." / "package.libs" / "library.so").exists()


def test_the_owners_of_workspaces_are_found_while_sessions_take_them(state: StateDirectory) -> None:
    claimed = threading.Thread(
        target=lambda: [state.claim_workspace(state.new_workspace(), f"s{n}") for n in range(1000)]
    )
    state.claim_workspace(state.new_workspace(), "first")
    claimed.start()
    while claimed.is_alive():
        assert state.workspace_uids() == {os.geteuid()}
    claimed.join()


def test_the_exchange_is_in_memory_and_goes_with_the_server(tmp_path: Path) -> None:
    state = StateDirectory.open(tmp_path / "state")
    assert state.exchange == exchange_in_memory(state.path, os.geteuid())
    state.close()
    assert not state.exchange.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="takes root to make what belongs to somebody else")
def test_what_somebody_else_made_in_memory_is_not_used(tmp_path: Path) -> None:
    foreign = exchange_in_memory(tmp_path / "state", os.geteuid())
    foreign.mkdir()
    os.chown(foreign, 1_234_567, 1_234_567)
    try:
        state = StateDirectory.open(tmp_path / "state")
        assert state.exchange == tmp_path / "state" / "exchange"
        state.close()
    finally:
        foreign.rmdir()


def test_a_second_server_is_told_where_the_first_is_and_an_ended_one_is_forgotten(tmp_path: Path) -> None:
    first = StateDirectory.open(tmp_path / "demo")
    first.url_file.write_text("http://127.0.0.1:8080/mcp\n")
    with pytest.raises(StateInUse, match=r"another server, http://127\.0\.0\.1:8080/mcp\. .*--state-dir"):
        StateDirectory.open(tmp_path / "demo")
    first.close()
    second = StateDirectory.open(tmp_path / "demo")
    assert not second.url_file.exists()
    second.close()


def test_a_directory_for_one_client_is_its_own_and_goes_without_a_trace(tmp_path: Path) -> None:
    one, other = StateDirectory.open_for_stdio(tmp_path), StateDirectory.open_for_stdio(tmp_path)
    assert one.path != other.path
    (one.sessions / "s").mkdir()
    (one.sessions / "s" / "file").write_text("x")
    one.destroy()
    assert [path.name for path in tmp_path.iterdir()] == [other.path.name]
    assert not one.exchange.exists()
    other.destroy()


def test_what_a_killed_server_of_one_client_left_is_removed_by_the_next(tmp_path: Path) -> None:
    killed = StateDirectory.open_for_stdio(tmp_path)
    (killed.sessions / "s").mkdir()
    killed.new_exchange()
    os.close(killed.lock_fd)
    state = StateDirectory.open_for_stdio(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [state.path.name]
    assert not killed.exchange.exists()
    state.destroy()
