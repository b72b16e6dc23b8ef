"""What a request must pass before anything looks at its content: Host, Origin, token, size.

Checks are functions from a request's head to a Refusal or None; `Guards` applies them and reads the body.
"""

import asyncio
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from starlette.datastructures import Headers
from starlette.requests import HTTPConnection
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cli_mcp.strict_json import STRUCTURE_LIMIT_BYTES, is_overstructured
from mcp_server.authentication import (
    Action,
    AuthenticationError,
    AuthenticationUnavailable,
    Authenticator,
    Caller,
    TooManyFailures,
    Unauthenticated,
)
from mcp_server.settings import ServerSettings

OPEN_PATHS = frozenset({"/live", "/health"})
_SINGLE_HEADERS = ("host", "origin", "authorization", "content-length")
_PORT = re.compile(r":[0-9]*$")


@dataclass(frozen=True, slots=True)
class Refusal:
    """`reason` is a metric label, `message` for whoever sent the request."""

    status: int
    reason: str
    message: str
    headers: Mapping[str, str] = field(default_factory=dict)

    def response(self) -> JSONResponse:
        return JSONResponse({"error": self.message}, self.status, headers=dict(self.headers))


Check = Callable[[Headers, ServerSettings], Refusal | None]


def check_single(headers: Headers, settings: ServerSettings) -> Refusal | None:
    """Two values for one header: which one counts would depend on who reads it."""
    for name in _SINGLE_HEADERS:
        if len(headers.getlist(name)) > 1:
            return Refusal(400, "duplicate_header", f"The header {name.title()} came twice. Send it once.")
    return None


def check_host(headers: Headers, settings: ServerSettings) -> Refusal | None:
    """On loopback a foreign Host means a name that was made to point here (DNS rebinding): 421, RFC 9110."""
    if settings.allowed_hosts is None or _host(headers.get("host", "")) in settings.allowed_hosts:
        return None
    names = ", ".join(sorted(settings.allowed_hosts))
    return Refusal(421, "host", f"This server does not answer to that Host. It answers to: {names}.")


def check_origin(headers: Headers, settings: ServerSettings) -> Refusal | None:
    """A page of another site must not act as its visitor; MCP's transport asks for 403."""
    origin = headers.get("origin")
    if origin is None or origin in settings.allowed_origins:
        return None
    scheme, _, host = origin.partition("://")
    if scheme in ("http", "https") and _host(host) in (settings.allowed_hosts or ()):
        return None
    return Refusal(403, "origin", "Requests from web pages of this Origin are not allowed.")


def check_declared_size(headers: Headers, settings: ServerSettings) -> Refusal | None:
    declared = headers.get("content-length", "0")
    if declared.isascii() and declared.isdigit() and int(declared) <= settings.max_body_bytes:
        return None
    return _too_large(settings)


CHECKS: tuple[Check, ...] = (check_single, check_host, check_origin)


def _host(value: str) -> str:
    """The host of `host[:port]`, in lower case."""
    return _PORT.sub("", value).lower()


def _too_large(settings: ServerSettings) -> Refusal:
    limit_mib = settings.max_body_bytes / 1024 / 1024
    return Refusal(
        413,
        "body_too_large",
        f"The request is larger than {limit_mib:g} MiB. Write large files in several calls.",
    )


def check_structure(body: bytes) -> Refusal | None:
    """Before anybody parses it: long strings are cheap, as many numbers or keys would hold up all others."""
    if not is_overstructured(body):
        return None
    limit_kib = STRUCTURE_LIMIT_BYTES >> 10
    return Refusal(
        413,
        "body_structure",
        f"The request has more than {limit_kib} KiB of JSON outside of strings: numbers, keys, brackets. "
        "Send long content as one string.",
    )


def bearer_token(headers: Headers) -> str | None:
    """The token of `Authorization: Bearer TOKEN` (RFC 6750); None when there is none."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() or None if scheme.lower() == "bearer" else None


_REFUSALS: Mapping[type[AuthenticationError], tuple[int, str, Mapping[str, str]]] = {
    # The challenge is RFC 9110 section 11.6.1.
    Unauthenticated: (401, "unauthenticated", {"WWW-Authenticate": 'Bearer realm="cli-mcp"'}),
    TooManyFailures: (429, "too_many_failures", {"Retry-After": "60"}),
    AuthenticationUnavailable: (503, "authentication_unavailable", {"Retry-After": "5"}),
}


def refusal_of(error: AuthenticationError) -> Refusal:
    status, reason, headers = _REFUSALS.get(type(error), (403, "forbidden", {}))
    return Refusal(status, reason, str(error), headers)


def action_of(path: str) -> Action:
    if path == "/metrics":
        return Action.READ_METRICS
    return Action.END_SESSION if path.startswith("/sessions/") else Action.CALL


def caller_of(request: HTTPConnection) -> Caller:
    """Who sent a request that passed the guards."""
    caller = request.state.caller
    assert isinstance(caller, Caller)
    return caller


class Guards:
    """ASGI middleware. Behind it a request has a caller, and its body is here and of acceptable size."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        settings: ServerSettings,
        authenticator: Authenticator,
        on_refusal: Callable[[str], None],
    ) -> None:
        self._app = app
        self._settings = settings
        self._authenticator = authenticator
        self._on_refusal = on_refusal

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        refusal = await self._admit(scope)
        if refusal is None and scope["path"] not in OPEN_PATHS:
            body = await self._read_body(receive)
            if body is None:
                return  # the client went away
            if isinstance(body, Refusal):
                refusal = body
            else:
                receive = replay(body, receive)
        if refusal is not None:
            self._on_refusal(refusal.reason)
            await refusal.response()(scope, receive, send)
            return
        await self._app(scope, receive, send)

    async def _admit(self, scope: Scope) -> Refusal | None:
        headers = Headers(scope=scope)
        for check in CHECKS:
            if (refusal := check(headers, self._settings)) is not None:
                return refusal
        if scope["path"] in OPEN_PATHS:
            return None
        client = scope.get("client")
        try:
            caller = await self._authenticator.authenticate(
                bearer_token(headers), action_of(scope["path"]), client[0] if client else ""
            )
        except AuthenticationError as error:
            return refusal_of(error)
        scope.setdefault("state", {})["caller"] = caller
        return check_declared_size(headers, self._settings)

    async def _read_body(self, receive: Receive) -> bytes | Refusal | None:
        body = bytearray()
        try:
            async with asyncio.timeout(self._settings.body_timeout_seconds):
                while True:
                    message = await receive()
                    if message["type"] != "http.request":
                        return None
                    body += message.get("body", b"")
                    if len(body) > self._settings.max_body_bytes:
                        return _too_large(self._settings)
                    if not message.get("more_body", False):
                        whole = bytes(body)
                        return check_structure(whole) or whole
        except TimeoutError:
            seconds = self._settings.body_timeout_seconds
            return Refusal(408, "body_timeout", f"The request did not arrive within {seconds:g} s.")


def replay(body: bytes, receive: Receive) -> Receive:
    """A `receive` that gives `body` in one piece, then what comes after it."""
    pending: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return pending.pop() if pending else await receive()

    return replay
