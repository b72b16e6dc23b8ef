"""Who gets in: routes and keys as files, read at each question."""

import ipaddress
import logging
from datetime import UTC, datetime
from pathlib import Path

import pytest

from cli_mcp.api.instance import Ssh
from hooks.ssh import routes_json
from ssh_gateway.authorization import UNKNOWN_KEY, UNKNOWN_USER, Authorizer, Refused, routes_in
from ssh_gateway.authorized_keys import AuthorizedKeys
from tests.ssh_gateway.harness import KEY, OTHER_KEY, ROUTES, SECRET, public

HERE = ipaddress.ip_address("127.0.0.1")


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / SECRET).mkdir()
    (tmp_path / SECRET / "authorized_keys").write_text(public(KEY))
    (tmp_path / "ssh-routes.json").write_text(routes_json(Ssh(routes=ROUTES)))
    return tmp_path


@pytest.fixture
def authorizer(files: Path) -> Authorizer:
    return Authorizer(routes_in(files / "ssh-routes.json"), files, lambda: datetime(2030, 1, 1, tzinfo=UTC))


def test_a_listed_key_gets_in_as_the_users_of_its_route_only(authorizer: Authorizer) -> None:
    assert authorizer.judge("alice", KEY.public_data, HERE) is None
    assert authorizer.judge("agent-1", KEY.public_data, HERE) is None
    assert authorizer.judge("root", KEY.public_data, HERE) == Refused(UNKNOWN_USER)
    assert authorizer.judge("alice", OTHER_KEY.public_data, HERE) == Refused(UNKNOWN_KEY)


def test_a_changed_file_counts_from_the_next_question_on(authorizer: Authorizer, files: Path) -> None:
    (files / SECRET / "authorized_keys").write_text(public(OTHER_KEY))
    assert authorizer.judge("alice", KEY.public_data, HERE) == Refused(UNKNOWN_KEY)
    assert authorizer.judge("alice", OTHER_KEY.public_data, HERE) is None
    (files / "ssh-routes.json").write_text(routes_json(Ssh(routes=ROUTES[1:])))
    assert authorizer.judge("alice", OTHER_KEY.public_data, HERE) == Refused(UNKNOWN_USER)


@pytest.mark.parametrize("broken", ["ssh-routes.json", f"{SECRET}/authorized_keys"])
@pytest.mark.parametrize("how", ["missing", "not UTF-8", "huge"])
def test_a_file_that_cannot_be_read_lets_nobody_in(
    authorizer: Authorizer, files: Path, broken: str, how: str
) -> None:
    file = files / broken
    content = {"not UTF-8": b"\xff\xfe", "huge": file.read_bytes() + b"\n#" * (1 << 20)}
    file.unlink()
    if how in content:
        file.write_bytes(content[how])
    refused = authorizer.judge("alice", KEY.public_data, HERE)
    assert refused is not None
    assert "cannot be read" in refused.reason


def test_lines_that_let_nobody_in_are_reported_once_and_again_when_they_change(
    authorizer: Authorizer, files: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    (files / SECRET / "authorized_keys").write_text(f'command="date" {public(KEY)}\n')
    for _ in range(3):
        refused = authorizer.judge("alice", KEY.public_data, HERE)
        assert refused is not None
        assert "command" in refused.reason
    assert len(caplog.records) == 1
    assert "line 1" in caplog.text
    (files / SECRET / "authorized_keys").write_text(f"pty {public(KEY)}\n")
    authorizer.judge("alice", KEY.public_data, HERE)
    assert len(caplog.records) == 2


@pytest.mark.parametrize("username", ["alice", "root", "agent-1", "agent-", ""])
def test_keys_are_looked_for_whether_or_not_there_is_such_a_user(
    authorizer: Authorizer, files: Path, username: str
) -> None:
    """The time must not tell user names: a file that takes long takes long for everybody."""
    asked: list[str] = []
    looked = authorizer._keys_of

    def keys_of(secret: str) -> AuthorizedKeys:
        asked.append(secret)
        return looked(secret)

    authorizer._keys_of = keys_of  # type: ignore[method-assign]
    assert authorizer.judge(username, OTHER_KEY.public_data, HERE) is not None
    assert asked == [SECRET]


def test_the_keys_of_a_stand_in_let_nobody_in(authorizer: Authorizer) -> None:
    for number in range(20):
        assert authorizer.judge(f"Nobody{number}", KEY.public_data, HERE) == Refused(UNKNOWN_USER)
