"""The SDK's server object with our tool, for any transport: HTTP requests or the stdio of one connection."""

import logging
from collections.abc import Callable
from typing import Any

from mcp import types
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError

from cli_mcp import __version__
from mcp_server.backend import SessionKey
from mcp_server.bash import Bash, ProgressReport
from mcp_server.tool import TOOL_NAME

_TOOLS_TTL_MS = 3_600_000
# Their DEBUG has whole messages, hence commands and output, and their INFO a line about each request.
_TALKATIVE_LOGGERS = ("mcp", "sse_starlette")

SessionOf = Callable[[ServerRequestContext[Any, Any]], SessionKey]
"""The session that a request is for. Raises InvalidCall, which becomes a tool error."""


def tool_server(bash: Bash, tool: types.Tool, session_of: SessionOf, instructions: str) -> Server[Any]:
    """A server of the one tool `tool`, whose calls `bash` runs in the session that `session_of` tells."""
    for name in _TALKATIVE_LOGGERS:
        logging.getLogger(name).setLevel(logging.WARNING)

    async def list_tools(
        context: ServerRequestContext[Any, Any], params: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[tool], ttl_ms=_TOOLS_TTL_MS, cache_scope="public")

    async def call_tool(
        context: ServerRequestContext[Any, Any], params: types.CallToolRequestParams
    ) -> types.CallToolResult:
        if params.name != tool.name:
            raise MCPError(code=types.INVALID_PARAMS, message=f"Unknown tool: there is one, `{TOOL_NAME}`.")
        return await bash.call(
            session_of=lambda: session_of(context),
            request_id=context.request_id,
            arguments=params.arguments or {},
            report=_progress_report(context),
        )

    async def cancelled(
        context: ServerRequestContext[Any, Any], params: types.CancelledNotificationParams
    ) -> None:
        """A client of the handshake era cancels with a request of its own, not by hanging up.

        Must not suspend: its transport is torn down as soon as the notification was handed over.
        """
        bash.cancel(lambda: session_of(context), params.request_id)

    server: Server[Any] = Server(
        "cli-mcp",
        version=__version__,
        title="Sandboxed bash",
        instructions=instructions,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        get_tool_input_schema=lambda name: tool.input_schema if name == tool.name else None,
    )
    # The SDK brings a tracing middleware: a fifth of a call's cost, with no exporter to send to.
    server.middleware.clear()
    server.add_notification_handler("notifications/cancelled", types.CancelledNotificationParams, cancelled)
    return server


def _progress_report(context: ServerRequestContext[Any, Any]) -> ProgressReport | None:
    """None when the client did not ask for progress (no progressToken)."""
    if context.meta is None or context.meta.get("progress_token") is None:
        return None
    return context.session.report_progress
