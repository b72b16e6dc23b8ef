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
from cred_proxy.sources import LiveState


@dataclass(frozen=True, slots=True)
class Limits:
    """What a client may be slow at ends soon; what may rightly be silent, like a watch, ends by itself or
    after `upstream_idle_seconds`."""

    connections_per_client: int = 64
    connections_total: int = 4096
    connect_head_seconds: float = 15.0
    handshake_seconds: float = 15.0
    # Also the time for a whole request head.
    keepalive_seconds: float = 75.0
    client_stall_seconds: float = 300.0
    upstream_connect_seconds: float = 15.0
    upstream_idle_seconds: float = 3600.0
    # Shorter than the idle timeouts of API servers (90 s) and common load balancers (60 s).
    upstream_keepalive_seconds: float = 30.0
    # Of a client's request: half a megabyte for a whole head. Names and values come from nowhere but memory.
    line_bytes: int = 8 * 1024
    header_fields: int = 64
    # Of an origin's response; some send long policies.
    upstream_line_bytes: int = 32 * 1024


@dataclass(slots=True)
class Admission:
    """One connection of a client; when it was granted, it counts until the first `release`."""

    client: str
    transport: asyncio.Transport
    granted: bool
    _on_release: Callable[["Admission"], None]
    _released: bool = False

    def release(self) -> None:
        if self.granted and not self._released:
            self._released = True
            self._on_release(self)


@dataclass(slots=True)
class Core:
    live: LiveState
    limits: Limits
    metrics: Metrics
    audit: AuditSink
    connection_limit: ConnectionLimit
    turns: Turns = field(default_factory=Turns)
    leaves: LeafCache = field(default_factory=LeafCache)

    def record(self, record: AuditRecord) -> None:
        self.metrics.observe(record)
        self.audit(record)

    def record_connect(self, client: str, target: str, reason: Reason, status: int) -> None:
        """A CONNECT that led to no tunnel."""
        self.record(
            AuditRecord(
                event="connect",
                time=datetime.now(UTC),
                client=client,
                target=target,
                method="CONNECT",
                path="",
                status=status,
                bytes_up=0,
                bytes_down=0,
                duration_ms=0.0,
                reason=reason,
            )
        )
