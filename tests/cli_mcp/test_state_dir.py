import os
from pathlib import Path

import pytest

from cli_mcp.state_dir import newest_token_file, state_directory


@pytest.mark.parametrize(
    ("uid", "environment", "directory"),
    [
        (0, {}, "/var/lib/cli-mcp"),
        (0, {"XDG_STATE_HOME": "/root/state", "HOME": "/root"}, "/var/lib/cli-mcp"),
        (1000, {"HOME": "/home/ada"}, "/home/ada/.local/state/cli-mcp"),
        (1000, {"HOME": "/home/ada", "XDG_STATE_HOME": "/state"}, "/state/cli-mcp"),
        (1000, {"HOME": "/home/ada", "XDG_STATE_HOME": ""}, "/home/ada/.local/state/cli-mcp"),
        (1000, {"HOME": "/home/ada", "XDG_STATE_HOME": "state"}, "/home/ada/.local/state/cli-mcp"),
    ],
)
def test_state_is_the_systems_for_root_and_the_users_for_a_user(
    uid: int, environment: dict[str, str], directory: str
) -> None:
    assert state_directory(uid, environment) == Path(directory)


def test_the_newest_token_is_that_of_the_instance_started_last(tmp_path: Path) -> None:
    for name, seconds in (("a", 100), ("b", 300), ("c", 200)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "token").write_text(name)
        os.utime(tmp_path / name / "token", (seconds, seconds))
    (tmp_path / "token").write_text("of no instance")
    (tmp_path / "d" / "token").mkdir(parents=True)
    assert newest_token_file(tmp_path) == tmp_path / "b" / "token"


def test_without_an_instance_there_is_no_token(tmp_path: Path) -> None:
    assert newest_token_file(tmp_path) is None
    assert newest_token_file(tmp_path / "missing") is None
