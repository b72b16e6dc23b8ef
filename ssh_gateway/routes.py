"""Which user name may log in with whose keys, and which session it gets.

The routes are those of spec.ssh: in a cluster as the file that the hooks write, in local mode as they stand
in the instance.
"""

import hashlib
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from cli_mcp.api.instance import SshRoute
from mcp_server.backend import SessionKey

_OWNER_PREFIX = "ssh:"
# No client of the HTTP server may name a session that begins so.
_SESSION_PREFIX = "ssh-"
_DIGEST_CHARACTERS = 32


class MalformedRoutes(Exception):
    """ssh-routes.json is not what the hooks write."""


class _RoutesFile(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    version: Literal[1]
    routes: tuple[SshRoute, ...]


def parse_routes(text: str) -> tuple[SshRoute, ...]:
    """The routes of ssh-routes.json, in their order. Raises MalformedRoutes."""
    try:
        return _RoutesFile.model_validate_json(text).routes
    except ValidationError as error:
        raise MalformedRoutes(str(error)) from None


def route_for(username: str, routes: tuple[SshRoute, ...]) -> SshRoute | None:
    """The first route that admits `username`."""
    return next((route for route in routes if route.admits(username)), None)


def session_key(username: str) -> SessionKey:
    """The one session of a user name. Its id is a label's value, which user names need not be."""
    digest = hashlib.sha256(username.encode()).hexdigest()[:_DIGEST_CHARACTERS]
    return SessionKey(f"{_OWNER_PREFIX}{username}", f"{_SESSION_PREFIX}{digest}")
