"""Whether a key opens the door for a user name. Routes and keys are read at each question, so that a change
counts from the next login on."""

import logging
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from cli_mcp.api.instance import SshRoute
from ssh_gateway import authorized_keys
from ssh_gateway.authorized_keys import Address, AuthorizedKeys
from ssh_gateway.routes import MalformedRoutes, parse_routes, route_for

log = logging.getLogger(__name__)

AUTHORIZED_KEYS_FILE = "authorized_keys"
# A Secret's greatest size.
_MAX_FILE_BYTES = 1 << 20

UNKNOWN_USER = "no route admits this user name"
UNKNOWN_KEY = "the key is not among those of the route"


@dataclass(frozen=True, slots=True)
class Refused:
    """`reason` is for the audit log; whoever asked learns no more than that it was not enough."""

    reason: str


class Authorizer:
    """`keys_directory` has a file NAME/authorized_keys for each Secret that a route names.

    `routes` may raise OSError, UnicodeDecodeError and MalformedRoutes: then nobody gets in.
    """

    def __init__(
        self,
        routes: Callable[[], tuple[SshRoute, ...]],
        keys_directory: Path,
        now: Callable[[], datetime],
    ) -> None:
        self._routes = routes
        self._keys_directory = keys_directory
        self._now = now
        self._reported: dict[str, tuple[str, ...]] = {}

    def judge(self, username: str, blob: bytes, address: Address) -> Refused | None:
        """None when the key `blob` lets `username` in from `address`. Blocks for a few reads of files.

        A user name that no route admits costs the same work as one that a route does.
        """
        try:
            routes = self._routes()
            route = route_for(username, routes)
        except (OSError, UnicodeDecodeError, MalformedRoutes) as error:
            log.error("nobody can log in, the routes cannot be read: %s", error)
            return Refused("the routes cannot be read")
        if not routes:
            return Refused(UNKNOWN_USER)
        secret = (route or _stand_in(username, routes)).authorized_keys_secret
        refused = self._judge_key(secret, blob, address)
        return Refused(UNKNOWN_USER) if route is None else refused

    def _judge_key(self, secret: str, blob: bytes, address: Address) -> Refused | None:
        try:
            keys = self._keys_of(secret)
        except (OSError, UnicodeDecodeError) as error:
            log.error("the keys in %s cannot be read: %s", secret, error)
            return Refused(f"the keys in {secret} cannot be read")
        reasons = [key.refusal(address, self._now()) for key in keys.find(blob)]
        return None if None in reasons else Refused(next(filter(None, reasons), UNKNOWN_KEY))

    def _keys_of(self, secret: str) -> AuthorizedKeys:
        with (self._keys_directory / secret / AUTHORIZED_KEYS_FILE).open("rb") as file:
            content = file.read(_MAX_FILE_BYTES + 1)
        if len(content) > _MAX_FILE_BYTES:
            raise OSError(f"it is larger than {_MAX_FILE_BYTES:,} bytes")
        keys = authorized_keys.parse(content.decode())
        self._report(secret, tuple(keys.problems()))
        return keys

    def _report(self, secret: str, problems: tuple[str, ...]) -> None:
        """Say once what is wrong with the lines of a file, and again when that has changed."""
        if problems == self._reported.get(secret, ()):
            return
        self._reported[secret] = problems
        for problem in problems:
            log.warning("%s/%s, a line that lets nobody in, %s", secret, AUTHORIZED_KEYS_FILE, problem)


def _stand_in(username: str, routes: tuple[SshRoute, ...]) -> SshRoute:
    """The route whose keys are looked at, for the time that it takes, where no route admits the name."""
    return routes[zlib.crc32(username.encode()) % len(routes)]


def routes_in(file: Path) -> Callable[[], tuple[SshRoute, ...]]:
    """Routes that are read from `file` each time they are asked for."""
    return lambda: parse_routes(file.read_text())
