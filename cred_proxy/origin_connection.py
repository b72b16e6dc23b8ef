"""aiohttp's client protocol, where an origin that follows no rule would otherwise get the better of it."""

import asyncio
from typing import Any

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.streams import EMPTY_PAYLOAD

from cred_proxy.fairness import Turns
from cred_proxy.memory import bound_transport
from cred_proxy.pacing import Paced

# Of a response's head, and of interim responses (RFC 9110 section 15.2) before it. Few origins send one.
MAX_HEAD_BYTES = 64 * 1024


class OriginConnection(Paced, ResponseHandler):
    """What comes is work for `client`."""

    def __init__(self, client: str, turns: Turns, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self._client = client
        self._turns = turns
        self._head_bytes = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        assert self.transport is not None
        bound_transport(self.transport)

    @property
    def should_close(self) -> bool:
        return bool(self._held) or super().should_close

    def set_response_params(self, **params: Any) -> None:
        self._head_bytes = 0
        super().set_response_params(**params)

    def _work_on(self, data: bytes) -> None:
        ResponseHandler.data_received(self, data)
        if self._upgraded or self._payload not in (None, EMPTY_PAYLOAD):
            return
        # Heads wait in memory until they are read, however many there are.
        self._head_bytes += len(data)
        if self._head_bytes > MAX_HEAD_BYTES and self.transport is not None:
            self.transport.abort()
            self._buffer.clear()
            self.set_exception(aiohttp.ClientPayloadError("a response head without end"))

    def connection_lost(self, exc: BaseException | None) -> None:
        # What came before the end.
        self._work_on_held()
        body = self._payload
        super().connection_lost(exc)
        # After malformed chunks, whoever reads the body would wait for ever.
        if body is not None and not body.is_eof() and body.exception() is None:
            body.set_exception(aiohttp.ClientPayloadError("the connection ended inside the body"))
