import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from cred_proxy.audit import AuditRecord, audit_line
from mcp_server.audit import CallRecord, call_line
from mcp_server.audit_command import main

START = datetime(2024, 6, 1, 12, 0, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def call(session: str, begin: float, end: float, ip: str = "10.0.0.7", pod: str = "pod-1") -> str:
    return call_line(CallRecord(f"owner of {session}", session, pod, ip, at(begin), at(end)))


def request(path: str, seconds: float, ip: str = "10.0.0.7") -> str:
    return audit_line(
        AuditRecord("request", at(seconds), ip, "api.example:443", "GET", path, 200, 0, 10, 1.5)
    )


def audit(directory: Path, capsys: pytest.CaptureFixture[str], *logs: list[str]) -> dict[str, Any]:
    """What is printed, by path."""
    files = []
    for number, lines in enumerate(logs):
        files.append(directory / f"{number}.log")
        files[-1].write_text("".join(f"{line}\n" for line in lines))
    assert main([str(file) for file in files]) == 0
    printed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    return {line["path"]: line for line in printed}


def test_a_request_is_of_the_call_that_ran_in_its_pod(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server = [call("s1", 0, 10), call("s2", 5, 20, ip="10.0.0.8", pod="pod-2")]
    found = audit(tmp_path, capsys, server, [request("/a", 6), request("/b", 6, ip="10.0.0.8")])
    assert (
        found["/a"]
        | {
            "owner": "owner of s1",
            "session": "s1",
            "pod_uid": "pod-1",
            "during_call": True,
            "target": "api.example:443",
            "status": 200,
        }
        == found["/a"]
    )
    assert found["/b"]["session"] == "s2"


@pytest.mark.parametrize(
    ("seconds", "session", "during"),
    [
        (-60, None, False),
        (-1, "s1", True),  # the clocks of two nodes
        (5, "s1", True),
        (60, "s1", False),  # a background process
        (105, "s2", True),  # the address went to the pod of another session
        (500, "s2", False),
    ],
)
def test_a_request_between_calls_is_of_the_session_that_had_the_address(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], seconds: float, session: str, during: bool
) -> None:
    server = [call("s2", 100, 110, pod="pod-2"), call("s1", 0, 10)]
    found = audit(tmp_path, capsys, server, [request("/x", seconds)])
    assert (found["/x"]["session"], found["/x"]["during_call"]) == (session, during)


def test_an_address_of_no_call_is_shown_without_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = audit(tmp_path, capsys, [request("/x", 5, ip="10.9.9.9")])
    assert (found["/x"]["owner"], found["/x"]["session"], found["/x"]["pod_uid"]) == (None, None, None)


def test_other_lines_and_prefixes_do_not_matter(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = [
        "INFO something",
        "{not json}",
        "[]",
        "",
        json.dumps({"event": "call"}),
        json.dumps({"event": ["call"]}),
        json.dumps({"event": "other", "time": "x", "client": "y", "target": "z"}),
        "[pod/cli-mcp-demo-1/server] " + call("s1", 0, 10),
        request("/x", 5)[:40],
        request("/y", 5),
    ]
    found = audit(tmp_path, capsys, log)
    assert [*found] == ["/y"]
    assert found["/y"]["session"] == "s1"


def test_a_file_that_is_not_there_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "nothing.log")]) == 1
    assert "nothing.log: No such file" in capsys.readouterr().err


@pytest.mark.parametrize("argument", [".", "one"], ids=["state directory", "instance's directory"])
def test_a_state_directory_of_local_mode_has_both_kinds_of_lines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], argument: str
) -> None:
    for instance in ("one", "two"):
        (tmp_path / instance).mkdir()
        lines = [request(f"/{instance}", 6, ip="s1"), call(f"s1 of {instance}", 5, 7, ip="s1")]
        (tmp_path / instance / "audit.jsonl").write_text("\n".join(lines))
        (tmp_path / instance / "audit.jsonl.1").write_text(
            "\n".join([call("older", 0, 1, ip="s0"), request(f"/{instance}/older", 2, ip="s0")])
        )
    (tmp_path / "token").write_text("no directory")
    assert main([str(tmp_path / argument)]) == 0
    sessions = {
        line["path"]: line["session"] for line in map(json.loads, capsys.readouterr().out.splitlines())
    }
    expected = {"/one": "s1 of one", "/one/older": "older"}
    if argument == ".":
        expected |= {"/two": "s1 of two", "/two/older": "older"}
    assert sessions == expected


def test_a_directory_without_records_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path)]) == 1
    assert "has no audit.jsonl" in capsys.readouterr().err
