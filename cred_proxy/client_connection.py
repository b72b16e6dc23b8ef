"""A client's connection: the CONNECT, the end of its TLS, and the HTTP parser on what was inside.

Thin: what to do with a CONNECT is decided in cred_proxy.connect, with a request in cred_proxy.request.
"""

import asyncio
import logging
import traceback
from typing import TYPE_CHECKING, Any, cast

from aiohttp import StreamReader, web
from aiohttp.http import HttpRequestParser, RawRequestMessage
from aiohttp.streams import EMPTY_PAYLOAD
from aiohttp.web_protocol import RequestHandler, RequestPayloadError, _ErrInfo

from cli_mcp.api.endpoint import Endpoint
from cred_proxy.connect import (
    ESTABLISHED,
    HEAD_END,
    MAX_HEAD_BYTES,
    REFUSALS,
    asks_for_refusals,
    judge_connect,
    requested_method,
    requested_target,
)
from cred_proxy.core import Admission, Core, Limits
from cred_proxy.exchange import Exchange
from cred_proxy.memory import BODY_BYTES, HEAD_BYTES, bound_transport
from cred_proxy.pacing import Paced
from cred_proxy.refusal import Reason, Refusal
from cred_proxy.responses import OwnAnswer

if TYPE_CHECKING:
    from collections.abc import Callable

_log = logging.getLogger(__name__)
_SHUTDOWN_SECONDS = 5.0
# How long what a client still sends after its answer is read and thrown away, so that it sees the answer.
_LINGERING_SECONDS = 2.0
# Of what is told to a client that does not read it.
_MAX_UNHEARD_BYTES = 8 * 1024
_MALFORMED = Refusal(Reason.BAD_REQUEST, "this is not HTTP/1.1, or its head is too large")
_TOO_LARGE = Refusal(Reason.HEAD_TOO_LARGE, f"a request head has at most {HEAD_BYTES} bytes")
_INTERNAL = Refusal(Reason.INTERNAL, "its log says where")
_REFUSALS = {refusal.answer.status: refusal for refusal in (_MALFORMED, _TOO_LARGE)}
# What it costs to make and to end a connection's TLS, beside what is measured.
_HANDSHAKE_SECONDS = 0.001


def _head_size(head: RawRequestMessage | _ErrInfo) -> int:
    """About what it had on the wire, in bytes; 0 for what is no request."""
    if isinstance(head, _ErrInfo):
        return 0
    return len(head.path) + sum(len(name) + len(value) + len(": \r\n") for name, value in head.raw_headers)


