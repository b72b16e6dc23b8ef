"""What all connections of one proxy share: limits, live state, accounting."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime

from cred_proxy.audit import AuditRecord, AuditSink
from cred_proxy.certificates import LeafCache
from cred_proxy.fairness import ConnectionLimit, Turns
from cred_proxy.metrics import Metrics
from cred_proxy.refusal import Reason
from cred_proxy.refused import Subscriptions
from cred_proxy.sources import LiveState


@dataclass(frozen=True, slots=True)
class Limits:
    """What a client may be slow at ends soon; what may rightly be silent, like a watch, ends by itself or
    after `upstream_idle_seconds`."""

    connections_per_client: int = 64
    connections_total: int = 1024
    connect_head_seconds: float = 15.0
    handshake_seconds: float = 15.0
    # Also the time for a whole request head.
    keepalive_seconds: float = 75.0
    client_stall_seconds: float = 300.0
    # How long what a client has sent waits to be read. Behind it the client's end is not seen.
    unread_seconds: float = 45.0
    upstream_connect_seconds: float = 15.0
    upstream_idle_seconds: float = 3600.0
    # Shorter than the idle timeouts of API servers (90 s) and common load balancers (60 s).
    upstream_keepalive_seconds: float = 30.0
    # Of a client's request; cred_proxy.memory bounds the whole head.
    line_bytes: int = 8 * 1024
    header_fields: int = 64
    # Of an origin's response; some send long policies.
    upstream_line_bytes: int = 32 * 1024


@dataclass(slots=True, eq=False)
class Admission:
    """One connection of a client that may be open; it counts until the first `release`."""

    client: str
    listener: object
    _on_release: Callable[["Admission"], None]
    _transport: asyncio.Transport | None = None
    _ended: bool = False
    _released: bool = False

    @property
    def transport(self) -> asyncio.Transport:
        assert self._transport is not None
        return self._transport

    @property
    def is_ended(self) -> bool:
        return self._ended

    def hold(self, transport: asyncio.Transport) -> None:
        """It is a connection by now."""
        self._transport = transport

    def end(self) -> None:
        """End the connection at once, or do not begin it."""
        self._ended = True
        if self._transport is not None:
            self._transport.abort()

    def release(self) -> None:
        if not self._released:
            self._released = True
            self._on_release(self)


class Admissions:
    """The connections that are open. `on_release` is told of whose connection has ended."""

    def __init__(self, limit: ConnectionLimit, on_release: Callable[[str], None]) -> None:
        self.limit = limit
        self._on_release = on_release
        self._open: dict[str, list[Admission]] = {}

    def admit(self, client: str, listener: object) -> Admission | None:
        """One more connection; None when the client may not have one. Where all are taken, the client with
        the most has to give up its newest."""
        crowded_out = self.limit.crowded_out_by(client)
        if crowded_out is not None:
            newest = self._open[crowded_out][-1]
            newest.end()
            newest.release()
        if not self.limit.admit(client):
            return None
        admission = Admission(client, listener, self._release)
        self._open.setdefault(client, []).append(admission)
        return admission

    def through(self, listener: object) -> list[Admission]:
        return [one for several in self._open.values() for one in several if one.listener is listener]

    def _release(self, admission: Admission) -> None:
        several = self._open[admission.client]
        several.remove(admission)
        if not several:
            del self._open[admission.client]
        self.limit.release(admission.client)
        self._on_release(admission.client)


@dataclass(slots=True)
class Core:
    live: LiveState
    limits: Limits
    metrics: Metrics
    audit: AuditSink
    admissions: Admissions
    turns: Turns = field(default_factory=Turns)
    leaves: LeafCache = field(default_factory=LeafCache)
    refused: Subscriptions = field(default_factory=Subscriptions)

    def record(self, record: AuditRecord) -> None:
        self.refused.tell(record, self.live.routing.table)
        self.metrics.observe(record)
        self.audit(record)

    def record_connect(
        self, client: str, target: str, reason: Reason, status: int, method: str = "CONNECT"
    ) -> None:
        """A CONNECT, or what came in place of one, that led to no tunnel."""
        self.record(
            AuditRecord(
                event="connect",
                time=datetime.now(UTC),
                client=client,
                target=target,
                method=method,
                path="",
                status=status,
                bytes_up=0,
                bytes_down=0,
                duration_ms=0.0,
                reason=reason,
            )
        )
