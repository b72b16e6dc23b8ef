"""The signed token of each call to a sandbox's agent: a JWT (RFC 7519) with EdDSA (RFC 8037).

Header `{"alg": "EdDSA", "typ": "JWT", "kid"}`, claims as below. `kid` names the public key, which the agent
finds in the file `<kid>.pem`. Standard library only: the sandbox agent imports it.
"""

import hashlib
import re
from dataclasses import dataclass

from cli_mcp.strict_json import integer, matching, members, parse

TOKEN_LIFETIME_SECONDS = 60
CLOCK_LEEWAY_SECONDS = 60
"""How far the clocks of two nodes may be apart."""

HEX_128 = re.compile(r"[0-9a-f]{32}")
IDENTIFIER = re.compile(r"[!-~]{1,256}")
_HEX_256 = re.compile(r"[0-9a-f]{64}")
_KID = re.compile(r"[0-9a-f]{1,64}")
_TIME_MAX = 1 << 40


@dataclass(frozen=True, slots=True)
class Claims:
    """`iss` is the uid of the calling pod, `sub` the session, `aud` and `boot` the agent, `htm` and `htu`
    method and path, `body` the digest of the request's body, `jti` 128 random bits in lower-case hex, `iat`
    and `exp` seconds since 1970, TOKEN_LIFETIME_SECONDS apart.
    """

    iss: str
    sub: str
    aud: str
    boot: str
    htm: str
    htu: str
    body: str
    jti: str
    iat: int
    exp: int

    def payload(self) -> dict[str, str | int]:
        """The claims set, to be signed."""
        return {name: getattr(self, name) for name in self.__slots__}


def body_digest(body: bytes) -> str:
    """SHA-256 in lower-case hex."""
    return hashlib.sha256(body).hexdigest()


def decode_header(header: bytes) -> str:
    """The `kid` of a JOSE header in which nothing else varies. Raises MalformedMessage."""
    _, _, kid = members(
        parse(header), alg=matching(re.compile("EdDSA")), typ=matching(re.compile("JWT")), kid=matching(_KID)
    )
    return str(kid)


def decode_claims(payload: bytes) -> Claims:
    """Whether they are meant for this agent, this request and now is for the caller to check.
    Raises MalformedMessage."""
    return Claims(
        *members(
            parse(payload),
            iss=matching(IDENTIFIER),
            sub=matching(IDENTIFIER),
            aud=matching(IDENTIFIER),
            boot=matching(HEX_128),
            htm=matching(IDENTIFIER),
            htu=matching(IDENTIFIER),
            body=matching(_HEX_256),
            jti=matching(HEX_128),
            iat=integer(0, _TIME_MAX),
            exp=integer(0, _TIME_MAX),
        )
    )
