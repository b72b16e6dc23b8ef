"""The SDK's server object with our tools, for any transport: HTTP requests or the stdio of one connection."""

import logging
from collections.abc import Callable
from typing import Any

from mcp import types
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError

from cli_mcp import __version__
from mcp_server.backend import SessionKey
from mcp_server.catalogue import Offer
from mcp_server.tool_calls import ProgressReport, ToolCalls

_TOOLS_TTL_MS = 300_000
# Their DEBUG has whole messages, hence commands and output, and their INFO a line about each request.
_TALKATIVE_LOGGERS = ("mcp", "sse_starlette")

SessionOf = Callable[[ServerRequestContext[Any, Any]], SessionKey]
"""The session that a request is for. Raises InvalidCall, which becomes a tool error."""


def tool_server(calls: ToolCalls, tools: Offer, session_of: SessionOf, which_sandbox: str) -> Server[Any]:
    """A server of `tools`, whose calls run in the session that `session_of` tells.

    `which_sandbox` says in one sentence, for the instructions to a client, which that is.
    """
    for name in _TALKATIVE_LOGGERS:
        logging.getLogger(name).setLevel(logging.WARNING)

    async def list_tools(
        context: ServerRequestContext[Any, Any], params: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        definitions = [tool.definition for tool in tools().values()]
        return types.ListToolsResult(tools=definitions, ttl_ms=_TOOLS_TTL_MS, cache_scope="public")

    async def call_tool(
        context: ServerRequestContext[Any, Any], params: types.CallToolRequestParams
    ) -> types.CallToolResult:
        offered = tools()
        tool = offered.get(params.name)
        if tool is None:
            names = ", ".join(f"`{name}`" for name in offered)
            raise MCPError(code=types.INVALID_PARAMS, message=f"Unknown tool. There is {names}.")
        return await calls.call(
            tool,
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
        calls.cancel(lambda: session_of(context), params.request_id)

    def input_schema(name: str) -> dict[str, Any] | None:
        tool = tools().get(name)
        return tool.definition.input_schema if tool is not None else None

    server: Server[Any] = Server(
        "cli-mcp",
        version=__version__,
        title="Sandboxed bash",
        instructions=f"Tools that work in one sandbox, which stays between calls. {which_sandbox}",
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        get_tool_input_schema=input_schema,
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
