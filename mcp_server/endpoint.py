"""`/mcp`: the tool over MCP's Streamable HTTP, for clients of the handshake era and of 2026-07-28 alike.

Both are served without a protocol session, so that any replica can answer any request.
"""

import logging
from contextlib import AbstractAsyncContextManager
from typing import Any

from mcp import types
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.shared.exceptions import MCPError
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from cli_mcp import __version__
from mcp_server.bash import Bash, ProgressReport
from mcp_server.guards import caller_of
from mcp_server.settings import ServerSettings
from mcp_server.tool import SESSION_HEADER, TOOL_NAME, bash_tool

_TOOLS_TTL_MS = 3_600_000
_INSTRUCTIONS = (
    f"One tool, `{TOOL_NAME}`: a persistent shell in a sandbox. "
    f"Which one is told by the HTTP header {SESSION_HEADER}."
)

# Their DEBUG has whole messages, hence commands and output, and their INFO a line about each request.
_TALKATIVE_LOGGERS = ("mcp", "sse_starlette")

_Context = ServerRequestContext[Any, Request]


class McpEndpoint:
    """An ASGI application; it serves while `running()` is entered."""

    def __init__(self, bash: Bash, settings: ServerSettings) -> None:
        for name in _TALKATIVE_LOGGERS:
            logging.getLogger(name).setLevel(logging.WARNING)
        self._bash = bash
        self._tool = bash_tool(settings.egress_hint)
        server: Server[Any] = Server(
            "cli-mcp",
            version=__version__,
            title="Sandboxed bash",
            instructions=_INSTRUCTIONS,
            on_list_tools=self._list_tools,
            on_call_tool=self._call_tool,
            get_tool_input_schema=lambda name: self._tool.input_schema if name == TOOL_NAME else None,
        )
        # The SDK brings a tracing middleware: a fifth of a call's cost, with no exporter to send to.
        server.middleware.clear()
        server.add_notification_handler(
            "notifications/cancelled", types.CancelledNotificationParams, self._cancelled
        )
        # Event streams, not plain JSON: progress, keep-alive comments and a noticed disconnect need one.
        self._manager = StreamableHTTPSessionManager(
            server, stateless=True, json_response=False, max_request_body_size=settings.max_body_bytes
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
        await self._manager.handle_request(scope, receive, send)

    async def _list_tools(
        self, context: _Context, params: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[self._tool], ttl_ms=_TOOLS_TTL_MS, cache_scope="public")

    async def _call_tool(
        self, context: _Context, params: types.CallToolRequestParams
    ) -> types.CallToolResult:
        if params.name != TOOL_NAME:
            raise MCPError(code=types.INVALID_PARAMS, message=f"Unknown tool: there is one, `{TOOL_NAME}`.")
        return await self._bash.call(
            owner=_owner(context),
            session_ids=_session_ids(context),
            request_id=context.request_id,
            arguments=params.arguments or {},
            report=_progress_report(context),
        )

    async def _cancelled(self, context: _Context, params: types.CancelledNotificationParams) -> None:
        """A client of the handshake era cancels with a request of its own, not by hanging up.

        Must not suspend: its transport is torn down as soon as the notification was handed over.
        """
        self._bash.cancel(_owner(context), _session_ids(context), params.request_id)


def _owner(context: _Context) -> str:
    assert context.request is not None
    return caller_of(context.request).owner


def _session_ids(context: _Context) -> list[str]:
    assert context.request is not None
    return context.request.headers.getlist(SESSION_HEADER)


def _progress_report(context: _Context) -> ProgressReport | None:
    """None when the client did not ask for progress (no progressToken)."""
    if context.meta is None or context.meta.get("progress_token") is None:
        return None
    return context.session.report_progress
