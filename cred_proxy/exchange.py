"""What is known of one request while it is served; in the end, its audit record."""

import time
from dataclasses import dataclass, field
from datetime import UTC, datetime

from cred_proxy.audit import AuditRecord
from cred_proxy.refusal import Reason


@dataclass(slots=True)
class Exchange:
    client: str
    target: str
    method: str
    path: str
    status: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    reason: Reason | None = None
    _time: datetime = field(default_factory=lambda: datetime.now(UTC))
    _started: float = field(default_factory=time.monotonic)

    def record(self) -> AuditRecord:
        return AuditRecord(
            event="request",
            time=self._time,
            client=self.client,
            target=self.target,
            method=self.method,
            path=self.path,
            status=self.status,
            bytes_up=self.bytes_up,
            bytes_down=self.bytes_down,
            duration_ms=(time.monotonic() - self._started) * 1000,
            reason=self.reason,
        )
