"""MCP over lines of JSON-RPC, for both protocol eras: from a pair of line streams to the SDK's server.

A client may send as much as it likes: what it has not read stops what it may ask for next.
"""

import asyncio
import json
from typing import Any, Protocol

import anyio
from anyio.streams.memory import MemoryObjectSendStream
from mcp import types
from mcp.server.lowlevel import Server
from mcp.shared.message import SessionMessage
from pydantic import ValidationError

from cli_mcp.strict_json import STRUCTURE_LIMIT_BYTES, is_overstructured

MAX_REQUESTS = 8
"""That a connection may have running: a shell takes them one by one, and their answers may have to wait."""

MAX_USELESS_LINES = 64
"""That are no message or have a request's id that is taken, in a row. Each is answered."""

# Of the processor, estimated: a message that the SDK answers by itself. A call of a tool waits for its shell.
_MESSAGE_SECONDS = 0.0005
# What a call of a tool and its answer cost on their way, packets included: nobody is to wait for that.
_CALL_SECONDS = 0.001

_OVERSTRUCTURED = (
    f"This message has more than {STRUCTURE_LIMIT_BYTES >> 10} KiB of JSON outside of strings: numbers, "
    "keys, brackets. Send long content as one string."
)
_CALL = "tools/call"
_CANCELLED = "notifications/cancelled"


class UselessLines(Exception):
    """What the client says is not MCP; nobody is going to read the answers either."""

    def __init__(self) -> None:
        super().__init__(f"{MAX_USELESS_LINES} lines in a row were no message, or had an id that is taken")


class Lines(Protocol):
    """What a client and a server say to each other, a message a line."""

    async def read_line(self) -> bytes | None:
        """The next line without its end; None when the client has nothing more to say."""
        ...

    async def write_line(self, line: bytes) -> None:
        """Return once the client has room for `line`."""
        ...

    def charge(self, seconds: float) -> None:
        """Count so much of the processor's time towards what the client may take."""
        ...


async def serve_lines(server: Server[Any], lines: Lines) -> None:
    """Serve until the client has nothing more to say and has the answers to all that it asked for.

    What reading and writing raise comes out as it is; requests that run then are cancelled. Raises
    UselessLines.
    """
    # Without buffers: whoever has an answer waits until the client has taken the one before.
    to_server, from_client = anyio.create_memory_object_stream[SessionMessage | Exception]()
    from_server, to_client = anyio.create_memory_object_stream[SessionMessage]()
    requests = _OpenRequests()

    async def receive() -> None:
        useless = 0
        async with to_server:
            while (line := await lines.read_line()) is not None:
                if line.strip():
                    handed_over = await _hand_over(line, lines, requests, to_server)
                    useless = 0 if handed_over else useless + 1
                if useless > MAX_USELESS_LINES:
                    raise UselessLines
            await requests.fewer_than(1)

    async def send() -> None:
        async for outgoing in to_client:
            message = outgoing.message
            await lines.write_line(message.model_dump_json(by_alias=True, exclude_unset=True).encode())
            if isinstance(message, types.JSONRPCResponse | types.JSONRPCError):
                was_call = requests.forget(message.id) == _CALL
                answered = was_call and isinstance(message, types.JSONRPCResponse)
                lines.charge(-_CALL_SECONDS if answered else _MESSAGE_SECONDS)

    serving = server.run(from_client, from_server, server.create_initialization_options())
    tasks = [asyncio.create_task(part) for part in (receive(), send(), serving)]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for stream in (to_server, from_client, from_server, to_client):
            stream.close()


class _OpenRequests:
    """The requests that have no answer yet: their methods by their ids."""

    def __init__(self) -> None:
        self._methods: dict[int | str, str] = {}
        self._fewer = asyncio.Event()

    def __contains__(self, request_id: int | str) -> bool:
        return request_id in self._methods

    def add(self, request_id: int | str, method: str) -> None:
        self._methods[request_id] = method

    def forget(self, request_id: object) -> str | None:
        """Its method, if it was known."""
        self._fewer.set()
        return self._methods.pop(request_id, None) if isinstance(request_id, int | str) else None

    async def fewer_than(self, count: int) -> None:
        while len(self._methods) >= count:
            self._fewer.clear()
            await self._fewer.wait()


async def _hand_over(
    line: bytes,
    lines: Lines,
    requests: _OpenRequests,
    to_server: MemoryObjectSendStream[SessionMessage | Exception],
) -> bool:
    """Give the server one message; what is none is answered here, as JSON-RPC 2.0 section 5.1 asks. Says
    which of the two it was."""
    if is_overstructured(line):
        await lines.write_line(_error(types.INVALID_REQUEST, _OVERSTRUCTURED))
        return False
    try:
        message = types.jsonrpc_message_adapter.validate_json(line, by_name=False)
    except ValidationError as error:
        await lines.write_line(_no_message(error))
        return False
    if not isinstance(message, types.JSONRPCRequest):
        lines.charge(_MESSAGE_SECONDS)
    if isinstance(message, types.JSONRPCRequest):
        if message.id in requests:
            await lines.write_line(_error(types.INVALID_REQUEST, "A request with this id is running."))
            return False
        await requests.fewer_than(MAX_REQUESTS)
        requests.add(message.id, message.method)
    await to_server.send(SessionMessage(message))
    if isinstance(message, types.JSONRPCNotification) and message.method == _CANCELLED:
        requests.forget((message.params or {}).get("requestId"))  # it will have no answer
    return True


def _no_message(error: ValidationError) -> bytes:
    if error.errors(include_input=False, include_url=False)[0]["type"] == "json_invalid":
        return _error(
            types.PARSE_ERROR, "This line is not JSON. MCP over stdio is one JSON-RPC message a line."
        )
    return _error(types.INVALID_REQUEST, "This line is JSON, but no JSON-RPC 2.0 request or notification.")


def _error(code: int, message: str) -> bytes:
    return json.dumps(
        {"jsonrpc": "2.0", "id": None, "error": {"code": code, "message": message}}, separators=(",", ":")
    ).encode()
