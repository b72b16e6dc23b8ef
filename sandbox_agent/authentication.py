"""Decides whether a request comes from the server, for this agent, and for the session that owns it."""

import base64
import binascii
import hmac
import re
from collections.abc import Callable
from typing import Protocol

from cli_mcp.agent_api import AgentIdentity, RefusalKind
from cli_mcp.agent_token import (
    CLOCK_LEEWAY_SECONDS,
    TOKEN_LIFETIME_SECONDS,
    Claims,
    body_digest,
    decode_claims,
    decode_header,
)
from cli_mcp.strict_json import MalformedMessage
from sandbox_agent.refused import Refused

_BASE64URL = re.compile(r"[A-Za-z0-9_-]*")
_SCHEME = "Bearer "


class PublicKeySource(Protocol):
    def find(self, kid: str) -> bytes | None: ...


Verify = Callable[[bytes, bytes, bytes], bool]
"""Whether, by that public key, the signature is that of the message."""


class Authenticator:
    """The rules for tokens. `clock` gives seconds since 1970.

    A request is checked twice: its token before anything of its body is read, so that who has none cannot
    make this process keep a body, and then the body.
    """

    def __init__(
        self, identity: AgentIdentity, keys: PublicKeySource, verify: Verify, clock: Callable[[], float]
    ) -> None:
        self._identity = identity
        self._keys = keys
        self._verify = verify
        self._clock = clock
        self.session_id: str | None = None
        """Of the first valid request; nobody else's are accepted after it."""

    def check_token(self, authorization: str | None, method: str, path: str) -> Claims:
        """The claims of a token that the server signed for this request to this agent. It may be out of date.

        Raises Refused: UNAUTHORIZED, WRONG_BOOT, OTHER_SESSION.
        """
        if authorization is None or not authorization.startswith(_SCHEME):
            raise _unauthorized("no bearer token")
        claims = self._signed_claims(authorization.removeprefix(_SCHEME))
        if claims.aud != self._identity.pod_uid:
            raise _unauthorized("the token is for another pod")
        if (claims.htm, claims.htu) != (method, path):
            raise _unauthorized("the token is for another request")
        if claims.boot != self._identity.boot:
            raise Refused(RefusalKind.WRONG_BOOT, "the agent was started anew since that token was signed")
        self._check_session(claims)
        return claims

    def check_body(self, claims: Claims, body: bytes) -> None:
        """Raises Refused: UNAUTHORIZED."""
        if not hmac.compare_digest(claims.body, body_digest(body)):
            raise _unauthorized("the token is for another body")

    def check_time(self, claims: Claims) -> None:
        """For a call that is not known yet. Raises Refused: UNAUTHORIZED."""
        now = self._clock()
        if claims.exp - claims.iat != TOKEN_LIFETIME_SECONDS:
            raise _unauthorized(f"the token is not valid for {TOKEN_LIFETIME_SECONDS} seconds")
        if not claims.iat - CLOCK_LEEWAY_SECONDS <= now <= claims.exp + CLOCK_LEEWAY_SECONDS:
            raise _unauthorized("the token is out of date, or the clocks of the nodes are far apart")

    def bind(self, claims: Claims) -> bool:
        """Make the agent belong to the session of this request, which passed all checks. Returns whether it
        belonged to none before. Raises Refused: OTHER_SESSION."""
        first = self.session_id is None
        self._check_session(claims)
        self.session_id = claims.sub
        return first

    def _check_session(self, claims: Claims) -> None:
        if self.session_id not in (None, claims.sub):
            raise Refused(RefusalKind.OTHER_SESSION, "this agent belongs to another session")

    def _signed_claims(self, token: str) -> Claims:
        """RFC 7515 section 3.1: header, payload and signature, each in base64url, with dots between them."""
        parts = token.split(".")
        if len(parts) != 3:
            raise _unauthorized("not a token")
        try:
            header, payload, signature = map(_base64url, parts)
            kid = decode_header(header)
        except MalformedMessage as error:
            raise _unauthorized(f"not a token: {error}") from None
        key = self._keys.find(kid)
        if key is None:
            raise _unauthorized("no public key by the name in the token has reached this pod")
        if not self._verify(key, signature, f"{parts[0]}.{parts[1]}".encode()):
            raise _unauthorized("the signature is wrong")
        try:
            return decode_claims(payload)
        except MalformedMessage as error:
            raise _unauthorized(f"the claims: {error}") from None


def _base64url(text: str) -> bytes:
    """RFC 4648 section 5, without padding, and with the one spelling that each value has."""
    padded = text + "=" * (-len(text) % 4)
    try:
        data = base64.urlsafe_b64decode(padded) if _BASE64URL.fullmatch(text) else None
    except binascii.Error:
        data = None
    if data is None or base64.urlsafe_b64encode(data).decode() != padded:
        raise MalformedMessage("not base64url")
    return data


def _unauthorized(message: str) -> Refused:
    return Refused(RefusalKind.UNAUTHORIZED, message)
