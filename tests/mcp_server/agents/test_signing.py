import logging
from datetime import UTC, datetime, timedelta
from pathlib import Path

import jwt
import pytest

from cli_mcp.agent_token import body_digest, decode_claims, decode_header
from cli_mcp.session_keys import PUBLICATION, SessionKey
from mcp_server.agents.signing import CallSigner, InvalidSessionKeys, SignedCall
from tests.mcp_server.agents.fake_agent import BOOT, POD_UID, key_pair, write_keys

NOW = datetime(2024, 6, 1, 12, 0, 0, 500_000, tzinfo=UTC)
CALL = SignedCall(POD_UID, BOOT, "s1", "POST", "/v1/run", b"{}", "c" * 32)


class Clock:
    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> datetime:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


def kid_of(token: str) -> str:
    return str(jwt.get_unverified_header(token)["kid"])


def verified(token: str, key: SessionKey) -> dict[str, object]:
    options = {"verify_exp": False, "verify_aud": False, "verify_iat": False}
    claims: dict[str, object] = jwt.decode(token, key.public_key, algorithms=["EdDSA"], options=options)  # type: ignore[arg-type]
    return claims


def test_a_token_is_what_agents_decode_and_verifies_with_the_public_key(tmp_path: Path) -> None:
    key = key_pair()
    write_keys(tmp_path / "keys.json", key)
    token = CallSigner(tmp_path / "keys.json", "server", clock=Clock()).token(CALL)
    header, payload, _ = (jwt.utils.base64url_decode(part) for part in token.split("."))
    claims = decode_claims(payload)
    assert decode_header(header) == key.kid
    assert claims.payload() == verified(token, key)
    assert (claims.iss, claims.sub, claims.aud, claims.boot) == ("server", "s1", POD_UID, BOOT)
    assert (claims.htm, claims.htu, claims.body) == ("POST", "/v1/run", body_digest(b"{}"))
    assert (claims.iat, claims.exp) == (int(NOW.timestamp()), int(NOW.timestamp()) + 60)


def test_a_new_key_signs_once_it_has_been_out_for_two_minutes(tmp_path: Path) -> None:
    clock, file = Clock(), tmp_path / "keys.json"
    old, new = key_pair("aa"), key_pair("bb", published_at=NOW)
    write_keys(file, old, new)
    signer = CallSigner(file, "server", clock=clock)
    assert kid_of(signer.token(CALL)) == "aa"
    clock.advance(121)
    token = signer.token(CALL)
    assert kid_of(token) == "bb"
    assert verified(token, new)["sub"] == "s1"


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    clock, file = Clock(), tmp_path / "keys.json"
    write_keys(file, key_pair("aa"))
    signer = CallSigner(file, "server", clock=clock)
    write_keys(file, key_pair("bb"))
    assert kid_of(signer.token(CALL)) == "aa"  # looked at a moment ago
    clock.advance(2)
    assert kid_of(signer.token(CALL)) == "bb"


def test_a_key_that_was_made_anew_signs_once_sandboxes_have_heard_of_it(tmp_path: Path) -> None:
    clock, file = Clock(), tmp_path / "keys.json"
    write_keys(file, key_pair("aa"))
    signer = CallSigner(file, "server", clock=clock)
    for kid in ("bb", "cc"):
        clock.advance(10)
        write_keys(file, key_pair(kid, published_at=clock.now))
        assert kid_of(signer.token(CALL)) == "aa"
    clock.advance(PUBLICATION.total_seconds())
    assert kid_of(signer.token(CALL)) == "cc"


@pytest.mark.parametrize("content", ["", "{}", '{"version":1,"keys":[]}', "gone"])
def test_a_file_that_became_invalid_leaves_the_keys_as_they_were(
    tmp_path: Path, content: str, caplog: pytest.LogCaptureFixture
) -> None:
    clock, file = Clock(), tmp_path / "keys.json"
    write_keys(file, key_pair("aa"))
    signer = CallSigner(file, "server", clock=clock)
    if content == "gone":
        file.unlink()
    else:
        file.write_text(content)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            clock.advance(2)
            assert kid_of(signer.token(CALL)) == "aa"
    assert len(caplog.records) == 1
    assert "stay as they were" in caplog.text


def test_a_file_without_usable_keys_is_refused_without_quoting_it(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    key = key_pair().model_copy(update={"private_key": "-----BEGIN PRIVATE KEY-----\nsecret-text\n"})
    write_keys(file, key)
    with pytest.raises(InvalidSessionKeys) as caught:
        CallSigner(file, "server")
    assert "secret-text" not in str(caught.value)
    with pytest.raises(InvalidSessionKeys, match="No such file"):
        CallSigner(tmp_path / "nothing.json", "server")
