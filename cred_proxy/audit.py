"""One line of JSON for every request and every refused CONNECT. Never a header, a query or a body."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal, TextIO

from cred_proxy.refusal import Reason

# Longer paths are cut: a client must not fill the log with a few requests.
MAX_PATH_CHARACTERS = 1024


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """`client` is an IP address, or the session where the listener belongs to one. `bytes_up` and
    `bytes_down` count bodies, towards the origin and towards the client. `status` is 0 when none was sent,
    `reason` is set when the proxy and not the origin decided the outcome."""

    event: Literal["request", "connect"]
    time: datetime
    client: str
    target: str
    method: str
    path: str
    status: int
    bytes_up: int
    bytes_down: int
    duration_ms: float
    reason: Reason | None = None


AuditSink = Callable[[AuditRecord], None]


def audit_line(record: AuditRecord) -> str:
    """One line, ASCII, whatever the client put into its path."""
    path = record.path.partition("?")[0]
    if len(path) > MAX_PATH_CHARACTERS:
        path = path[:MAX_PATH_CHARACTERS] + "..."
    fields = {
        "event": record.event,
        "time": record.time.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "client": record.client,
        "target": record.target,
        "method": record.method,
        "path": path,
        "status": record.status,
        "bytes_up": record.bytes_up,
        "bytes_down": record.bytes_down,
        "duration_ms": round(record.duration_ms, 1),
    }
    if record.reason is not None:
        fields["reason"] = record.reason.value
    return json.dumps(fields)


def write_audit_to(stream: TextIO) -> AuditSink:
    """A sink that writes each line to `stream` at once."""

    def write(record: AuditRecord) -> None:
        stream.write(audit_line(record) + "\n")
        stream.flush()

    return write
