"""Audit records: one line each, whatever a client puts into its request."""

import io
import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from cli_mcp.audit_budget import BudgetedLog, lines_to
from cred_proxy.audit import MAX_PATH_CHARACTERS, AuditRecord, audit_entry, audit_line, write_audit_to
from cred_proxy.refusal import Reason

RECORD = AuditRecord(
    event="request",
    time=datetime(2030, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC),
    client="session-1",
    target="api.example.com:6443",
    method="GET",
    path="/api/v1/pods?access_token=secret",
    status=200,
    bytes_up=0,
    bytes_down=12,
    duration_ms=3.14159,
)


def test_a_record_is_one_line_of_json_without_the_query() -> None:
    assert json.loads(audit_line(RECORD)) == {
        "event": "request",
        "time": "2030-01-02T03:04:05.678Z",
        "client": "session-1",
        "target": "api.example.com:6443",
        "method": "GET",
        "path": "/api/v1/pods",
        "status": 200,
        "bytes_up": 0,
        "bytes_down": 12,
        "duration_ms": 3.1,
    }


def test_a_refusal_says_why() -> None:
    line = json.loads(audit_line(replace(RECORD, reason=Reason.PATH_NOT_ALLOWED)))
    assert line["reason"] == "path-not-allowed"


def test_a_path_makes_neither_a_second_line_nor_a_long_one() -> None:
    line = audit_line(replace(RECORD, path='/a\r\n{"event": "forged"}\u2028\x1b[2J' + 5000 * "x"))
    assert line.isascii()
    assert line.isprintable()
    assert len(json.loads(line)["path"]) == MAX_PATH_CHARACTERS + 3


def test_the_sink_writes_lines() -> None:
    stream = io.StringIO()
    sink = write_audit_to(BudgetedLog(lines_to(stream)))
    sink(RECORD)
    sink(RECORD)
    assert stream.getvalue() == 2 * (audit_line(RECORD) + "\n")


@pytest.mark.parametrize(
    ("changed", "alike"),
    [
        ({"path": "/api/v1/namespaces/a/pods"}, True),
        ({"path": "/api/v1/namespaces/a/pods/p"}, True),
        ({"path": "/api/v1/namespaces/a/%70ods/p"}, True),
        ({"status": 201}, True),
        ({"path": "/api/v1/namespaces/a/secrets/s"}, False),
        ({"path": "/api/v1/namespaces/a/pods/p/log"}, False),
        ({"path": "/apis/x/v1/pods"}, False),
        ({"method": "DELETE"}, False),
        ({"status": 403}, False),
        ({"reason": Reason.CUT_OFF}, False),
        ({"target": "git.example.com:443"}, False),
    ],
)
def test_what_differs_in_what_matters_is_never_counted_together(changed: dict[str, Any], alike: bool) -> None:
    other = audit_entry(replace(RECORD, **changed))
    assert (other.kind == audit_entry(RECORD).kind) is alike


def test_made_up_methods_and_resources_are_one_kind() -> None:
    made_up = {
        audit_entry(replace(RECORD, method=f"M{n}", path=f"/api/v1/{n}", status=404)).kind for n in range(9)
    }
    assert len(made_up) == 1


def test_a_flood_hides_neither_what_another_asked_for_nor_what_its_own_session_did() -> None:
    """What 45 s of refused requests come to, and of requests that are not refused."""
    stream = io.StringIO()
    log = BudgetedLog(lines_to(stream), monotonic=lambda: 0.0)
    log._settle_later = lambda: None  # type: ignore[method-assign]  # no event loop runs
    sink = write_audit_to(log)
    flood = replace(RECORD, client="flood")
    refused = replace(flood, event="connect", method="CONNECT", reason=Reason.DOMAIN_NOT_ALLOWED)
    for number in range(10_000):
        sink(replace(refused, target=f"host-{number}.example.com:443", path="", status=403))
        sink(replace(flood, path=f"/api/v1/namespaces/{number}/pods"))
        if number == 9_000:
            sink(replace(flood, path="/api/v1/namespaces/a/secrets/stolen"))
            sink(replace(RECORD, client="quiet"))
    log.close()
    written = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert "/api/v1/namespaces/a/secrets/stolen" in [line["path"] for line in written]
    assert [line["path"] for line in written if line["client"] == "quiet"] == ["/api/v1/pods"]
    assert sum(line.get("repeated", 1) for line in written) == 20_002
    assert len(stream.getvalue()) < 1_300_000
