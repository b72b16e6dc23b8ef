"""One line of JSON for each call: who used which pod, and when. Never the command nor its output.

The credential proxy writes what left the pod, by its IP address; the two together say who sent a request.
Beyond a session's budget a line stands for several calls: cli_mcp.audit_budget.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from cli_mcp.audit_budget import AuditEntry, BudgetedLog


@dataclass(frozen=True, slots=True)
class CallRecord:
    """A call that reached a pod, from when it was sent until it ended one way or the other."""

    owner: str
    session_id: str
    pod_uid: str
    pod_ip: str
    started_at: datetime
    ended_at: datetime


CallSink = Callable[[CallRecord], None]


def write_calls_to(log: BudgetedLog) -> CallSink:
    """A sink that writes each call to `log`, as far as its session's budget goes."""
    return lambda call: log.write(call_entry(call))


def call_entry(call: CallRecord) -> AuditEntry:
    """What is written of `call`. Times are UTC with milliseconds."""
    fields = {
        "event": "call",
        "time": _time(call.ended_at),
        "owner": call.owner,
        "session": call.session_id,
        "pod_uid": call.pod_uid,
        "pod_ip": call.pod_ip,
        "started": _time(call.started_at),
        "ended": _time(call.ended_at),
    }
    return AuditEntry((call.owner, call.session_id), call.pod_uid, call.started_at, fields)


def call_line(call: CallRecord) -> str:
    return call_entry(call).line


def _time(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
