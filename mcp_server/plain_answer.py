"""Answers with plain JSON instead of a stream of events when the first event is the answer already.

MCP leaves that choice to the server. It matters in the handshake era, where the SDK would open a stream for
every request: its Python clients hang up on a stream once they have their answer, and would pay for each call
with a new TCP connection and TLS handshake. In the era of 2026-07-28 the SDK itself does the same as this.
https://modelcontextprotocol.io/specification/2025-11-25/basic/transports#sending-messages-to-the-server
"""

import asyncio
import re

from starlette.types import Message, Send

_EVENT_STREAM = b"text/event-stream"
# A response of JSON-RPC as the SDK writes it. Whatever looks otherwise stays an event.
_ANSWER = re.compile(
    rb'(?:event: message\r\n)?data: (\{"jsonrpc":"2\.0","id":(?:-?[0-9]+|"(?:[^"\\]|\\.)*"),'
    rb'"(?:result|error)":.*\})\r\n\r\n'
)


class PlainAnswer:
    """A `send` of ASGI: what it is given goes on to `send`, a stream that is one answer as JSON.

    The head of a stream waits for the first event: the answer, progress, or the comment that keeps the
    connection alive.
    """

    def __init__(self, send: Send) -> None:
        self._send = send
        self._waiting_head: Message | None = None
        self._complete = False
        self._turn = asyncio.Lock()  # events and comments come from two tasks

    async def __call__(self, message: Message) -> None:
        async with self._turn:
            if self._complete:
                return  # the end of the stream
            if message["type"] == "http.response.start" and _is_event_stream(message):
                self._waiting_head = message
                return
            if self._waiting_head is not None:
                await self._decide(self._waiting_head, message)
                self._waiting_head = None
                return
            await self._send(message)

    async def _decide(self, head: Message, first: Message) -> None:
        answer = _ANSWER.fullmatch(first.get("body", b""))
        if answer is None:
            await self._send(head)
            await self._send(first)
            return
        self._complete = True
        body = answer[1]
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await self._send({"type": "http.response.start", "status": head["status"], "headers": headers})
        await self._send({"type": "http.response.body", "body": body})


def _is_event_stream(head: Message) -> bool:
    kinds = (value for name, value in head["headers"] if name.lower() == b"content-type")
    return any(value.startswith(_EVENT_STREAM) for value in kinds)
