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

from aiohttp import web
from aiohttp.abc import AbstractResolver
from prometheus_client import CollectorRegistry

from cred_proxy.audit import AuditSink
from cred_proxy.client_connection import ClientConnection, ConnectProtocol
from cred_proxy.core import Admission, Core, Limits
from cred_proxy.fairness import ConnectionLimit
from cred_proxy.forwarding import Forwarder
from cred_proxy.metrics import Metrics
from cred_proxy.sources import AuthorityLoader, LiveState, Routing, RoutingLoader, Source
from cred_proxy.upstream import Upstream

_BACKLOG = 512
# What asyncio reserves, and touches, for each TLS connection is 256 KiB. A request has two of them.
_TLS_BUFFER_BYTES = 64 * 1024


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
        self._open: set[asyncio.Transport] = set()
        self._server: asyncio.Server | None = None

    async def listen(self, sock: socket.socket, http_server: web.Server) -> None:
        self._server = await asyncio.get_running_loop().create_server(
            lambda: ConnectProtocol(self._core, http_server, self._admit), sock=sock, backlog=_BACKLOG
        )

    def assign(self, client: ClientIdentity) -> None:
        """From now on the listener is used by `client`: a sandbox that was kept ready got its session."""
        self._client = client

    def stop_accepting(self) -> None:
        if self._server is not None:
            self._server.close()

    async def close(self) -> None:
        """Stop listening and end all connections at once."""
        self.stop_accepting()
        for transport in list(self._open):
            transport.abort()
        self._on_closed(self)
        # One pass, so that their requests are cancelled when this returns.
        await asyncio.sleep(0)

    def _admit(self, transport: asyncio.Transport) -> Admission:
        client = self._client.name if self._client else _peer(transport)
        granted = self._core.connection_limit.admit(client)
        if granted:
            self._open.add(transport)
            self._core.metrics.connections.inc()
        return Admission(client, transport, granted, self._release)

    def _release(self, admission: Admission) -> None:
        self._open.discard(admission.transport)
        self._core.connection_limit.release(admission.client)
        self._core.metrics.connections.dec()


def _peer(transport: asyncio.Transport) -> str:
    name = transport.get_extra_info("peername")
    return str(name[0]) if isinstance(name, tuple) else "local"


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
            connection_limit=ConnectionLimit(
                self.limits.connections_per_client, self.limits.connections_total
            ),
        )
        for source in Source:
            self.metrics.current.labels(source.value).set(1)
        self._listeners: set[Listener] = set()
        self._upstream: Upstream | None = None
        self._http_server: web.Server | None = None

    async def serve(self, sock: socket.socket, client: ClientIdentity | None = None) -> Listener:
        """Serve a socket that listens. Without `client`, each peer's IP address is one of its own."""
        if self._upstream is None:
            asyncio.sslproto.SSLProtocol.max_size = _TLS_BUFFER_BYTES
            self._upstream = Upstream(
                self.limits,
                self._core.connection_limit.is_connected,
                self._resolver() if self._resolver else None,
            )
            self._http_server = web.Server(
                Forwarder(self._core, self._upstream).handle, handler_cancellation=True
            )
        assert self._http_server is not None
        listener = Listener(self._core, client, self._listeners.discard)
        await listener.listen(sock, self._http_server)
        self._listeners.add(listener)
        return listener

    def reload(self) -> dict[Source, str | None]:
        """Take over what changed, for new requests; for each source None, or why it stays as it was.
        Requests that run go on with what they began with."""
        outcomes = self._core.live.reload()
        for source, problem in outcomes.items():
            self.metrics.reloads.labels(source.value, "refused" if problem else "taken").inc()
            self.metrics.current.labels(source.value).set(0 if problem else 1)
        self._core.leaves.keep_only({endpoint.host for endpoint in self._core.live.routing.table})
        return outcomes

    @property
    def routing(self) -> Routing:
        """What is in use now."""
        return self._core.live.routing

    def own_upstream(self) -> Upstream:
        """A client like the proxy's own, for requests that are nobody's."""
        return Upstream(self.limits, lambda client: True, self._resolver() if self._resolver else None)

    @property
    def problems(self) -> dict[Source, str]:
        """Sources whose present content is not in use, and why."""
        return dict(self._core.live.problems)

    @property
    def open_connections(self) -> int:
        return self._core.connection_limit.open_connections

    async def close(self, drain_seconds: float = 0.0) -> None:
        """Stop accepting, let requests finish for `drain_seconds`, then end them."""
        for listener in self._listeners:
            listener.stop_accepting()
        if self._http_server is not None:
            for connection in self._http_server.connections:
                assert isinstance(connection, ClientConnection)
                connection.drain()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(drain_seconds):
                    await self._core.connection_limit.idle.wait()
        for listener in list(self._listeners):
            await listener.close()
        if self._upstream is not None:
            await self._upstream.close()
