"""The gateway: takes connections in, serves MCP on each login's session, and ends without cutting one off."""

import asyncio
import contextlib
import logging
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import asyncssh

from mcp_server.backend import SessionKey
from mcp_server.calls import RunningCalls
from mcp_server.catalogue import Offer
from mcp_server.tool_calls import ToolCalls
from mcp_server.tool_server import tool_server
from mcp_server.waiting import first_of
from ssh_gateway.admission import Admission, Limits, Refusal
from ssh_gateway.audit import Event, SshAuditSink, SshRecord
from ssh_gateway.authorization import Authorizer
from ssh_gateway.authorized_keys import Address
from ssh_gateway.channel import ConnectionClosed, StdioChannel, UnusableLine
from ssh_gateway.connection import Connection, Policy, peer_address, server_options
from ssh_gateway.host_key import HostKey
from ssh_gateway.pace import Debts, Pace
from ssh_gateway.routes import session_key
from ssh_gateway.stdio import UselessLines, serve_lines

log = logging.getLogger(__name__)

_BACKLOG = 256
# How long answers may take to be sent once their commands have ended.
_FLUSH_SECONDS = 5.0
# Of refused connections a line a second is enough to see who it is.
_REFUSALS_EVERY_SECONDS = 1.0

SESSION_HINT = "The session is that of the user name of the SSH login; another name is another sandbox."
"""What the tool says about which sandbox it is."""


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """`large_messages` may arrive at the same time, the others wait. `first_message_seconds` is how long a
    session may be open before its first message: what speaks something else than MCP, such as scp of old,
    would wait for us as we for it. `pace` is what the clients' input may cost."""

    max_line_bytes: int = 4 * 1024 * 1024
    large_messages: int = 16
    first_message_seconds: float = 60.0
    pace: Pace = Pace()  # noqa: RUF009 - a frozen value


