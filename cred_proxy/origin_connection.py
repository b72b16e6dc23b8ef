"""aiohttp's client protocol, where an origin that follows no rule would otherwise get the better of it."""

import aiohttp
from aiohttp.client_proto import ResponseHandler

# Interim responses (RFC 9110 section 15.2) that nobody has read yet. Few origins send one.
MAX_HEADS_WAITING = 500


class OriginConnection(ResponseHandler):
    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        # Heads wait in memory until they are read, however many there are.
        if len(self) > MAX_HEADS_WAITING and self.transport is not None:
            self.transport.abort()
            self._buffer.clear()
            self.set_exception(aiohttp.ClientPayloadError("a flood of interim responses"))

    def connection_lost(self, exc: BaseException | None) -> None:
        body = self._payload
        super().connection_lost(exc)
        # After malformed chunks, whoever reads the body would wait for ever.
        if body is not None and not body.is_eof() and body.exception() is None:
            body.set_exception(aiohttp.ClientPayloadError("the connection ended inside the body"))
