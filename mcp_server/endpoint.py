"""`/mcp`: the tools over MCP's Streamable HTTP, for clients of the handshake era and of 2026-07-28 alike.

Both are served without a protocol session, so that any replica can answer any request. Requests of the
handshake era are answered by mcp_server.exchange, all else by the SDK: the later era, notifications, and what
is none of these.
"""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

from mcp.server.context import ServerRequestContext
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import Message, Receive, Scope, Send

from mcp_server.backend import SessionKey
from mcp_server.catalogue import Offer
from mcp_server.exchange import escape_line_ends, exchange, handshake_request
from mcp_server.guards import caller_of, replay
from mcp_server.settings import ServerSettings
from mcp_server.tool import SESSION_HEADER, session_of_caller
from mcp_server.tool_calls import ToolCalls
from mcp_server.tool_server import tool_server

_WHICH = f"Which one is told by the HTTP header {SESSION_HEADER}."


class McpEndpoint:
    """An ASGI application behind Guards, which has read the body; it serves while `running()` is entered."""

    def __init__(
        self, calls: ToolCalls, settings: ServerSettings, tools: Offer, has_default: Callable[[], bool]
    ) -> None:
        """`has_default`: whether a request that names no session is for one of the caller's own."""
        self._server = tool_server(calls, tools, lambda context: _session_of(context, has_default()), _WHICH)
        # Event streams: the later era's keep-alive comments and a noticed disconnect need them.
        self._manager = StreamableHTTPSessionManager(
            self._server, stateless=True, json_response=False, max_request_body_size=settings.max_body_bytes
        )

    def running(self) -> AbstractAsyncContextManager[None]:
        return self._manager.run()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] != "POST":
            # Neither a stream outside of requests nor a protocol session to delete: the specification's 405.
            response = JSONResponse(
                {"error": "MCP is spoken with POST here."}, 405, headers={"Allow": "POST"}
            )
            await response(scope, receive, send)
            return
        body = (await receive())["body"]
        scope = _accepting(scope)
        asked = handshake_request(Request(scope), body)
        if asked is not None:
            await exchange(self._server, asked, receive, send)
        else:
            await self._manager.handle_request(scope, replay(body, receive), _with_safe_lines(send))


def _accepting(scope: Scope) -> Scope:
    """No Accept header means any type, RFC 9110 section 12.5.1."""
    if Headers(scope=scope).get("accept", "").strip():
        return scope
    others = [(name, value) for name, value in scope["headers"] if name != b"accept"]
    return {**scope, "headers": [*others, (b"accept", b"*/*")]}


def _with_safe_lines(send: Send) -> Send:
    """For the SDK's event streams, each event of which is one message."""
    streams = False

    async def sending(message: Message) -> None:
        nonlocal streams
        if message["type"] == "http.response.start":
            streams = Headers(raw=message["headers"]).get("content-type", "").startswith("text/event-stream")
        elif streams and message.get("body"):
            message = {**message, "body": escape_line_ends(message["body"])}
        await send(message)

    return sending


def _session_of(context: ServerRequestContext[Any, Request], has_default: bool) -> SessionKey:
    """Raises InvalidCall."""
    assert context.request is not None
    owner = caller_of(context.request).owner
    named = context.request.headers.getlist(SESSION_HEADER)
    return SessionKey(owner, session_of_caller(named, owner, has_default=has_default))