class Gateway:
    """`hold` keeps a session alive while its client is connected (SandboxBackend.hold)."""

    def __init__(
        self,
        tool_calls: ToolCalls,
        tools: Offer,
        calls: RunningCalls,
        hold: Callable[[SessionKey], AbstractContextManager[None]],
        authorizer: Authorizer,
        host_key: HostKey,
        audit: SshAuditSink,
        limits: Limits = Limits(),  # noqa: B008 - a frozen value
        settings: GatewaySettings = GatewaySettings(),
    ) -> None:
        # Its INFO has what clients ask to run, its DEBUG what they send.
        asyncssh.set_log_level(logging.WARNING)
        self._tool_calls = tool_calls
        self._tools = tools
        self._calls = calls
        self._hold = hold
        self._audit = audit
        self._settings = settings
        self._options = server_options(host_key.key, limits)
        self._policy = Policy(
            authorizer,
            limits,
            audit,
            settings.pace,
            Debts(settings.pace, time.monotonic),
            settings.max_line_bytes,
            asyncio.Semaphore(settings.large_messages),
            self._start_session,
        )
        self._admission = Admission(limits, time.monotonic)
        self._connections: set[Connection] = set()
        self._sessions: dict[asyncio.Task[None], StdioChannel] = {}
        self._refused = 0
        self._refusal_written = -_REFUSALS_EVERY_SECONDS
        self._draining = False

    @property
    def connection_count(self) -> int:
        """With those that have not logged in."""
        return len(self._connections)

    async def serve(
        self,
        host: str,
        port: int,
        *,
        drain_seconds: float,
        stop: asyncio.Event,
        stop_now: asyncio.Event | None = None,
        on_bound: Callable[[int], None] = lambda port: None,
    ) -> None:
        """Serve until `stop` is set; return when it has stopped. An empty `host` is every interface.

        `on_bound` gets the port once connections are accepted. After `stop` no connection and no message is
        taken any more; running commands have `drain_seconds`, then they are interrupted; `stop_now`
        interrupts them at once. Raises OSError when the address cannot be had.
        """
        with _listener(host, port) as listener:
            server = await asyncio.get_running_loop().create_server(
                lambda: _Door(self._admit), sock=listener, backlog=_BACKLOG
            )
            on_bound(listener.getsockname()[1])
            try:
                await stop.wait()
            finally:
                server.close()
                await self._drain(drain_seconds, stop_now or asyncio.Event())

    @contextlib.asynccontextmanager
    async def serving(
        self, host: str, port: int, *, drain_seconds: float, stop: asyncio.Event, stop_now: asyncio.Event
    ) -> AsyncIterator[int]:
        """Serve beside something else: from entering, which gives the port, to leaving, which sets `stop`.

        Raises OSError on entering when the address cannot be had.
        """
        bound: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(
            self.serve(
                host,
                port,
                drain_seconds=drain_seconds,
                stop=stop,
                stop_now=stop_now,
                on_bound=bound.set_result,
            )
        )
        await first_of(task, bound)
        if not bound.done():
            await task
        try:
            yield bound.result()
        finally:
            stop.set()
            await task

    async def _drain(self, seconds: float, stop_now: asyncio.Event) -> None:
        self._draining = True
        self._calls.close()
        for connection in list(self._connections):
            if connection.channel is None:
                connection.abort()
        for channel in self._sessions.values():
            channel.finish_reading()
        await first_of(self._sessions_ended(), stop_now.wait(), seconds=seconds)
        self._calls.cancel_all()
        await first_of(self._sessions_ended(), seconds=_FLUSH_SECONDS)
        for task in self._sessions:
            task.cancel()
        await self._sessions_ended()
        for connection in list(self._connections):
            connection.abort()

    async def _sessions_ended(self) -> None:
        while self._sessions:
            await asyncio.wait(self._sessions)

    # Connections

    def _admit(self, transport: asyncio.Transport) -> None:
        """Make a connection of what came in, or turn it away before it costs a key exchange."""
        address = peer_address(transport)
        try:
            ticket = self._admission.connect(address)
        except Refusal as refusal:
            self._turn_away(transport, address, str(refusal))
            return
        connection = Connection(self._options, self._policy, address, ticket, self._connections.discard)
        self._connections.add(connection)
        transport.set_protocol(connection)
        connection.connection_made(transport)

    def _turn_away(self, transport: asyncio.Transport, address: Address, reason: str) -> None:
        # A line before the version, RFC 4253 section 4.2: `ssh -v` shows it.
        transport.write(f"cli-mcp: {reason}\r\n".encode())
        transport.close()
        self._refused += 1
        now = time.monotonic()
        if now - self._refusal_written < _REFUSALS_EVERY_SECONDS:
            return
        record = SshRecord(Event.REFUSED_CONNECTION, datetime.now(UTC), str(address), reason=reason)
        self._audit(replace(record, count=self._refused))
        self._refused, self._refusal_written = 0, now

    # Sessions

    def _start_session(self, connection: Connection, channel: StdioChannel) -> None:
        task = asyncio.create_task(self._session(connection, channel))
        self._sessions[task] = channel
        task.add_done_callback(lambda task: self._sessions.pop(task, None))

    async def _session(self, connection: Connection, channel: StdioChannel) -> None:
        if self._draining:
            channel.finish_reading()
        assert connection.username is not None
        key = session_key(connection.username)
        server = tool_server(self._tool_calls, self._tools, lambda context: key, SESSION_HINT)
        silence = asyncio.get_running_loop().call_later(
            self._settings.first_message_seconds, _end_silence, channel
        )
        status = 1
        try:
            with self._hold(key):
                await _unless_closed(channel, serve_lines(server, channel))
            status = 0
        except (UnusableLine, UselessLines) as error:
            connection.record(Event.REFUSED_REQUEST, str(error))
            channel.write_note(f"cli-mcp: {error}\n")
        except ConnectionClosed:
            pass  # then nobody waits for the exit status either
        except Exception as error:  # whatever it is, it is this connection's alone
            log.error("a session ended with an internal error", exc_info=error)
        finally:
            silence.cancel()
            channel.exit(status)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_FLUSH_SECONDS):
                    await channel.closed.wait()
            connection.close()


class _Door(asyncio.Protocol):
    """Stands for a connection until it is known whether there will be one."""

    def __init__(self, admit: Callable[[asyncio.Transport], None]) -> None:
        self._admit = admit

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._admit(transport)


async def _unless_closed(channel: StdioChannel, serving: Awaitable[None]) -> None:
    """Serve until the end, or until the client is gone: then what runs for it is interrupted.

    Raises ConnectionClosed in that case, and what serving raises.
    """
    task = asyncio.ensure_future(serving)
    try:
        await first_of(task, channel.closed.wait())
        if not task.done():
            raise ConnectionClosed
        await task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def _end_silence(channel: StdioChannel) -> None:
    if channel.lines_read == 0:
        channel.write_note("cli-mcp: no MCP message came. This is an MCP server over stdio.\n")
        channel.finish_reading()


def _listener(host: str, port: int) -> socket.socket:
    """Raises OSError."""
    if not host and socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=_BACKLOG)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=_BACKLOG)
