"""Serves the application on a socket and ends without cutting off what runs."""

import asyncio
import contextlib
import socket
import ssl
from asyncio.sslproto import SSLProtocol
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import h11
import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.h11_impl import H11Protocol

from mcp_server.app import calls_of
from mcp_server.listener import BoundedListener
from mcp_server.waiting import first_of

# Connections beyond this are hung up on: each may hold a request of several megabytes.
MAX_CONNECTIONS = 2_000
# Of them, those from one address: a silent client must not keep others out. Behind a load balancer or a NAT
# many clients share one.
MAX_CONNECTIONS_PER_ADDRESS = 500
# asyncio's own is a minute.
HANDSHAKE_SECONDS = 10.0
# What asyncio sets aside for each TLS connection from before its handshake on. By its own 256 KiB as many
# silent clients would take 600 MB.
_TLS_BUFFER_BYTES = 32 * 1024
SLOW_CLIENT_SECONDS = 20.0
# In one turn of the event loop; others get theirs in between.
_ACCEPTED_AT_ONCE = 16
_KEEP_ALIVE_SECONDS = 75
_MAX_HEAD_BYTES = 64 * 1024
# How long answers may take to be sent once their commands have ended.
_FLUSH_SECONDS = 5


class _Protocol(H11Protocol):
    """Hangs up on a client that is slow to send what is next; uvicorn alone would wait without end.

    h11, not httptools: it strips the whitespace around header values as RFC 9112 section 5.1 asks.
    """

    _deadline: asyncio.TimerHandle | None = None

    def __init__(self, listener: BoundedListener, **options: Any) -> None:
        super().__init__(**options)
        self._listener = listener
        self._descriptor = -1

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._descriptor = transport.get_extra_info("socket").fileno()
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.conn.their_state is h11.IDLE:
            self._listener.falls_silent(self._descriptor)
        if self.conn.their_state is h11.SEND_BODY:
            self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget_deadline()
        super().connection_lost(exc)

    def _watch(self) -> None:
        if self.conn.their_state is not h11.IDLE:
            self._listener.asks(self._descriptor)
        if not self._waits_for_client():
            self._forget_deadline()
        elif self._deadline is None:
            self._deadline = self.loop.call_later(SLOW_CLIENT_SECONDS, self._hang_up)

    def _waits_for_client(self) -> bool:
        """For a head, or for the rest of a body that nobody reads. Whoever reads a body times it as well."""
        unwanted = self.conn.their_state is h11.SEND_BODY and self.conn.our_state is h11.DONE
        return unwanted or self.conn.their_state is h11.IDLE

    def _hang_up(self) -> None:
        if self._waits_for_client():
            self.transport.close()

    def _forget_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, on_started: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_started = on_started

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are the caller's business: `serve` runs in its event loop."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._on_started()


async def serve(
    app: Starlette,
    host: str,
    port: int,
    *,
    drain_seconds: float,
    stop: asyncio.Event,
    stop_now: asyncio.Event | None = None,
    tls: ssl.SSLContext | None = None,
    on_bound: Callable[[int], None] = lambda port: None,
) -> None:
    """Serve `app`, made by build_app, until `stop` is set; return when it has stopped. `host` is an address,
    or "" for all of this machine.

    `on_bound` gets the port once connections are accepted, which is of use with port 0. After `stop` new
    calls are refused and running commands have `drain_seconds`, then they are interrupted; `stop_now`
    interrupts them at once. Without `tls` it is plain HTTP. Raises OSError when the address cannot be had.
    """
    calls = calls_of(app)
    if tls is not None:
        SSLProtocol.max_size = _TLS_BUFFER_BYTES
        # uvicorn has no option for it.
        asyncio.constants.SSL_HANDSHAKE_TIMEOUT = HANDSHAKE_SECONDS
    # Without TLS all clients are on this machine, and have one address.
    from_one_address = MAX_CONNECTIONS if tls is None else MAX_CONNECTIONS_PER_ADDRESS
    with BoundedListener.listen_on(host, port, MAX_CONNECTIONS, from_one_address) as listener:
        # Inherited by its connections, on which asyncio would not set it: an answer, sent as head and body,
        # would wait for the client's delayed acknowledgement: 40 ms.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        bound_port = listener.getsockname()[1]
        server = _Server(_config(app, tls, listener), on_started=lambda: on_bound(bound_port))
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            await first_of(serving, stop.wait())
            calls.close()
            await first_of(calls.finished(), (stop_now or asyncio.Event()).wait(), seconds=drain_seconds)
            calls.cancel_all()
            await first_of(calls.finished(), seconds=_FLUSH_SECONDS)
        finally:
            server.should_exit = True
            await serving


def _config(app: Starlette, tls: ssl.SSLContext | None, listener: BoundedListener) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=partial(_Protocol, listener),  # type: ignore[arg-type]  # what is called to make one
        ws="none",
        loop="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        backlog=_ACCEPTED_AT_ONCE,
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=_FLUSH_SECONDS,
        h11_max_incomplete_event_size=_MAX_HEAD_BYTES,
        ssl_context_factory=None if tls is None else lambda config, default: tls,
    )
