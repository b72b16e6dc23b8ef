"""Who may have what done: each claim that is wrong, and each way to spell a token."""

import base64
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from cli_mcp.agent_api import RUN_PATH, AgentIdentity, RefusalKind
from cli_mcp.agent_token import Claims, body_digest
from sandbox_agent.authentication import Authenticator
from sandbox_agent.ed25519 import Ed25519
from sandbox_agent.refused import Refused
from tests.sandbox_agent.tokens import token

NOW = 1_800_000_000
KEY = Ed25519PrivateKey.generate()
OTHER_KEY = Ed25519PrivateKey.generate()
BODY = b'{"command":"true","timeoutSeconds":1}'
CLAIMS = Claims(
    iss="server-uid",
    sub="session-1",
    aud="pod-uid",
    boot="0" * 32,
    htm="POST",
    htu=RUN_PATH,
    body=body_digest(BODY),
    jti="ab" * 16,
    iat=NOW,
    exp=NOW + 60,
)


class Keys:
    def find(self, kid: str) -> bytes | None:
        return KEY.public_key().public_bytes_raw() if kid == "a1" else None


class Clock:
    now = float(NOW)

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def authenticator(clock: Clock) -> Authenticator:
    return Authenticator(AgentIdentity("pod-uid", "0" * 32), Keys(), Ed25519().verify, clock)


def refusal(call: Callable[[], object]) -> RefusalKind:
    with pytest.raises(Refused) as refused:
        call()
    return refused.value.kind


def bearer(claims: Claims, key: Ed25519PrivateKey = KEY, **header: Any) -> str:
    return f"Bearer {token(claims.payload(), key, **header)}"


def test_a_good_token_gives_its_claims(authenticator: Authenticator) -> None:
    assert authenticator.check_token(bearer(CLAIMS), "POST", RUN_PATH) == CLAIMS
    authenticator.check_body(CLAIMS, BODY)
    authenticator.check_time(CLAIMS)
    assert authenticator.bind(CLAIMS)
    assert not authenticator.bind(CLAIMS)


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ({"aud": "other-pod"}, RefusalKind.UNAUTHORIZED),
        ({"htm": "GET"}, RefusalKind.UNAUTHORIZED),
        ({"htu": "/v1/cancel"}, RefusalKind.UNAUTHORIZED),
        ({"boot": "1" * 32}, RefusalKind.WRONG_BOOT),
        ({"jti": "short"}, RefusalKind.UNAUTHORIZED),
        ({"sub": ""}, RefusalKind.UNAUTHORIZED),
    ],
)
def test_a_token_for_something_else_is_refused(
    authenticator: Authenticator, change: dict[str, Any], kind: RefusalKind
) -> None:
    authorization = bearer(replace(CLAIMS, **change))
    assert refusal(lambda: authenticator.check_token(authorization, "POST", RUN_PATH)) is kind


def test_nothing_of_a_token_counts_before_its_signature(authenticator: Authenticator) -> None:
    """Otherwise who has no key could ask for boots and sessions."""
    authenticator.bind(CLAIMS)
    forged = bearer(replace(CLAIMS, boot="1" * 32, sub="session-2"), OTHER_KEY)
    assert refusal(lambda: authenticator.check_token(forged, "POST", RUN_PATH)) is RefusalKind.UNAUTHORIZED


GOOD = token(CLAIMS.payload(), KEY)
HEADER, PAYLOAD, SIGNATURE = GOOD.split(".")


def b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


