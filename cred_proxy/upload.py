"""The body of a request on its way to the origin, in a form that can be stopped at any time."""

import asyncio
from collections.abc import AsyncIterator

from aiohttp import StreamReader

from cred_proxy.exchange import Exchange
from cred_proxy.fairness import Turns
from cred_proxy.refusal import Reason, Refusal


class UploadStopped(ConnectionAbortedError):
    """The body stays incomplete: the client was too slow, or the origin has answered already."""


class Upload:
    """aiohttp reads the chunks in a task of its own, which may outlive the response; what remains of the
    client's body then belongs to somebody else, hence `stop`."""

    def __init__(self, content: StreamReader, stall_seconds: float, exchange: Exchange, turns: Turns) -> None:
        self._content = content
        self._stall_seconds = stall_seconds
        self._exchange = exchange
        self._turns = turns
        self._read: asyncio.Task[bytes] | None = None
        self._stalled = False
        self._stopped = False

    async def chunks(self) -> AsyncIterator[bytes]:
        """Raises UploadStopped, so that an incomplete body never looks complete to the origin."""
        while True:
            # What comes until then is one chunk.
            await self._turns.take(self._exchange.client)
            if self._stopped:
                raise UploadStopped
            self._read = asyncio.ensure_future(self._content.readany())
            self._read.add_done_callback(_retrieve)
            finished, _ = await asyncio.wait({self._read}, timeout=self._stall_seconds)
            if not finished:
                self._stalled = True
                self._read.cancel()
            if self._stalled or self._read.cancelled():
                raise UploadStopped
            chunk = self._read.result()
            if not chunk:
                return
            self._exchange.bytes_up += len(chunk)
            yield chunk

    async def stop(self) -> None:
        """Leave the client's body alone from now on."""
        self._stopped = True
        if self._read is not None and not self._read.done():
            self._read.cancel()
            await asyncio.wait({self._read})

    @property
    def failure(self) -> Refusal | None:
        """What went wrong on the client's side of the body, if that is where it did."""
        if self._stalled:
            return Refusal(Reason.BODY_STALLED, f"nothing came for {self._stall_seconds:g} s")
        if self._content.exception() is not None:
            return Refusal(Reason.BAD_REQUEST, "the body is malformed")
        return None


def _retrieve(read: asyncio.Task[bytes]) -> None:
    """Nobody asks for the result any more when the client goes while its request is being given up."""
    if not read.cancelled():
        read.exception()
