"""A request of the handshake era over HTTP: answered with JSON, or with a stream of events if it takes long.

MCP leaves the choice to the server. The SDK's transport opens a stream for every request of that era: its own
Python clients hang up on a stream once they have their answer, and would pay for each call with a TCP
connection and a TLS handshake; and it takes a quarter of the server's work for a call. In the era of
2026-07-28 the SDK does the same as this.
https://modelcontextprotocol.io/specification/2025-11-25/basic/transports#sending-messages-to-the-server
"""

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import anyio
import pydantic_core
from mcp.server.connection import Connection
from mcp.server.lowlevel import Server
from mcp.server.runner import serve_one
from mcp.server.streamable_http import check_accept_headers
from mcp.shared.dispatcher import CallOptions
from mcp.shared.exceptions import NoBackChannelError
from mcp.shared.jsonrpc_dispatcher import handler_exception_to_error_data, progress_token_from_params
from mcp.shared.message import ServerMessageMetadata
from mcp.shared.transport_context import TransportContext
from mcp.types import (
    DEFAULT_NEGOTIATED_VERSION,
    INTERNAL_ERROR,
    ErrorData,
    JSONRPCError,
    JSONRPCNotification,
    JSONRPCRequest,
    JSONRPCResponse,
    jsonrpc_message_adapter,
)
from mcp.types.version import HANDSHAKE_PROTOCOL_VERSIONS
from starlette.requests import Request
from starlette.types import Receive, Send

from mcp_server.tool_calls import internal_error
from mcp_server.waiting import first_of

PING_SECONDS = 15.0
"""How often a stream says that it lives, lest somebody between here and the client cuts it off."""

# The SDK takes a list of types, too.
_END_OF_MEDIA_TYPE = re.compile("[;,]")
_LINE_ENDS = tuple((character.encode(), b"\\u%04x" % ord(character)) for character in "\u0085\u2028\u2029")
_TRANSPORT = TransportContext(kind="streamable-http", can_send_request=False)
_STREAM_HEADERS = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
]


@dataclass(frozen=True, slots=True)
class HandshakeRequest:
    """`version` is what the client and a server of this era have agreed upon."""

    message: JSONRPCRequest
    version: str
    request: Request


def handshake_request(request: Request, body: bytes) -> HandshakeRequest | None:
    """The request that `body` is; None for what is of another era, no request, or to be refused."""
    version = request.headers.get("mcp-protocol-version", DEFAULT_NEGOTIATED_VERSION)
    if version not in HANDSHAKE_PROTOCOL_VERSIONS or not all(check_accept_headers(request)):
        return None
    if _END_OF_MEDIA_TYPE.split(request.headers.get("content-type", ""))[0].strip() != "application/json":
        return None
    try:
        message = jsonrpc_message_adapter.validate_python(pydantic_core.from_json(body))
    except ValueError:
        return None
    return HandshakeRequest(message, version, request) if isinstance(message, JSONRPCRequest) else None


async def exchange(server: Server[Any], asked: HandshakeRequest, receive: Receive, send: Send) -> None:
    """Answer `asked`. A client that hangs up has its request cancelled; `receive` tells of that alone."""
    reply = _Reply(send)
    answering = asyncio.create_task(_answer(server, asked, reply))
    hung_up = asyncio.ensure_future(receive())
    try:
        while True:
            await first_of(answering, hung_up, seconds=PING_SECONDS)
            if answering.done():
                await reply.end(answering.result())
                return
            if hung_up.done():
                return
            await reply.ping()
    finally:
        answering.cancel()
        hung_up.cancel()


async def _answer(server: Server[Any], asked: HandshakeRequest, reply: "_Reply") -> bytes:
    request_id, method, params = asked.message.id, asked.message.method, asked.message.params
    connection = Connection.from_envelope(asked.version, None, None)
    context = _Context(asked, reply)
    try:
        result = await serve_one(server, context, method, params, connection=connection, lifespan_state={})
        return _json(JSONRPCResponse(jsonrpc="2.0", id=request_id, result=result))
    except Exception as error:  # noqa: BLE001 - the last stop before the wire, which must not show internals
        data = handler_exception_to_error_data(error)
        data = data or ErrorData(code=INTERNAL_ERROR, message=internal_error(error))
        return _json(JSONRPCError(jsonrpc="2.0", id=request_id, error=data))


class _Reply:
    """The response to an HTTP request: whole, or a stream from its first event on."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._streaming = False
        self._turn = asyncio.Lock()  # progress and pings come from two tasks

    async def event(self, message: bytes) -> None:
        await self._stream(_event(message))

    async def ping(self) -> None:
        await self._stream(b": ping\r\n\r\n")

    async def end(self, answer: bytes) -> None:
        if self._streaming:
            await self._stream(_event(answer), more=False)
            return
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(answer)).encode())]
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})
        await self._send({"type": "http.response.body", "body": answer})

    async def _stream(self, data: bytes, *, more: bool = True) -> None:
        async with self._turn:
            if not self._streaming:
                await self._send({"type": "http.response.start", "status": 200, "headers": _STREAM_HEADERS})
                self._streaming = True
            await self._send({"type": "http.response.body", "body": data, "more_body": more})


def _json(message: JSONRPCResponse | JSONRPCError | JSONRPCNotification) -> bytes:
    return message.model_dump_json(by_alias=True, exclude_unset=True).encode()


def _event(message: bytes) -> bytes:
    return b"event: message\r\ndata: " + escape_line_ends(message) + b"\r\n\r\n"


def escape_line_ends(message: bytes) -> bytes:
    """The same JSON, in UTF-8, without U+0085, U+2028 and U+2029, which some readers of event streams take
    for the end of a line, though only CR and LF are."""
    for character, escape in _LINE_ENDS:
        message = message.replace(character, escape)
    return message


class _Context:
    """What handlers know of their request, a DispatchContext of the SDK: they may notify, and ask nothing."""

    transport = _TRANSPORT
    can_send_request = False

    def __init__(self, asked: HandshakeRequest, reply: _Reply) -> None:
        self.request_id = asked.message.id
        self.message_metadata = ServerMessageMetadata(request_context=asked.request)
        # Never set: a cancellation comes as a request of its own.
        self.cancel_requested = anyio.Event()
        self._progress_token = progress_token_from_params(asked.message.params)
        self._reply = reply

    async def send_raw_request(
        self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None
    ) -> dict[str, Any]:
        raise NoBackChannelError(method)

    async def notify(
        self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None
    ) -> None:
        given = {"params": dict(params)} if params is not None else {}
        await self._reply.event(_json(JSONRPCNotification(jsonrpc="2.0", method=method, **given)))

    async def progress(self, progress: float, total: float | None = None, message: str | None = None) -> None:
        if self._progress_token is None:
            return
        params = {"progress": progress, "total": total, "message": message}
        given = {name: value for name, value in params.items() if value is not None}
        await self.notify("notifications/progress", {"progressToken": self._progress_token, **given})