@pytest.mark.parametrize(
    "authorization",
    [
        None,
        "",
        "Bearer",
        "Bearer ",
        GOOD,
        f"bearer {GOOD}",
        f"Basic {GOOD}",
        f"Bearer  {GOOD}",
        f"Bearer {GOOD}.",
        f"Bearer {GOOD}=",
        f"Bearer {HEADER}.{PAYLOAD}",
        f"Bearer {HEADER}.{PAYLOAD}.",
        f"Bearer .{PAYLOAD}.{SIGNATURE}",
        f"Bearer {HEADER}==.{PAYLOAD}.{SIGNATURE}",
        f"Bearer {HEADER}.{PAYLOAD}.{SIGNATURE[:-1]}{'B' if SIGNATURE[-1] != 'B' else 'C'}",
        f"Bearer {HEADER}.{PAYLOAD[:-2]}.{SIGNATURE}",
        f"Bearer {HEADER}.{PAYLOAD}.{SIGNATURE[:-2]}",
        f"Bearer {HEADER}.{PAYLOAD}.{SIGNATURE.replace(SIGNATURE[5], '+', 1)}",
        f"Bearer {b64(b'{}')}.{PAYLOAD}.{SIGNATURE}",
        f"Bearer {b64(json.dumps({'alg': 'none', 'typ': 'JWT', 'kid': 'a1'}).encode())}.{PAYLOAD}.",
        f"Bearer {token(CLAIMS.payload(), OTHER_KEY)}",
        f"Bearer {token(CLAIMS.payload(), KEY, kid='b2')}",
        f"Bearer {token(CLAIMS.payload(), KEY, alg='HS256')}",
        f"Bearer {token({**CLAIMS.payload(), 'admin': True}, KEY)}",
        f"Bearer {token({**CLAIMS.payload(), 'aud': ['pod-uid']}, KEY)}",
        "Bearer é.é.é",
        "Bearer " + "a" * 15_000,
        "Bearer " + "." * 15_000,
    ],
)
def test_another_token_is_refused(authenticator: Authenticator, authorization: str | None) -> None:
    assert (
        refusal(lambda: authenticator.check_token(authorization, "POST", RUN_PATH))
        is RefusalKind.UNAUTHORIZED
    )


def test_the_last_characters_of_a_signature_have_one_spelling(authenticator: Authenticator) -> None:
    """64 bytes are 86 characters, of which the last carries two bits; the four others have to be 0."""
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    twin = SIGNATURE[:-1] + alphabet[alphabet.index(SIGNATURE[-1]) + 1]
    assert base64.urlsafe_b64decode(twin + "==") == base64.urlsafe_b64decode(SIGNATURE + "==")
    authorization = f"Bearer {HEADER}.{PAYLOAD}.{twin}"
    assert (
        refusal(lambda: authenticator.check_token(authorization, "POST", RUN_PATH))
        is RefusalKind.UNAUTHORIZED
    )


@pytest.mark.parametrize("body", [b"", BODY + b" ", BODY[:-1]])
def test_another_body_is_refused(authenticator: Authenticator, body: bytes) -> None:
    assert refusal(lambda: authenticator.check_body(CLAIMS, body)) is RefusalKind.UNAUTHORIZED


@pytest.mark.parametrize(
    ("seconds", "good"),
    [(-61, False), (-60, True), (0, True), (60, True), (120, True), (121, False), (100_000, False)],
)
def test_a_token_is_good_for_a_minute_and_one_more_on_both_sides(
    authenticator: Authenticator, clock: Clock, seconds: float, good: bool
) -> None:
    clock.now = NOW + seconds
    if good:
        authenticator.check_time(CLAIMS)
    else:
        assert refusal(lambda: authenticator.check_time(CLAIMS)) is RefusalKind.UNAUTHORIZED


@pytest.mark.parametrize("lifetime_seconds", [0, -1, 59, 61, 3600])
def test_a_token_lives_for_a_minute_and_not_as_long_as_it_says(
    authenticator: Authenticator, lifetime_seconds: int
) -> None:
    claims = replace(CLAIMS, exp=NOW + lifetime_seconds)
    assert refusal(lambda: authenticator.check_time(claims)) is RefusalKind.UNAUTHORIZED


def test_the_agent_belongs_to_the_first_session(authenticator: Authenticator) -> None:
    other = replace(CLAIMS, sub="session-2")
    assert authenticator.check_token(bearer(other), "POST", RUN_PATH) == other
    authenticator.bind(CLAIMS)
    # Whose token was good before there was an owner is refused, too.
    assert refusal(lambda: authenticator.bind(other)) is RefusalKind.OTHER_SESSION
    assert (
        refusal(lambda: authenticator.check_token(bearer(other), "POST", RUN_PATH))
        is RefusalKind.OTHER_SESSION
    )
    assert authenticator.session_id == "session-1"
