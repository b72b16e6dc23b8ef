"""One HTTP/1.1 connection to an agent. h11 parses; here every byte, piece and second is counted.

Nothing but a plain answer is understood: no informational answers, redirects, encodings or trailers, and
nothing that was not asked for.
"""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import h11

from mcp_server.agents.agent import AgentAddress, misbehaved
from mcp_server.agents.limits import Allowance, AnswerLimits

CONNECT_SECONDS = 5.0
HEAD_LIMIT_BYTES = 16 * 1024
# As much as is parsed before other tasks of the event loop have their turn.
_STEP_BYTES = 64 * 1024
# What chunking may add to a body, a few bytes for each chunk.
_CHUNK_OVERHEAD_BYTES = 32


class ConnectFailed(Exception):
    """No connection, so nothing was sent."""


class ConnectionBroken(Exception):
    """It ended, or nothing came for too long, before the answer was complete."""


@dataclass(frozen=True, slots=True)
class AgentRequest:
    method: str
    path: str
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = field(default=b"", repr=False)


class AgentConnection(asyncio.Protocol):
    """A request at a time: `send`, then `body` to its end; only then is the connection `reusable`."""

    def __init__(self, agent: AgentAddress) -> None:
        self._host = f"[{agent.ip}]" if ":" in agent.ip else agent.ip
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=HEAD_LIMIT_BYTES)
        self._received = bytearray()
        self._paused = False
        self._ended = False
        self._answering = False
        self._waiter: asyncio.Future[None] | None = None
        self._transport: asyncio.Transport | None = None
        self._started_at = self._deadline = 0.0
        self._limits = AnswerLimits(0, 0)
        self._bytes = self._chunks = Allowance(0, 0)

    @classmethod
    async def open(
        cls, agent: AgentAddress, port: int, seconds: float = CONNECT_SECONDS
    ) -> "AgentConnection":
        """Raises ConnectFailed."""
        try:
            async with asyncio.timeout(seconds):
                _, connection = await asyncio.get_running_loop().create_connection(
                    lambda: cls(agent), agent.ip, port
                )
        except (OSError, TimeoutError) as error:
            raise ConnectFailed(type(error).__name__) from None
        return connection

    # --- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if not self._answering:  # nobody asked
            self.close()
            return
        self._received += data
        if not self._paused and len(self._received) >= _STEP_BYTES:
            self._paused = True
            self._transport_in_use.pause_reading()
        self._wake()

    def connection_lost(self, error: Exception | None) -> None:
        self._ended = True
        self._wake()

    # --- requests

    @property
    def reusable(self) -> bool:
        return not (self._answering or self._ended or self._transport_in_use.is_closing())

    def close(self) -> None:
        """At once, whatever is under way."""
        self._ended = True
        self._transport_in_use.abort()

    async def send(self, request: AgentRequest, limits: AnswerLimits, deadline: float) -> h11.Response:
        """The head of the answer, all of which must be here by `deadline` of the loop's clock.
        Raises ConnectionBroken and AgentMisbehaved."""
        self._start(limits, deadline)
        head = h11.Request(
            method=request.method,
            target=request.path,
            headers=[("Host", self._host), *request.headers, ("Content-Length", str(len(request.body)))],
        )
        self._transport_in_use.write(
            b"".join(
                self._http.send(event) or b""
                for event in (head, h11.Data(data=request.body), h11.EndOfMessage())
            )
        )
        event = await self._next_event()
        if not isinstance(event, h11.Response):
            raise misbehaved("an informational answer")
        if any(name in (b"content-encoding", b"trailer", b"upgrade") for name, _ in event.headers):
            raise misbehaved("an encoding that was not asked for")
        return event

    async def body(self) -> AsyncIterator[bytes]:
        """The pieces of the answer's body. Raises ConnectionBroken and AgentMisbehaved."""
        body_bytes = Allowance(self._limits.body_bytes, self._limits.body_bytes_per_second)
        while not isinstance(event := await self._next_event(), h11.EndOfMessage):
            if not isinstance(event, h11.Data):
                raise misbehaved("something else than a body")
            elapsed_seconds = self._elapsed_seconds()
            if event.chunk_start and not self._chunks.spend(1, elapsed_seconds):
                raise misbehaved("too many pieces")
            if not body_bytes.spend(len(event.data), elapsed_seconds):
                raise misbehaved("it is too large")
            yield bytes(event.data)
        if event.headers:
            raise misbehaved("trailers")
        self._finish()

    def _start(self, limits: AnswerLimits, deadline: float) -> None:
        self._answering = True
        self._limits = limits
        self._deadline = deadline
        self._started_at = asyncio.get_running_loop().time()
        self._chunks = Allowance(limits.chunks, limits.chunks_per_second)
        overhead = _CHUNK_OVERHEAD_BYTES
        self._bytes = Allowance(
            limits.body_bytes + overhead * limits.chunks + HEAD_LIMIT_BYTES,
            limits.body_bytes_per_second + overhead * limits.chunks_per_second,
        )

    def _finish(self) -> None:
        if self._received or self._http.trailing_data[0]:
            raise misbehaved("more than one answer")
        if self._http.our_state is h11.DONE and self._http.their_state is h11.DONE:
            self._http.start_next_cycle()
            self._answering = False
        else:
            self.close()

    async def _next_event(self) -> h11.Event:
        while True:
            try:
                event = self._http.next_event()
            except h11.RemoteProtocolError:
                raise misbehaved("it is not HTTP/1.1") from None
            if isinstance(event, h11.Event):
                return event
            if event is not h11.NEED_DATA:
                raise misbehaved("it goes on after its end")
            self._http.receive_data(await self._receive())

    async def _receive(self) -> bytes:
        """At most _STEP_BYTES, which are counted."""
        if len(self._received) > 0:
            await asyncio.sleep(0)  # a flood must not keep the event loop from anybody else
        while not self._received:
            if self._ended:
                raise ConnectionBroken
            await self._wait()
        data = bytes(self._received[:_STEP_BYTES])
        del self._received[:_STEP_BYTES]
        if self._paused and len(self._received) < _STEP_BYTES and not self._ended:
            self._paused = False
            self._transport_in_use.resume_reading()
        if not self._bytes.spend(len(data), self._elapsed_seconds()):
            raise misbehaved("it is too large")
        return data

    async def _wait(self) -> None:
        loop = asyncio.get_running_loop()
        self._waiter = loop.create_future()
        try:
            async with asyncio.timeout_at(min(self._deadline, loop.time() + self._limits.silence_seconds)):
                await self._waiter
        except TimeoutError:
            if loop.time() >= self._deadline:
                raise misbehaved("it takes longer than the command was given") from None
            raise ConnectionBroken from None
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _elapsed_seconds(self) -> float:
        return asyncio.get_running_loop().time() - self._started_at

    @property
    def _transport_in_use(self) -> asyncio.Transport:
        assert self._transport is not None
        return self._transport
