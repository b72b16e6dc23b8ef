"""Which of several session keys signs."""

from datetime import UTC, datetime, timedelta

import pytest
from pydantic import ValidationError

from cli_mcp.session_keys import PUBLICATION, SessionKey, SessionKeys

START = datetime(2026, 1, 1, tzinfo=UTC)


def key(kid: str, published: timedelta) -> SessionKey:
    return SessionKey(kid=kid, published_at=START + published, private_key="secret", public_key="p")


KEYS = SessionKeys(keys=(key("a", timedelta(0)), key("b", timedelta(hours=1)), key("c", timedelta(hours=2))))


@pytest.mark.parametrize(
    ("now", "kid"),
    [
        (timedelta(0), "a"),
        (timedelta(hours=1) + PUBLICATION - timedelta(seconds=1), "a"),
        (timedelta(hours=1) + PUBLICATION, "b"),
        (timedelta(hours=9), "c"),
    ],
)
def test_the_newest_key_that_has_been_out_long_enough_signs(now: timedelta, kid: str) -> None:
    assert KEYS.signing_key(START + now).kid == kid


def test_keys_survive_their_file_and_show_no_secret() -> None:
    assert SessionKeys.model_validate_json(KEYS.model_dump_json(by_alias=True)) == KEYS
    assert "secret" not in repr(KEYS)


@pytest.mark.parametrize("text", ["", "{}", '{"keys": []}', '{"version": 2, "keys": []}'])
def test_what_is_no_key_file_is_refused(text: str) -> None:
    with pytest.raises(ValidationError):
        SessionKeys.model_validate_json(text)
