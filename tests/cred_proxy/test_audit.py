"""Audit records: one line each, whatever a client puts into its request."""

import io
import json
from dataclasses import replace
from datetime import UTC, datetime

from cred_proxy.audit import MAX_PATH_CHARACTERS, AuditRecord, audit_line, write_audit_to
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
    sink = write_audit_to(stream)
    sink(RECORD)
    sink(RECORD)
    assert stream.getvalue() == 2 * (audit_line(RECORD) + "\n")
