"""One request from a client to its origin and the response back, streamed in both directions."""

import asyncio
from contextlib import nullcontext
from typing import cast

import aiohttp
from aiohttp import web

from cred_proxy.client_connection import ClientConnection
from cred_proxy.core import Core
from cred_proxy.exchange import Exchange
from cred_proxy.refusal import Reason, Refusal
from cred_proxy.request import Forward, RequestHead, judge_request
from cred_proxy.responses import OwnAnswer, PassedBack
from cred_proxy.routes import Route
from cred_proxy.tunnel import splice
from cred_proxy.upload import Upload
from cred_proxy.upstream import FAILURES, Upstream, explain, next_chunk
from cred_proxy.watch import Watch, Watches, frames_of, is_watch

_SWITCHING_PROTOCOLS = 101
# What the way of a request to its origin and the head of the response take, beside what is measured.
_REQUEST_SECONDS = 0.0003
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class Forwarder:
    def __init__(self, core: Core, upstream: Upstream, watches: Watches) -> None:
        self._core = core
        self._upstream = upstream
        self._watches = watches

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """The handler that aiohttp calls for every request, one at a time on each connection.

        It is cancelled when the client goes, which ends the request to the origin too.
        """
        connection = cast("ClientConnection", request.protocol)
        exchange = Exchange(
            connection.admission.client, str(connection.target), request.method, request.raw_path
        )
        try:
            await self._core.turns.take(exchange.client, _REQUEST_SECONDS)
            return await self._answer(request, connection, exchange)
        except (asyncio.CancelledError, ConnectionError):
            exchange.reason = Reason.CLIENT_GONE
            raise
        except Exception:
            exchange.status, exchange.reason = 500, Reason.INTERNAL
            raise
        finally:
            self._core.record(exchange.record())

    async def _answer(
        self, request: web.BaseRequest, connection: ClientConnection, exchange: Exchange
    ) -> web.StreamResponse:
        # Looked up for each request: a connection may outlive its route or its credential.
        routing = self._core.live.routing
        route = routing.table.get(connection.target)
        if route is None:
            gone = Refusal(
                Reason.DOMAIN_NOT_ALLOWED, f"{connection.target} is no longer a target of this sandbox"
            )
            return _refuse(request, None, gone, exchange)
        version = (request.version.major, request.version.minor)
        head = RequestHead(request.method, request.raw_path, version, list(request.headers.items()))
        verdict = judge_request(head, route)
        if isinstance(verdict, Refusal):
            return _refuse(request, route, verdict, exchange)
        if verdict.expects_continue:
            await request.writer.write(_CONTINUE)
            # Otherwise aiohttp takes it for a response that has begun.
            request.writer.output_size = 0
        upload = None
        if request.body_exists:
            upload = Upload(
                request.content, self._core.limits.client_stall_seconds, exchange, self._core.turns
            )
        response: aiohttp.ClientResponse | None = None
        try:
            try:
                body = upload.chunks() if upload else None
                response = await self._upstream.send(exchange.client, route, verdict, body, routing.upstream)
            except FAILURES as error:
                failure = upload.failure if upload else None
                return _refuse(request, route, failure or explain(error, route), exchange)
            return await self._pass_back(request, route, verdict, response, exchange)
        finally:
            # First the origin's connection, so that a body that stops here is not taken for a whole one.
            if response is not None:
                response.close()
            if upload is not None:
                await upload.stop()

    async def _pass_back(
        self,
        request: web.BaseRequest,
        route: Route,
        forward: Forward,
        upstream: aiohttp.ClientResponse,
        exchange: Exchange,
    ) -> web.StreamResponse:
        if upstream.status == _SWITCHING_PROTOCOLS:
            return await self._switch_protocols(request, route, forward, upstream, exchange)
        content = upstream.content
        # What came with the head goes on with it: a short response is one segment, and no turn of its own.
        chunk = content.read_nowait() if content.exception() is None else b""
        response = PassedBack(upstream, with_body=bool(chunk) or content.at_eof())
        exchange.status = upstream.status
        await response.prepare(request)
        if chunk:
            await (response.write_eof if content.at_eof() else response.write)(chunk)
            exchange.bytes_down += len(chunk)
        frames = frames_of(upstream) if is_watch(route, forward) else None
        with self._watches.opened(frames) if frames else nullcontext() as watch:
            if watch:
                watch.feed(chunk)
            return await self._pass_body(request, content, response, exchange, watch)

    async def _pass_body(
        self,
        request: web.BaseRequest,
        content: aiohttp.StreamReader,
        response: web.StreamResponse,
        exchange: Exchange,
        watch: Watch | None,
    ) -> web.StreamResponse:
        while True:
            # What comes until then is one chunk.
            await self._core.turns.take(exchange.client)
            try:
                chunk = await (watch.next_chunk(content) if watch else next_chunk(content))
            except FAILURES:
                _cut_off(request)
                exchange.reason = Reason.CUT_OFF
                return response
            if not chunk:
                return response
            await response.write(chunk)
            exchange.bytes_down += len(chunk)

    async def _switch_protocols(
        self,
        request: web.BaseRequest,
        route: Route,
        forward: Forward,
        upstream: aiohttp.ClientResponse,
        exchange: Exchange,
    ) -> web.StreamResponse:
        protocol = upstream.connection.protocol if upstream.connection is not None else None
        if not forward.upgrade or protocol is None:
            unasked = Refusal(
                Reason.UPSTREAM_BROKEN, f"{route.endpoint} switched protocols without being asked"
            )
            return _refuse(request, route, unasked, exchange)
        response = PassedBack(upstream, [("Connection", "Upgrade"), ("Upgrade", "websocket")])
        response.force_close()
        exchange.status = upstream.status
        await response.prepare(request)
        await splice(request, protocol, exchange, self._core.turns)
        return response


def _refuse(
    request: web.BaseRequest, route: Route | None, refusal: Refusal, exchange: Exchange
) -> web.StreamResponse:
    response = OwnAnswer(refusal, route, exchange.path)
    exchange.status, exchange.reason = response.status, refusal.reason
    # What is left of its body would otherwise be read to the end for nothing.
    if request.body_exists:
        response.force_close()
    return response


def _cut_off(request: web.BaseRequest) -> None:
    """End a response that stays incomplete, so that the client can tell: in HTTP/1.1 by the missing rest, in
    HTTP/1.0, where the end of the connection is a proper end, by a reset."""
    if request.version >= aiohttp.HttpVersion11:
        if request.transport is not None:
            request.transport.close()
    else:
        _abort(request)


def _abort(request: web.BaseRequest) -> None:
    if request.transport is not None:
        request.transport.abort()
