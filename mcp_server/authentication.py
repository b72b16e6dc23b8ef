"""Who calls: the seam between a bearer token and the owner of sessions."""

import hmac
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol


class Action(StrEnum):
    """What a request wants to do; an authenticator may allow a caller one and not the other."""

    CALL = "call"
    END_SESSION = "end-session"
    READ_METRICS = "read-metrics"


@dataclass(frozen=True, slots=True)
class Caller:
    """`owner` is the name that sessions belong to; two callers with the same owner share them."""

    owner: str


class AuthenticationError(Exception):
    """A caller that is turned away; the message is for the caller and never contains the token."""


class Unauthenticated(AuthenticationError):
    """No token, or one that is not known: 401."""


class Forbidden(AuthenticationError):
    """A known caller who may not do this: 403."""


class TooManyFailures(AuthenticationError):
    """Too many refused tokens came from the same place: 429."""


class AuthenticationUnavailable(AuthenticationError):
    """Who the caller is cannot be found out now: 503."""


class Authenticator(Protocol):
    async def authenticate(self, token: str | None, action: Action, client_address: str) -> Caller:
        """The caller whom `token`, from `Authorization: Bearer`, belongs to. `client_address` is where the
        request came from.

        Raises an AuthenticationError.
        """
        ...


LOCAL_CALLER = Caller("local")


class StaticToken:
    """One token for one owner."""

    def __init__(self, token: str, caller: Caller = LOCAL_CALLER) -> None:
        if not token:
            raise ValueError("an empty token would let everybody in")
        self._token = token.encode()
        self._caller = caller

    async def authenticate(self, token: str | None, action: Action, client_address: str) -> Caller:
        if token is None:
            raise Unauthenticated("Send the server's token in a header: Authorization: Bearer TOKEN")
        if not hmac.compare_digest(token.encode("utf-8", "surrogateescape"), self._token):
            raise Unauthenticated(
                "This is not the server's token. Take the current one from its output or token file."
            )
        return self._caller


class NoAuthentication:
    """Everybody who can connect is the same caller."""

    def __init__(self, caller: Caller = LOCAL_CALLER) -> None:
        self._caller = caller

    async def authenticate(self, token: str | None, action: Action, client_address: str) -> Caller:
        return self._caller
