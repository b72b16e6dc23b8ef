"""Header and claims of a token: what is written can be read, and nothing else can."""

import json
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from cli_mcp.agent_token import Claims, body_digest, decode_claims, decode_header
from cli_mcp.strict_json import MalformedMessage

CLAIMS = Claims(
    iss="caller",
    sub="session-1",
    aud="pod",
    boot="0" * 32,
    htm="POST",
    htu="/v1/run",
    body=body_digest(b"{}"),
    jti="ab" * 16,
    iat=1_800_000_000,
    exp=1_800_000_060,
)


def test_what_pyjwt_signs_can_be_read() -> None:
    token = jwt.encode(CLAIMS.payload(), Ed25519PrivateKey.generate(), "EdDSA", headers={"kid": "a1"})
    header, payload, _ = token.split(".")
    assert decode_header(jwt.utils.base64url_decode(header)) == "a1"
    assert decode_claims(jwt.utils.base64url_decode(payload)) == CLAIMS


@pytest.mark.parametrize(
    "header",
    [
        {"alg": "EdDSA", "typ": "JWT"},
        {"alg": "none", "typ": "JWT", "kid": "a1"},
        {"alg": "HS256", "typ": "JWT", "kid": "a1"},
        {"alg": "EdDSA", "typ": "JWT", "kid": "../../etc/passwd"},
        {"alg": "EdDSA", "typ": "JWT", "kid": ""},
        {"alg": "EdDSA", "typ": "JWT", "kid": "a" * 65},
        {"alg": "EdDSA", "typ": "JWT", "kid": ["a1"]},
        {"alg": "EdDSA", "typ": "JWT", "kid": "a1", "crit": ["exp"]},
        {"alg": "EdDSA", "typ": "JWT", "kid": "a1", "jwk": {}},
        {"alg": "EdDSA", "kid": "a1"},
        [],
    ],
)
def test_another_header_is_refused(header: Any) -> None:
    with pytest.raises(MalformedMessage):
        decode_header(json.dumps(header).encode())


@pytest.mark.parametrize(
    "change",
    [
        {"sub": ""},
        {"sub": "a b"},
        {"sub": "a\n"},
        {"sub": "x" * 257},
        {"boot": "0" * 31},
        {"boot": "A" * 32},
        {"body": "0" * 63},
        {"jti": "g" * 32},
        {"iat": "1800000000"},
        {"iat": 1.8e9},
        {"iat": -1},
        {"exp": 1 << 41},
        {"exp": True},
        {"nbf": 1},
        {"aud": ["pod"]},
    ],
)
def test_other_claims_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(MalformedMessage):
        decode_claims(json.dumps({**CLAIMS.payload(), **change}).encode())


def test_a_missing_claim_and_one_that_stands_twice_are_refused() -> None:
    payload: dict[str, Any] = CLAIMS.payload()
    twice = json.dumps(payload).removesuffix("}") + ', "sub": "session-2"}'
    del payload["boot"]
    for text in (json.dumps(payload), twice):
        with pytest.raises(MalformedMessage):
            decode_claims(text.encode())
