"""One line of JSON for each call: who used which sandbox, and when. Never its output, and the command only
where an operator asks for it.

The credential proxy writes what left the sandbox, by the name that it knows it by; the two together say who
sent a request. Beyond a session's budget a line stands for several calls: cli_mcp.audit_budget.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from cli_mcp.audit_budget import AuditEntry, BudgetedLog

# Longer commands are cut: a few calls must not fill the log.
MAX_COMMAND_CHARACTERS = 4096


@dataclass(frozen=True, slots=True)
class CallRecord:
    """A call that reached a pod, from when it was sent until it ended one way or the other.

    On one machine there are no pods: `pod_uid` is the name of the session's workspace, `pod_ip` the session,
    as the proxy's records have it.
    """

    owner: str
    session_id: str
    pod_uid: str
    pod_ip: str
    started_at: datetime
    ended_at: datetime
    command: str | None = None


CallSink = Callable[[CallRecord], None]


def write_calls_to(log: BudgetedLog, *, with_commands: bool = False) -> CallSink:
    """A sink that writes each call to `log`, as far as its session's budget goes."""

    def write(call: CallRecord) -> None:
        log.write(call_entry(call if with_commands else replace(call, command=None)))

    return write


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
    if call.command is not None:
        cut = len(call.command) > MAX_COMMAND_CHARACTERS
        fields["command"] = call.command[:MAX_COMMAND_CHARACTERS] + ("..." if cut else "")
    return AuditEntry((call.owner, call.session_id), call.pod_uid, call.started_at, fields)


def call_line(call: CallRecord) -> str:
    return call_entry(call).line


def _time(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
