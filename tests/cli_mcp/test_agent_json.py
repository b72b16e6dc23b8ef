"""Messages between server and agent: what is encoded can be decoded, and nothing else can."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli_mcp import agent_json
from cli_mcp.agent_api import (
    BODY_LIMIT_BYTES,
    EVENT_LIMIT_BYTES,
    REFUSAL_LIMIT_BYTES,
    Accepted,
    AgentIdentity,
    CancelRequest,
    Failure,
    FailureKind,
    Finished,
    Health,
    Refusal,
    RefusalKind,
    RunEvent,
    RunRequest,
    ToolResult,
)
from cli_mcp.execution import (
    LARGEST_STREAM_LIMIT_BYTES,
    LONGEST_TIMEOUT_SECONDS,
    Outcome,
    Progress,
    StreamOutput,
    ToolFailed,
)
from cli_mcp.strict_json import MalformedMessage

IDENTITY = AgentIdentity("pod-uid", "0" * 32)
WIDEST = "\U0001f600"  # the character that takes most room in JSON in ASCII
OUTCOME = Outcome(
    exit_code=130,
    stdout=StreamOutput(b"\xff\0head", b"tail", 100_000, "/workspace/.cli-mcp/1.stdout", 100_000),
    stderr=StreamOutput(b"no tail", b"", 7),
    duration_ms=12,
    cwd="/workspace/é",
    timed_out=True,
    background=(7, 9),
    shell_restarted=True,
    notes=("a note",),
)
HUGE = Outcome(
    exit_code=0,
    stdout=StreamOutput(b"a" * 25_000, b"b" * 25_000, 1 << 40, "/" * 4096, 1 << 29),
    stderr=StreamOutput(b"a" * 25_000, b"b" * 25_000, 1 << 40, "/" * 4096, 1 << 29),
    duration_ms=300_000,
    cwd=WIDEST * 100_000,
    background=tuple(range(1, 100_000)),
    notes=(WIDEST * 100_000,) * 1_000,
)
FINISHED = Finished(OUTCOME, first=True)
EVENTS: list[RunEvent] = [
    Accepted(IDENTITY),
    Progress(1.5, 3, "last line", queued=True),
    FINISHED,
    *(Failure(kind, "why") for kind in FailureKind),
]


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_an_event_survives_the_way(event: RunEvent) -> None:
    line = agent_json.encode_run_event(event)
    assert line.endswith(b"\n") and line.count(b"\n") == 1
    assert agent_json.decode_run_event(line) == event


def test_other_messages_survive_the_way() -> None:
    for run in (RunRequest("echo \ud800 é\n", 0.5), RunRequest("x", 3600, 1_000), RunRequest("x", 1, 65_536)):
        assert agent_json.decode_run_request(agent_json.encode_run_request(run)) == run
    assert b"outputBytes" not in agent_json.encode_run_request(RunRequest("x", 1))
    cancel = CancelRequest("ab" * 16)
    assert agent_json.decode_cancel_request(agent_json.encode_cancel_request(cancel)) == cancel
    health = Health(IDENTITY, (1, 2), "the agent is starting")
    assert agent_json.decode_health(agent_json.encode_health(health)) == health
    for kind in RefusalKind:
        refusal = Refusal(kind, "why", IDENTITY)
        assert agent_json.decode_refusal(agent_json.encode_refusal(refusal)) == refusal
    for answer in (
        ToolResult({"a": [1, None, {"b": "é"}]}, first=True),
        Failure(FailureKind.TOOL, "no such file"),
    ):
        assert agent_json.decode_tool_answer(agent_json.encode_tool_answer(answer)) == answer


def test_what_is_too_long_is_cut_so_that_it_can_be_read() -> None:
    line = agent_json.encode_run_event(Finished(HUGE, first=False))
    assert len(line) <= EVENT_LIMIT_BYTES
    read = agent_json.decode_run_event(line)
    assert isinstance(read, Finished)
    assert read.outcome.stdout == HUGE.stdout
    assert read.outcome.cwd == WIDEST * 4_096
    refusal = agent_json.encode_refusal(Refusal(RefusalKind.MALFORMED, WIDEST * 10_000, IDENTITY))
    assert len(refusal) <= REFUSAL_LIMIT_BYTES
    agent_json.decode_refusal(refusal)


def test_lone_surrogates_never_leave_the_agent() -> None:
    failure = agent_json.decode_run_event(agent_json.encode_run_event(Failure(FailureKind.TOOL, "a\ud800b")))
    assert failure == Failure(FailureKind.TOOL, "a?b")


def test_a_tool_result_that_is_too_large_is_the_tools_failure() -> None:
    with pytest.raises(ToolFailed, match="4 MiB"):
        agent_json.encode_tool_answer(ToolResult({"text": "x" * BODY_LIMIT_BYTES}, first=False))


def changed(change: dict[str, Any], *path: str) -> bytes:
    """FINISHED as a line, with some members changed."""
    value = json.loads(agent_json.encode_run_event(FINISHED))
    target = value
    for name in path:
        target = target[name]
    target.update(change)
    return json.dumps(value).encode()


@pytest.mark.parametrize(
    "line",
    [
        changed({"exitCode": 256}, "finished", "outcome"),
        changed({"exitCode": -1}, "finished", "outcome"),
        changed({"exitCode": "0"}, "finished", "outcome"),
        changed({"extra": 1}, "finished", "outcome"),
        changed({"notes": ["x" * 1_001]}, "finished", "outcome"),
        changed({"notes": ["x"] * 17}, "finished", "outcome"),
        changed({"cwd": "x" * 4_097}, "finished", "outcome"),
        changed({"background": [0]}, "finished", "outcome"),
        changed({"background": [1] * 4_097}, "finished", "outcome"),
        changed({"timedOut": 1}, "finished", "outcome"),
        changed({"durationMs": 1.5}, "finished", "outcome"),
        changed({"head": "é"}, "finished", "outcome", "stdout"),
        changed({"totalBytes": 3}, "finished", "outcome", "stdout"),
        changed({"tail": "YQ=="}, "finished", "outcome", "stderr"),
        changed({"file": "x" * 4_097}, "finished", "outcome", "stdout"),
        changed({"progress": {}}),
        changed({"error": {"kind": "busy", "message": ""}}),
        b"{}",
        b"[]",
        b'{"other": {}}',
        b'{"accepted": {"podUid": "", "boot": "' + b"0" * 32 + b'"}}',
        b'{"accepted": {"podUid": "x", "boot": "0"}}',
        b'{"progress": {"elapsedSeconds": -1, "outputBytes": 0, "lastLine": "", "queued": false}}',
        b'{"error": {"kind": "other", "message": ""}}',
        b'{"error": {"kind": "busy"}}',
        b" " * EVENT_LIMIT_BYTES + agent_json.encode_run_event(FINISHED),
    ],
)
def test_another_event_is_refused(line: bytes) -> None:
    with pytest.raises(MalformedMessage):
        agent_json.decode_run_event(line)


def test_a_stream_carries_no_more_than_a_result_may() -> None:
    large = StreamOutput(b"a" * LARGEST_STREAM_LIMIT_BYTES, b"b", 1 << 20)
    line = agent_json.encode_run_event(Finished(Outcome(0, large, StreamOutput(b""), 0, "/"), first=True))
    with pytest.raises(MalformedMessage):
        agent_json.decode_run_event(line)


@pytest.mark.parametrize(
    "body",
    [
        b'{"command": "true", "timeoutSeconds": 0}',
        b'{"command": "true", "timeoutSeconds": -1}',
        b'{"command": "true", "timeoutSeconds": 1e999}',
        b'{"command": "true", "timeoutSeconds": true}',
        b'{"command": "true", "timeoutSeconds": %d}' % (LONGEST_TIMEOUT_SECONDS + 1),
        b'{"command": "true"}',
        b'{"command": 1, "timeoutSeconds": 1}',
        b'{"command": "true", "timeoutSeconds": 1, "cwd": "/"}',
        b'{"command": "true", "timeoutSeconds": 1, "outputBytes": 999}',
        b'{"command": "true", "timeoutSeconds": 1, "outputBytes": 65537}',
        b'{"command": "true", "timeoutSeconds": 1, "outputBytes": 5e3}',
    ],
)
def test_another_run_request_is_refused(body: bytes) -> None:
    with pytest.raises(MalformedMessage):
        agent_json.decode_run_request(body)


@pytest.mark.parametrize(
    "decode",
    [
        agent_json.decode_run_event,
        agent_json.decode_run_request,
        agent_json.decode_cancel_request,
        agent_json.decode_health,
        agent_json.decode_refusal,
        agent_json.decode_tool_answer,
        agent_json.decode_tool_arguments,
    ],
)
@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists).flatmap(
    lambda value: st.dictionaries(st.sampled_from(["error", "finished", "kind", "x"]), st.just(value))
))  # fmt: skip
def test_any_json_is_a_message_or_that_error(decode: Callable[[bytes], Any], value: dict[str, Any]) -> None:
    try:
        decode(json.dumps(value).encode())
    except MalformedMessage:
        pass
