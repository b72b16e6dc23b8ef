"""One line of JSON for every login, every end of one, and every refusal. Never a command or its output."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import TextIO

# A user name that nobody has may be as long as the protocol allows.
_MAX_USERNAME_CHARACTERS = 64


class Event(StrEnum):
    LOGIN = "ssh-login"
    LOGOUT = "ssh-logout"
    REFUSED_LOGIN = "ssh-refused-login"
    REFUSED_REQUEST = "ssh-refused-request"
    """Of somebody who is logged in: a terminal, forwarding, a subsystem, a second session."""
    REFUSED_CONNECTION = "ssh-refused-connection"


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


def audit_line(record: SshRecord) -> str:
    """One line, ASCII, whatever the client called itself."""
    fields = {
        "event": record.event.value,
        "time": record.time.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "client": record.client,
        "user": record.username and record.username[:_MAX_USERNAME_CHARACTERS],
        "session": record.session,
        "key": record.fingerprint,
        "reason": record.reason,
        "count": record.count if record.count > 1 else None,
    }
    return json.dumps({name: value for name, value in fields.items() if value is not None})


def write_audit_to(stream: TextIO) -> SshAuditSink:
    """A sink that writes each line to `stream` at once."""

    def write(record: SshRecord) -> None:
        stream.write(audit_line(record) + "\n")
        stream.flush()

    return write