class ConnectProtocol(asyncio.Protocol):
    """Reads one CONNECT head and answers it; a granted one becomes a ClientConnection."""

    def __init__(self, core: Core, server: web.Server, admission: Admission) -> None:
        self._core = core
        self._server = server
        self._admission = admission
        self._head = bytearray()
        self._unsubscribe: Callable[[], None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's own are no subclass
        bound_transport(self._transport)
        self._loop = asyncio.get_running_loop()
        self._expiry = self._loop.call_later(self._core.limits.connect_head_seconds, self._expire)
        self._admission.hold(self._transport)

    def connection_lost(self, error: Exception | None) -> None:
        self._expiry.cancel()
        if self._unsubscribe is not None:
            self._unsubscribe()
        self._admission.release()

    def data_received(self, data: bytes) -> None:
        if self._transport.is_closing() or self._unsubscribe is not None:
            return
        searched = max(0, len(self._head) - len(HEAD_END) + 1)
        self._head += data
        end = self._head.find(HEAD_END, searched)
        if end > MAX_HEAD_BYTES or (end < 0 and len(self._head) > MAX_HEAD_BYTES):
            self._refuse(Refusal(Reason.HEAD_TOO_LARGE, f"a CONNECT has at most {MAX_HEAD_BYTES} bytes"))
        elif end >= 0:
            # The TLS layer must see the first byte of the handshake.
            self._transport.pause_reading()
            head = bytes(self._head[:end])
            at_once = end + len(HEAD_END) < len(self._head)
            self._core.turns.run(self._admission.client, lambda: self._decide(head, at_once=at_once))

    def _decide(self, head: bytes, *, at_once: bool) -> None:
        if self._transport.is_closing():
            return
        if asks_for_refusals(head):
            self._expiry.cancel()
            self._transport.write(REFUSALS)
            self._unsubscribe = self._core.refused.subscribe(
                self._admission.client, self._tell, self._transport.close
            )
            self._transport.resume_reading()
            return
        verdict = judge_connect(head, self._core.live.routing.table)
        if isinstance(verdict, Refusal):
            self._refuse(verdict, requested_target(head), requested_method(head))
        elif at_once:
            self._refuse(Refusal(Reason.BAD_CONNECT, "wait for the answer before sending more"), str(verdict))
        else:
            self._expiry.cancel()
            self._handover = self._loop.create_task(self._end_tls(verdict))

    def _expire(self) -> None:
        self._refuse(Refusal(Reason.CONNECT_TIMEOUT, "send the CONNECT at once"))

    def _tell(self, text: str) -> None:
        """Who does not listen misses it."""
        if self._transport.get_write_buffer_size() < _MAX_UNHEARD_BYTES:
            self._transport.write(f"{text}\n".encode())

    def _refuse(self, refusal: Refusal, target: str = "-", method: str = "CONNECT") -> None:
        self._expiry.cancel()
        self._core.record_connect(
            self._admission.client, target, refusal.reason, refusal.answer.status, method
        )
        self._transport.write(refusal.before_tls())
        self._transport.close()

    async def _end_tls(self, target: Endpoint) -> None:
        core, admission = self._core, self._admission
        connection = ClientConnection(core, self._server, admission, target)
        context = core.leaves.context(target.host, core.live.authority)
        try:
            await core.turns.take(admission.client)
            core.turns.charge(admission.client, _HANDSHAKE_SECONDS)
            self._transport.write(ESTABLISHED)
            transport = await self._loop.start_tls(
                self._transport,
                connection,
                context,
                server_side=True,
                ssl_handshake_timeout=core.limits.handshake_seconds,
                ssl_shutdown_timeout=_SHUTDOWN_SECONDS,
            )
        except OSError as error:  # ssl.SSLError is one, and so is a timeout
            # The name of OpenSSL's reason, such as TLSV1_ALERT_UNKNOWN_CA, is what an operator needs.
            _log.info(
                "%s: no TLS for %s: %s",
                admission.client,
                target,
                getattr(error, "reason", None) or type(error).__name__,
                extra={"client": admission.client},
            )
            core.record_connect(admission.client, str(target), Reason.TLS_FAILED, 200)
            self._transport.abort()
            admission.release()
            return
        except BaseException:
            self._transport.abort()
            admission.release()
            raise
        if transport is None or transport.is_closing():
            admission.release()
            return
        connection.begin(transport)


class ClientConnection(Paced, RequestHandler):
    """aiohttp's HTTP/1.1 server protocol inside a tunnel, with everything that it would say replaced."""

    __slots__ = (
        "_core",
        "_deadlines",
        "_early",
        "_head_bytes",
        "_last_body",
        "admission",
        "target",
    )

    def __init__(self, core: Core, server: web.Server, admission: Admission, target: Endpoint) -> None:
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            keepalive_timeout=core.limits.keepalive_seconds,
            access_log=None,  # type: ignore[arg-type]
            lingering_time=_LINGERING_SECONDS,
            read_bufsize=BODY_BYTES,
        )
        self._read_ahead_one_request(core.limits)
        self._core = core
        self.admission = admission
        self.target = target
        self._client = admission.client
        self._turns = core.turns
        self._early = b""
        self._head_bytes = 0
        self._last_body: StreamReader | None = None
        self._deadlines: dict[str, asyncio.TimerHandle] = {}

    def _read_ahead_one_request(self, limits: Limits) -> None:
        """aiohttp parses up to 32 pipelined requests ahead, with whose heads a client could fill memory."""
        self._max_msg_queue_size, self._msg_queue_resume_size = 1, 0
        self._parser = HttpRequestParser(
            self,
            self._loop,
            self._read_bufsize,
            max_line_size=limits.line_bytes,
            max_field_size=limits.line_bytes,
            max_headers=limits.header_fields,
            payload_exception=RequestPayloadError,
            auto_decompress=False,
            max_msg_queue_size=1,
        )

    def begin(self, transport: asyncio.Transport) -> None:
        """The handshake is done. `start_tls` delivers data, but never calls connection_made."""
        bound_transport(transport)
        self.connection_made(transport)
        if self._early:
            early, self._early = self._early, b""
            self.data_received(early)

    async def start(self) -> None:
        try:
            await super().start()
        finally:
            # asyncio has no deadline of its own for one who left behind what was not read.
            if not self.admission.transport.is_closing():
                self._expect("closing", _SHUTDOWN_SECONDS)

    def drain(self) -> None:
        """End the connection: now when it is idle, otherwise after the request that it serves."""
        idle = self._waiter is not None
        self.close()
        if idle:
            self.force_close()

    def end_request(self) -> None:
        """Cut off the request that is served, if there is one; the next is judged anew."""
        if self._request_in_progress:
            self.admission.transport.abort()

    def data_received(self, data: bytes) -> None:
        # The first request may share a segment with the end of the handshake.
        if self.transport is None and not self._force_close:
            self._early += data
            return
        super().data_received(data)

    def _work_on(self, data: bytes) -> None:
        if data and self._buffer_paused:
            self._pause_transport_reading()
        if self._head_bytes > HEAD_BYTES:
            return  # it is refused already
        requests, body_bytes = self._request_count, self._body_bytes()
        RequestHandler.data_received(self, data)
        self._head_bytes += len(data)
        if self._request_count == requests:
            # Neither of a head nor of the fields behind a body (RFC 9112 section 7.1.2).
            if (
                self._messages
                or self._reading_paused
                or self._is_switched
                or self._body_bytes() != body_bytes
            ):
                self._head_bytes = 0
            elif self._head_bytes > HEAD_BYTES:
                self._refuse_head()
        elif self._head_bytes > HEAD_BYTES and _head_size(self._messages[-1][0]) > HEAD_BYTES:
            self._messages.pop()
            self._refuse_head()
        else:
            self._head_bytes = 0
        if self._messages:
            head, body = self._messages[-1]
            if not isinstance(head, _ErrInfo):
                self._last_body = body
            # aiohttp answers what is malformed after the request before it, even when it is in that one's
            # body, which would wait for its end.
            elif self._last_body is not None and not self._last_body.is_eof():
                self._last_body.set_exception(RequestPayloadError("malformed"))

    @property
    def _is_switched(self) -> bool:
        return self._upgraded or self._payload_parser is not None

    def _body_bytes(self) -> int:
        return 0 if self._last_body is None else self._last_body.total_bytes

    def _refuse_head(self) -> None:
        """As aiohttp does with what is malformed: it is answered after the request before it."""
        too_large = _ErrInfo(_TOO_LARGE.answer.status, ValueError(), "")
        self._messages.append((too_large, EMPTY_PAYLOAD))
        if self._last_body is not None and not self._last_body.is_eof():
            self._last_body.set_exception(RequestPayloadError("malformed"))
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
        self._pause_transport_reading()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._expect("taking what it asked for", self._core.limits.client_stall_seconds)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._met("taking what it asked for")

    def _pause_reading_for_buffer(self) -> None:
        """aiohttp asks for this with each request that it has read. Most are taken before anything follows:
        the pause waits for that, see data_received."""
        self._buffer_paused = True

    def _pause_transport_reading(self) -> None:
        """The end of what a client sends is not seen behind what is not read, hence a limit here too."""
        super()._pause_transport_reading()
        if self.transport is not None:
            self._expect("being read", self._core.limits.unread_seconds)

    def _resume_transport_reading(self) -> None:
        super()._resume_transport_reading()
        self._met("being read")

    def _expect(self, what: str, seconds: float) -> None:
        """End the connection in so many seconds, unless `what` is met before."""
        if what not in self._deadlines:
            self._deadlines[what] = self._loop.call_later(seconds, self.admission.transport.abort)

    def _met(self, what: str) -> None:
        deadline = self._deadlines.pop(what, None)
        if deadline is not None:
            deadline.cancel()

    def connection_lost(self, exc: BaseException | None) -> None:
        for what in list(self._deadlines):
            self._met(what)
        self.admission.release()
        super().connection_lost(exc)

    def _record_refused(self, refusal: Refusal, status: int) -> None:
        """What no handler saw."""
        exchange = Exchange(self.admission.client, str(self.target), "-", "-")
        exchange.status, exchange.reason = status, refusal.reason
        self._core.record(exchange.record())

    def log_exception(self, *args: Any, **kw: Any) -> None:
        # Where it happened, but not the message: that may quote what a client or an origin sent.
        error = kw.get("exc_info")
        # That a body is malformed is on record by now; aiohttp only wanted to see it end.
        if isinstance(error, BaseException) and not isinstance(error, RequestPayloadError):
            frames = "".join(traceback.format_tb(error.__traceback__))
            _log.error(
                "%s while handling a request\n%s",
                type(error).__name__,
                frames,
                extra={"client": self.admission.client},
            )

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """The answer to what is no HTTP (400, from the parser) or where the proxy failed (500)."""
        if isinstance(exc, ConnectionError):
            raise exc  # the client has gone; aiohttp ends the connection
        refusal = _REFUSALS.get(status, _INTERNAL)
        # The path of a request that could not be read is not known.
        path = request.raw_path if refusal is _INTERNAL else ""
        response = OwnAnswer(refusal, self._core.live.routing.table.get(self.target), path)
        response.force_close()
        if refusal is not _INTERNAL:
            # A failure of ours, the handler has recorded.
            self._record_refused(refusal, response.status)
        else:
            self.log_exception(exc_info=exc)
        if request.writer.output_size > 0:
            raise ConnectionError("the response has begun")
        return response
