"""Bytes in both directions after both sides have left HTTP (RFC 9110 section 7.8), with backpressure."""

import asyncio
from collections.abc import Awaitable, Callable

from aiohttp import StreamReader, web
from aiohttp.client_proto import ResponseHandler
from aiohttp.http import StreamWriter

from cred_proxy.exchange import Exchange
from cred_proxy.fairness import Turns
from cred_proxy.memory import BODY_BYTES


class _Inlet:
    """What aiohttp's protocols hand the bytes of an upgraded connection to; its own one parses websockets."""

    def __init__(self, stream: StreamReader) -> None:
        self._stream = stream

    def feed_data(self, data: bytes) -> tuple[bool, bytes]:
        self._stream.feed_data(data)
        return False, b""

    def feed_eof(self) -> None:
        self._stream.feed_eof()


async def splice(
    request: web.BaseRequest, upstream: ResponseHandler, exchange: Exchange, turns: Turns
) -> None:
    """Copy until either side ends. Both protocols have just seen the head of a 101 response."""
    loop = asyncio.get_running_loop()
    client = request.protocol
    from_client = StreamReader(client, BODY_BYTES, loop=loop)
    from_upstream = StreamReader(upstream, BODY_BYTES, loop=loop)
    client.set_parser(_Inlet(from_client))  # type: ignore[arg-type]
    upstream.set_parser(_Inlet(from_upstream), from_upstream)

    def count_up(size: int) -> None:
        exchange.bytes_up += size

    def count_down(size: int) -> None:
        exchange.bytes_down += size

    def take_turn() -> Awaitable[None]:
        return turns.take(exchange.client)

    directions = {
        asyncio.create_task(copy)
        for copy in (
            _copy(from_client, StreamWriter(upstream, loop), count_up, take_turn),
            _copy(from_upstream, StreamWriter(client, loop), count_down, take_turn),
        )
    }
    try:
        await asyncio.wait(directions, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for direction in directions:
            direction.cancel()
        await asyncio.gather(*directions, return_exceptions=True)


async def _copy(
    source: StreamReader,
    sink: StreamWriter,
    count: Callable[[int], None],
    take_turn: Callable[[], Awaitable[None]],
) -> None:
    while chunk := await source.readany():
        await sink.write(chunk)
        count(len(chunk))
        await take_turn()
