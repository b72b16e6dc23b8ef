"""Authenticates callers by reviews of the API server, asked as rarely as revocation allows.

What was allowed holds for 10 s, what was refused for 2 s. Who calls all the time is reviewed again before the
10 s are over, so that no call of theirs waits for it. Failures are limited for each client address, but a
token that was good lately passes even so: many callers may share an address with a bad one.
"""

import asyncio
import hashlib
import re
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import jwt

from mcp_server.authentication import (
    Action,
    AuthenticationError,
    AuthenticationUnavailable,
    Caller,
    Forbidden,
    TooManyFailures,
    Unauthenticated,
)
from mcp_server.failure_limit import FailureLimit
from mcp_server.reviews import Reviewer

ALLOWED_SECONDS = 10.0
AGAIN_SECONDS = 6.0
"""After what part of these a call has its caller reviewed again, without waiting for it."""
REFUSED_SECONDS = 2.0
# A token that was good this lately is reviewed also when its client's address has failed too often.
KNOWN_SECONDS = 3600.0
ENTRIES = 10_000
REVIEW_SECONDS = 10.0
REVIEWS_AT_ONCE = 50
MAX_TOKEN_CHARACTERS = 16 * 1024
# https://www.rfc-editor.org/rfc/rfc6750#section-2.1
_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*")

_NOTHING_SENT = (
    "Send a Kubernetes token in a header: Authorization: Bearer TOKEN. `kubectl create token SERVICEACCOUNT` "
    "makes one."
)

K = TypeVar("K")
V = TypeVar("V")


class ExpiringCache(Generic[K, V]):
    """At most `size` entries, the oldest goes first; each until a time of its own."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._entries: OrderedDict[K, tuple[float, V]] = OrderedDict()

    def get(self, key: K, now: float) -> V | None:
        until, value = self._entries.get(key, (now, None))
        return value if now < until else None

    def put(self, key: K, value: V, until: float) -> None:
        self._entries.pop(key, None)
        self._entries[key] = (until, value)
        if len(self._entries) > self._size:
            self._entries.popitem(last=False)

    def drop(self, key: K) -> None:
        self._entries.pop(key, None)

    def __len__(self) -> int:
        return len(self._entries)


@dataclass(frozen=True, slots=True)
class _Key:
    """SHA-256, so that no token stays in memory for the cache's sake."""

    digest: bytes
    action: Action


@dataclass(frozen=True, slots=True)
class _Allowed:
    caller: Caller
    asked_at: float


Verdict = Caller | AuthenticationError


class ReviewAuthenticator:
    """An Authenticator. `on_verdict` gets a name for the metrics: cached, allowed, refused, unavailable or
    limited. `monotonic` and `wall` are clocks in seconds."""

    def __init__(
        self,
        reviewer: Reviewer,
        *,
        on_verdict: Callable[[str], None] = lambda name: None,
        monotonic: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._reviewer = reviewer
        self._on_verdict = on_verdict
        self._monotonic = monotonic
        self._wall = wall
        # Apart, so that nobody can push out what was allowed by what is refused.
        self._allowed: ExpiringCache[_Key, _Allowed] = ExpiringCache(ENTRIES)
        self._refused: ExpiringCache[_Key, AuthenticationError] = ExpiringCache(ENTRIES)
        self._known: ExpiringCache[bytes, bool] = ExpiringCache(ENTRIES)
        self._failures = FailureLimit()
        self._pending: dict[_Key, asyncio.Task[Verdict]] = {}
        self._turns = asyncio.Semaphore(REVIEWS_AT_ONCE)

    async def authenticate(self, token: str | None, action: Action, client_address: str) -> Caller:
        """See Authenticator."""
        if token is None:
            raise Unauthenticated(_NOTHING_SENT)
        if len(token) > MAX_TOKEN_CHARACTERS or not _TOKEN.fullmatch(token):
            raise Unauthenticated("This is no token of Kubernetes. `kubectl create token` makes one.")
        key = _Key(hashlib.sha256(token.encode()).digest(), action)
        verdict = self._cached(key, token)
        if verdict is None:
            verdict = await asyncio.shield(self._review(key, token, client_address))
        if isinstance(verdict, Caller):
            return verdict
        raise type(verdict)(*verdict.args)

    def _cached(self, key: _Key, token: str) -> Verdict | None:
        now = self._monotonic()
        allowed, refused = self._allowed.get(key, now), self._refused.get(key, now)
        if allowed is None and refused is None:
            return None
        self._on_verdict("cached")
        if allowed is None:
            return refused
        if now - allowed.asked_at >= AGAIN_SECONDS and key not in self._pending:
            self._start(key, token, None)
        return allowed.caller

    def _review(self, key: _Key, token: str, address: str) -> asyncio.Task[Verdict]:
        """Raises TooManyFailures."""
        if (pending := self._pending.get(key)) is not None:
            return pending
        now = self._monotonic()
        limited = not self._known.get(key.digest, now)
        if limited and not self._failures.take(address, now):
            self._on_verdict("limited")
            raise TooManyFailures("Too many tokens from your address were refused. Try again in a minute.")
        return self._start(key, token, address if limited else None)

    def _start(self, key: _Key, token: str, address: str | None) -> asyncio.Task[Verdict]:
        """A review, one at a time for each token and action; `address` has been charged for its failure."""
        task = asyncio.get_running_loop().create_task(self._ask(key, token, address))
        self._pending[key] = task
        task.add_done_callback(lambda _: self._pending.pop(key, None))
        return task

    async def _ask(self, key: _Key, token: str, address: str | None) -> Verdict:
        asked_at, wall = self._monotonic(), self._wall()
        try:
            async with asyncio.timeout(REVIEW_SECONDS), self._turns:
                caller = await self._reviewer.review(token, key.action)
        except (Unauthenticated, Forbidden) as error:
            self._on_verdict("refused")
            self._allowed.drop(key)
            self._refused.put(key, error.with_traceback(None), self._monotonic() + REFUSED_SECONDS)
            return error
        except (AuthenticationUnavailable, TimeoutError) as error:
            self._on_verdict("unavailable")
            self._give_back(address)
            return AuthenticationUnavailable(str(error) or "Too many callers are being checked. Try again.")
        self._on_verdict("allowed")
        self._give_back(address)
        self._known.put(key.digest, True, asked_at + KNOWN_SECONDS)
        self._allowed.put(
            key, _Allowed(caller, asked_at), asked_at + min(ALLOWED_SECONDS, seconds_left(token, wall))
        )
        return caller

    def _give_back(self, address: str | None) -> None:
        if address is not None:
            self._failures.give_back(address, self._monotonic())


def seconds_left(token: str, now: float) -> float:
    """Until the token expires, as far as that can be read in it (JWT, RFC 7519 section 4.1.4). The API server
    has just verified it."""
    try:
        expiry = jwt.decode(token, options={"verify_signature": False}).get("exp")
    except jwt.InvalidTokenError:
        return float("inf")
    return float(expiry) - now if isinstance(expiry, int | float) else float("inf")
