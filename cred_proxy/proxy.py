"""The credential proxy as an object: listeners in, audit records out.

Embedded, one listener per session, so that every audit record names its session:

    proxy = CredentialProxy(
        load_routing=lambda: Routing(build_routes(config, kubeconfig), config.upstream),
        load_authorities=authorities_from_directory(ca_directory),
        audit=records.append,
    )
    listener = await proxy.serve(socket, ClientIdentity(session_id))   # the socket listens already
    ...
    await listener.close()             # ends what is left of the session's connections
    await proxy.close(drain_seconds=5)
"""

import asyncio
import asyncio.sslproto
import contextlib
import socket
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from aiohttp import web
from aiohttp.abc import AbstractResolver
from prometheus_client import CollectorRegistry

from cli_mcp.api.endpoint import Endpoint
from cred_proxy.accepting import Acceptor
from cred_proxy.audit import AuditSink
from cred_proxy.client_connection import ClientConnection, ConnectProtocol
from cred_proxy.core import Admission, Admissions, Core, Limits
from cred_proxy.fairness import TURN_SECONDS, ConnectionLimit, Turns
from cred_proxy.forwarding import Forwarder
from cred_proxy.memory import TLS_BUFFER_BYTES, bound_socket, give_freed_memory_back, trim
from cred_proxy.metrics import Metrics
from cred_proxy.refusal import Reason, Refusal
from cred_proxy.refused import Subscriptions
from cred_proxy.routes import withdrawn
from cred_proxy.sources import AuthorityLoader, LiveState, Routing, RoutingLoader, Source
from cred_proxy.upstream import Upstream
from cred_proxy.watch import Watches

# As many as the kernel lets wait (listen(2)); while it is full, nobody gets in.
_BACKLOG = 4096
_TOO_MANY = Refusal(Reason.TOO_MANY_CONNECTIONS, "close some of this sandbox's connections")
# After connections have ended, at most once in so long.
_TRIM_SECONDS = 10.0
# Of one that is ended as soon as it is accepted.
_ACCEPT_SECONDS = 0.00001


@dataclass(frozen=True, slots=True)
class ClientIdentity:
    """Who uses a listener: the name in the audit records and the key of fairness."""

    name: str


class Listener:
    """One listening socket and the connections that came through it."""

    def __init__(
        self, core: Core, client: ClientIdentity | None, on_closed: Callable[["Listener"], None]
    ) -> None:
        self._core = core
        self._on_closed = on_closed
        self._client = client
        self._beginning: set[asyncio.Task[None]] = set()
        self._acceptor: Acceptor | None = None

    def listen(self, sock: socket.socket, http_server: web.Server) -> None:
        self._http_server = http_server
        self._acceptor = Acceptor(sock, _BACKLOG, self._accepted)

    def assign(self, client: ClientIdentity) -> None:
        """From now on the listener is used by `client`: a sandbox that was kept ready got its session."""
        self._client = client

    def stop_accepting(self) -> None:
        if self._acceptor is not None:
            self._acceptor.close()

    async def close(self) -> None:
        """Stop listening and end all connections at once."""
        self.stop_accepting()
        for admission in self._core.admissions.through(self):
            admission.end()
        self._on_closed(self)
        # One pass, so that their requests are cancelled when this returns.
        await asyncio.sleep(0)

    def _accepted(self, connection: socket.socket, peer: str) -> None:
        client = self._client.name if self._client else peer
        admission = self._core.admissions.admit(client, self)
        if admission is None:
            self._refuse(connection, client)
        else:
            self._core.turns.run(client, partial(self._begin, connection, admission))

    def _refuse(self, connection: socket.socket, client: str) -> None:
        """For as little as it can cost: only who does not keep the proxy busy gets an answer."""
        turns = self._core.turns
        with connection:
            if turns.has_time_for(client):
                turns.charge(client, TURN_SECONDS)
                self._core.record_connect(client, "-", _TOO_MANY.reason, _TOO_MANY.answer.status)
                with contextlib.suppress(OSError):  # it has gone
                    connection.send(_TOO_MANY.before_tls())
            else:
                self._core.metrics.hung_up.inc()
        turns.charge(client, _ACCEPT_SECONDS)

    def _begin(self, connection: socket.socket, admission: Admission) -> None:
        try:
            connection.getpeername()
            bound_socket(self._core.admissions.limit.connections_of(admission.client), connection)
        except OSError:  # reset while it waited
            admission.end()
        if admission.is_ended:
            connection.close()
            admission.release()
            return
        beginning = asyncio.get_running_loop().create_task(self._connect(connection, admission))
        self._beginning.add(beginning)
        beginning.add_done_callback(self._beginning.discard)

    async def _connect(self, connection: socket.socket, admission: Admission) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: ConnectProtocol(self._core, self._http_server, admission), connection
            )
        except OSError:
            connection.close()
            admission.release()


