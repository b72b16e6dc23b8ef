import io
import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from cli_mcp.audit_budget import BudgetedLog, lines_to
from mcp_server.audit import CallRecord, call_entry, write_calls_to

ENDED = datetime(2024, 6, 1, 12, 0, 1, 250_000, tzinfo=UTC)
CALL = CallRecord("owner\n", "s1", "pod-uid", "10.0.0.7", ENDED - timedelta(seconds=1), ENDED)


@pytest.mark.parametrize(
    ("command", "written"),
    [("echo é\n", "echo é\n"), ("", ""), ("\udcff\u2028", "\udcff\u2028"), ("x" * 5000, "x" * 4096 + "...")],
)
def test_a_command_stands_in_the_line_when_it_was_asked_for(command: str, written: str) -> None:
    stream = io.StringIO()
    write_calls_to(BudgetedLog(lines_to(stream)), with_commands=True)(replace(CALL, command=command))
    line = stream.getvalue().removesuffix("\n")
    assert line.isascii() and line.isprintable()
    assert json.loads(line)["command"] == written


def test_a_call_is_one_line_of_json_that_says_who_where_and_when() -> None:
    stream = io.StringIO()
    write = write_calls_to(BudgetedLog(lines_to(stream)))
    write(CALL)
    write(CALL)
    first, second = stream.getvalue().splitlines()
    assert first == second
    assert json.loads(first) == {
        "event": "call",
        "time": "2024-06-01T12:00:01.250Z",
        "owner": "owner\n",
        "session": "s1",
        "pod_uid": "pod-uid",
        "pod_ip": "10.0.0.7",
        "started": "2024-06-01T12:00:00.250Z",
        "ended": "2024-06-01T12:00:01.250Z",
    }


def test_calls_of_a_session_are_counted_together_but_never_with_those_of_another() -> None:
    entry = call_entry(CALL)
    later = call_entry(replace(CALL, started_at=ENDED))
    assert (later.client, later.kind) == (entry.client, entry.kind)
    assert later.detail != entry.detail
    for other in (replace(CALL, session_id="s2"), replace(CALL, owner="another")):
        assert call_entry(other).client != entry.client
