"""Audit lines: one for each event, whatever a client calls itself."""

import io
import json
from datetime import UTC, datetime

import pytest

from cli_mcp.audit_budget import BudgetedLog, lines_to
from ssh_gateway.audit import Event, SshRecord, audit_entry, audit_line, write_audit_to

WHEN = datetime(2030, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC)


def test_a_line_has_what_is_known_and_nothing_else() -> None:
    record = SshRecord(Event.LOGIN, WHEN, "192.0.2.1", "alice", "ssh-1", "SHA256:x")
    assert json.loads(audit_line(record)) == {
        "event": "ssh-login",
        "time": "2030-01-02T03:04:05.678Z",
        "client": "192.0.2.1",
        "user": "alice",
        "session": "ssh-1",
        "key": "SHA256:x",
    }
    refused = SshRecord(Event.REFUSED_CONNECTION, WHEN, "192.0.2.1", reason="too many", count=7)
    assert json.loads(audit_line(refused)).items() >= {("reason", "too many"), ("count", 7)}


def test_a_user_name_cannot_break_or_fill_the_log() -> None:
    line = audit_line(
        SshRecord(Event.REFUSED_LOGIN, WHEN, "::1", 'a\n{"event": "ssh-login"}\x1b[2J' + "x" * 900)
    )
    assert "\n" not in line
    assert "\x1b" not in line
    assert line.isascii()
    assert len(line) < 400


def test_the_sink_writes_a_line_at_once() -> None:
    stream = io.StringIO()
    write_audit_to(BudgetedLog(lines_to(stream)))(SshRecord(Event.LOGIN, WHEN, "::1"))
    assert stream.getvalue().endswith("}\n")


@pytest.mark.parametrize("event", [Event.LOGIN, Event.LOGOUT, Event.REFUSED_REQUEST])
def test_who_is_logged_in_pays_by_name_and_everybody_else_by_address(event: Event) -> None:
    assert audit_entry(SshRecord(event, WHEN, "192.0.2.1", "alice")).client == "alice"
    refused = SshRecord(Event.REFUSED_LOGIN, WHEN, "192.0.2.1", "alice")
    assert audit_entry(refused).client == "192.0.2.1"