class CredentialProxy:
    """Raises InvalidSource when what it is to run on cannot be loaded; later, `reload` only reports that."""

    def __init__(
        self,
        *,
        load_routing: RoutingLoader,
        load_authorities: AuthorityLoader,
        audit: AuditSink,
        registry: CollectorRegistry | None = None,
        limits: Limits | None = None,
        resolver: Callable[[], AbstractResolver] | None = None,
    ) -> None:
        self.limits = limits or Limits()
        self.metrics = Metrics(registry or CollectorRegistry())
        self._resolver = resolver
        self._core = Core(
            live=LiveState(load_routing, load_authorities),
            limits=self.limits,
            metrics=self.metrics,
            audit=audit,
            admissions=Admissions(
                ConnectionLimit(self.limits.connections_per_client, self.limits.connections_total),
                self._released,
            ),
        )
        for source in Source:
            self.metrics.current.labels(source.value).set(1)
        self._listeners: set[Listener] = set()
        self._watches = Watches()
        self._upstream: Upstream | None = None
        self._trim: asyncio.TimerHandle | None = None
        self._http_server: web.Server | None = None

    def _released(self, client: str) -> None:
        self.metrics.connections.set(self.open_connections)
        if self._upstream is not None and not self._core.admissions.limit.connections_of(client):
            self._upstream.forget(client)
        if self._trim is None:
            self._trim = asyncio.get_running_loop().call_later(_TRIM_SECONDS, self._trim_memory)

    def _trim_memory(self) -> None:
        self._trim = None
        trim()

    async def serve(self, sock: socket.socket, client: ClientIdentity | None = None) -> Listener:
        """Serve a socket that listens. Without `client`, each peer's IP address is one of its own."""
        if self._upstream is None:
            asyncio.sslproto.SSLProtocol.max_size = TLS_BUFFER_BYTES
            give_freed_memory_back()
            self._upstream = Upstream(
                self.limits,
                self._core.turns,
                self._core.admissions.limit.connections_of,
                self._resolver() if self._resolver else None,
            )
            self._http_server = web.Server(
                Forwarder(self._core, self._upstream, self._watches).handle, handler_cancellation=True
            )
        assert self._http_server is not None
        listener = Listener(self._core, client, self._listeners.discard)
        listener.listen(sock, self._http_server)
        self._listeners.add(listener)
        return listener

    def reload(self) -> dict[Source, str | None]:
        """Take over what changed, for new requests; for each source None, or why it stays as it was.
        Requests that run go on with what they began with, unless where they go to is no longer allowed."""
        before = self._core.live.routing.table
        outcomes = self._core.live.reload()
        self._end_requests_to(withdrawn(before, self._core.live.routing.table))
        for source, problem in outcomes.items():
            self.metrics.reloads.labels(source.value, "refused" if problem else "taken").inc()
            self.metrics.current.labels(source.value).set(0 if problem else 1)
        self._core.leaves.keep_only({endpoint.host for endpoint in self._core.live.routing.table})
        return outcomes

    def _end_requests_to(self, withdrawn: set[Endpoint]) -> None:
        if self._http_server is None or not withdrawn:
            return
        for connection in self._http_server.connections:
            assert isinstance(connection, ClientConnection)
            if connection.target in withdrawn:
                connection.end_request()

    @property
    def routing(self) -> Routing:
        """What is in use now."""
        return self._core.live.routing

    def own_upstream(self) -> Upstream:
        """A client like the proxy's own, for requests that are nobody's."""
        return Upstream(self.limits, Turns(), lambda client: 1, self._resolver() if self._resolver else None)

    @property
    def refused(self) -> Subscriptions:
        """Tells what is refused to a client when it happens."""
        return self._core.refused

    @property
    def problems(self) -> dict[Source, str]:
        """Sources whose present content is not in use, and why."""
        return dict(self._core.live.problems)

    @property
    def open_connections(self) -> int:
        return self._core.admissions.limit.open_connections

    async def close(self, drain_seconds: float = 0.0) -> None:
        """Stop accepting, let requests finish for `drain_seconds`, then end them. Watches end at once, as if
        their origin had: their clients go on elsewhere."""
        self._watches.end()
        for listener in self._listeners:
            listener.stop_accepting()
        self._core.refused.close()
        if self._http_server is not None:
            for connection in self._http_server.connections:
                assert isinstance(connection, ClientConnection)
                connection.drain()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(drain_seconds):
                    await self._core.admissions.limit.idle.wait()
        for listener in list(self._listeners):
            await listener.close()
        if self._upstream is not None:
            await self._upstream.close()
        if self._trim is not None:
            self._trim.cancel()
