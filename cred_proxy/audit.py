"""One line of JSON for every request and every refused CONNECT. Never a header, a query or a body.

Beyond a client's budget a line stands for several: cli_mcp.audit_budget.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal
from urllib.parse import unquote

from cli_mcp.audit_budget import AuditEntry, BudgetedLog
from cred_proxy.kubernetes_path import resource_of
from cred_proxy.refusal import Reason

# Longer paths are cut: a client must not fill the log with a few requests.
MAX_PATH_CHARACTERS = 1024
_METHODS = frozenset({"CONNECT", "DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT"})
_SUCCESS = 2


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


def audit_entry(record: AuditRecord) -> AuditEntry:
    """What is written of a record: one line, ASCII, whatever the client put into its path."""
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
    return AuditEntry(record.client, _kind(record), (record.method, path), fields, ("bytes_up", "bytes_down"))


def audit_line(record: AuditRecord) -> str:
    return audit_entry(record).line


def write_audit_to(log: BudgetedLog) -> AuditSink:
    """A sink that writes each record to `log`, as far as the client's budget goes."""
    return lambda record: log.write(audit_entry(record))


def _kind(record: AuditRecord) -> tuple[object, ...]:
    """What makes two records alike: target, method, verdict, and of what an API server answered the kind of
    object. An origin of an allowlist takes any word for a method."""
    method = record.method if record.method in _METHODS else "other"
    succeeded = record.reason is None and record.status // 100 == _SUCCESS
    resource = resource_of(unquote(record.path.partition("?")[0])) if succeeded else None
    return record.target, method, record.status // 100, record.reason, resource
