"""One line of JSON for every login, every end of one, and every refusal. Never a command or its output.

Beyond the budget of whoever causes them a line stands for several: cli_mcp.audit_budget.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum

from cli_mcp.audit_budget import AuditEntry, BudgetedLog

# A user name that nobody has may be as long as the protocol allows.
_MAX_USERNAME_CHARACTERS = 64


class Event(StrEnum):
    LOGIN = "ssh-login"
    LOGOUT = "ssh-logout"
    REFUSED_LOGIN = "ssh-refused-login"
    REFUSED_REQUEST = "ssh-refused-request"
    """Of somebody who is logged in: a terminal, forwarding, a subsystem, a second session."""
    REFUSED_CONNECTION = "ssh-refused-connection"


_LOGGED_IN = frozenset({Event.LOGIN, Event.LOGOUT, Event.REFUSED_REQUEST})


@dataclass(frozen=True, slots=True)
class SshRecord:
    """`client` is an IP address, `fingerprint` that of the key that was offered or accepted. `count` stands
    for so many refused connections, of which only some are written."""

    event: Event
    time: datetime
    client: str
    username: str | None = None
    session: str | None = None
    fingerprint: str | None = None
    reason: str | None = None
    count: int = 1


SshAuditSink = Callable[[SshRecord], None]


def audit_entry(record: SshRecord) -> AuditEntry:
    """What is written of a record: one line, ASCII, whatever the client called itself."""
    username = record.username and record.username[:_MAX_USERNAME_CHARACTERS]
    fields = {
        "event": record.event.value,
        "time": record.time.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "client": record.client,
        "user": username,
        "session": record.session,
        "key": record.fingerprint,
        "reason": record.reason,
        "count": record.count if record.count > 1 else None,
    }
    return AuditEntry(
        # Many may share an address; who is logged in is known by the name.
        client=username if record.event in _LOGGED_IN else record.client,
        kind=(username, record.reason),
        detail=record.fingerprint,
        fields={name: value for name, value in fields.items() if value is not None},
    )


def audit_line(record: SshRecord) -> str:
    return audit_entry(record).line


def write_audit_to(log: BudgetedLog) -> SshAuditSink:
    """A sink that writes each record to `log`, as far as the budget of whoever caused it goes."""
    return lambda record: log.write(audit_entry(record))
