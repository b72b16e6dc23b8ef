"""How many connections and logins there may be, in all, from one address and of one user; and how often.

Pure but for the clock that comes in. A refusal is an exception whose text is for the client.
"""

import ipaddress
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from ssh_gateway.authorized_keys import Address

_MINUTE_SECONDS = 60.0
# What is remembered of addresses and users; each takes some hundred bytes.
_REMEMBERED = 20_000
# One customer's IPv6 network, RFC 6177: an attacker has all of its addresses.
_IPV6_PREFIX_BITS = 64


@dataclass(frozen=True, slots=True)
class Limits:
    """Of one gateway. `connections` are those that have logged in. A key is refused
    `refusal_seconds` after it was offered, which is many times as long as it takes to look for it."""

    login_grace_seconds: float = 20.0
    attempts_per_connection: int = 6
    refusal_seconds: float = 0.05
    unauthenticated: int = 64
    unauthenticated_per_address: int = 16
    connections_per_minute_per_address: int = 240
    connections: int = 500
    connections_per_user: int = 8
    logins_per_minute_per_user: int = 120


class Refusal(Exception):
    """A connection or login that is one too many; the text is for whoever sent it."""


class Rate:
    """So many events a minute for each key, as a bucket that holds one minute's worth of them."""

    def __init__(self, per_minute: int, clock: Callable[[], float]) -> None:
        self._per_minute = per_minute
        self._clock = clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()  # what is left, and when

    def take(self, key: str) -> bool:
        """Whether one more event is within the rate; it counts when it is."""
        now = self._clock()
        left, then = self._buckets.pop(key, (float(self._per_minute), now))
        left = min(self._per_minute, left + (now - then) * self._per_minute / _MINUTE_SECONDS)
        allowed = left >= 1
        self._buckets[key] = (left - allowed, now)
        if len(self._buckets) > _REMEMBERED:
            self._buckets.popitem(last=False)
        return allowed


class Admission:
    """Counts the connections of a gateway by their tickets."""

    def __init__(self, limits: Limits, clock: Callable[[], float]) -> None:
        self.limits = limits
        self._unauthenticated: Counter[str] = Counter()
        self._logged_in: Counter[str] = Counter()
        self._connections = Rate(limits.connections_per_minute_per_address, clock)
        self._logins = Rate(limits.logins_per_minute_per_user, clock)

    def connect(self, address: Address) -> "Ticket":
        """Raises Refusal."""
        source = _source(address)
        if self._unauthenticated.total() >= self.limits.unauthenticated:
            raise Refusal("too many connections are logging in; try again in a moment")
        if self._unauthenticated[source] >= self.limits.unauthenticated_per_address:
            raise Refusal("too many connections of your address are logging in; try again in a moment")
        if not self._connections.take(source):
            raise Refusal("too many connections of your address in a minute; try again in a minute")
        self._unauthenticated[source] += 1
        return Ticket(self, source)

    def log_in(self, username: str) -> None:
        """Raises Refusal."""
        if self._logged_in.total() >= self.limits.connections:
            raise Refusal("too many connections; try again later")
        if self._logged_in[username] >= self.limits.connections_per_user:
            raise Refusal(f"{self.limits.connections_per_user} connections of this user are open; close one")
        if not self._logins.take(username):
            raise Refusal("too many logins of this user in a minute; try again in a minute")
        self._logged_in[username] += 1

    def forget_unauthenticated(self, source: str) -> None:
        _decrement(self._unauthenticated, source)

    def forget_login(self, username: str) -> None:
        _decrement(self._logged_in, username)

    @property
    def unauthenticated(self) -> int:
        return self._unauthenticated.total()

    @property
    def logged_in(self) -> int:
        return self._logged_in.total()


class Ticket:
    """The place of one connection: among those that log in, then among those of its user, then nowhere.

    `source` is what counts as its address.
    """

    def __init__(self, admission: Admission, source: str) -> None:
        self._admission = admission
        self.source = source
        self._logging_in = True
        self._username: str | None = None

    def log_in(self, username: str) -> None:
        """Raises Refusal; then the place is the one that it was."""
        assert self._username is None
        self._admission.log_in(username)
        self._username = username
        self._leave_unauthenticated()

    def leave(self) -> None:
        """Give the place back; once or several times."""
        self._leave_unauthenticated()
        if self._username is not None:
            self._admission.forget_login(self._username)
            self._username = None

    def _leave_unauthenticated(self) -> None:
        if self._logging_in:
            self._admission.forget_unauthenticated(self.source)
            self._logging_in = False


def _source(address: Address) -> str:
    """What counts as one address."""
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    return str(ipaddress.ip_network((address, _IPV6_PREFIX_BITS), strict=False))


def _decrement(counts: Counter[str], key: str) -> None:
    counts[key] -= 1
    if not counts[key]:
        del counts[key]
