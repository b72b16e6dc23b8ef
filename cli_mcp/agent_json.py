"""The JSON of what the MCP server and a sandbox's agent say to each other, see cli_mcp.agent_api.

Either side takes the other's bytes for hostile: decoding accepts exactly the keys, types, ranges and sizes
that encoding produces, and raises MalformedMessage for everything else. Standard library only.
"""

import base64
import json
from collections.abc import Callable, Mapping
from typing import Any

from cli_mcp.agent_api import (
    BODY_LIMIT_BYTES,
    EVENT_LIMIT_BYTES,
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
from cli_mcp.agent_token import HEX_128, IDENTIFIER
from cli_mcp.execution import (
    LARGEST_STREAM_LIMIT_BYTES,
    LEAST_STREAM_LIMIT_BYTES,
    LONGEST_TIMEOUT_SECONDS,
    STREAM_LIMIT_BYTES,
    Outcome,
    Progress,
    StreamOutput,
    ToolFailed,
)
from cli_mcp.strict_json import (
    MalformedMessage,
    base64_bytes,
    boolean,
    integer,
    list_of,
    mapping,
    matching,
    members,
    number,
    one_of,
    only_member,
    parse,
    text,
    text_or_none,
)

# They keep the largest event within EVENT_LIMIT_BYTES.
_LEAST_TIMEOUT_SECONDS = 0.001
_TEXT_LIMIT = 1_000
_PATH_LIMIT = 4_096
_NOTES_LIMIT = 16
_PIDS_LIMIT = 4_096
_PID_MAX = 1 << 22  # proc(5), /proc/sys/kernel/pid_max
_COUNT_MAX = 1 << 53  # what JSON readers agree on, RFC 8259 section 6


# --- encoding: what is longer than its limit is cut, so that what is sent can always be decoded


def encode_run_request(request: RunRequest) -> bytes:
    limit = request.output_bytes
    # An agent that was started before there was a choice knows no such key.
    chosen = {"outputBytes": limit} if limit != STREAM_LIMIT_BYTES else {}
    return _dump({"command": request.command, "timeoutSeconds": request.timeout_seconds, **chosen})


def encode_cancel_request(request: CancelRequest) -> bytes:
    return _dump({"jti": request.jti})


def encode_health(health: Health) -> bytes:
    return _dump(
        {
            "versions": list(health.versions),
            **_identity_json(health.identity),
            "detail": _cut(health.detail, _TEXT_LIMIT),
        }
    )


def encode_refusal(refusal: Refusal) -> bytes:
    error = {"kind": refusal.kind, "message": _cut(refusal.message, _TEXT_LIMIT)}
    return _dump({"error": error, **_identity_json(refusal.identity)})


def encode_run_event(event: RunEvent) -> bytes:
    """One line, with its line feed."""
    return _dump(_run_event_json(event)) + b"\n"


def encode_tool_answer(answer: ToolResult | Failure) -> bytes:
    """Raises ToolFailed when a result is larger than an answer may be."""
    if isinstance(answer, ToolResult):
        data = _dump({"result": {"content": answer.value, "first": answer.first}})
    else:
        data = _dump(_failure_json(answer))
    if len(data) > BODY_LIMIT_BYTES:
        raise ToolFailed(f"The result is larger than {BODY_LIMIT_BYTES >> 20} MiB. Ask for less of it.")
    return data


def _cut(text: str, limit: int) -> str:
    """At most `limit` characters, without lone surrogates."""
    return text[:limit].encode(errors="replace").decode()


def _dump(value: Mapping[str, Any]) -> bytes:
    """JSON in ASCII, which has room for what UTF-8 has not: lone surrogates in a command."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()


def _identity_json(identity: AgentIdentity) -> dict[str, str]:
    return {"podUid": identity.pod_uid, "boot": identity.boot}


def _run_event_json(event: RunEvent) -> dict[str, Any]:
    if isinstance(event, Accepted):
        return {"accepted": _identity_json(event.identity)}
    if isinstance(event, Progress):
        return {
            "progress": {
                "elapsedSeconds": event.elapsed_seconds,
                "outputBytes": event.output_bytes,
                "lastLine": _cut(event.last_line, _TEXT_LIMIT),
                "queued": event.queued,
            }
        }
    if isinstance(event, Failure):
        return _failure_json(event)
    return {"finished": {"outcome": _outcome_json(event.outcome), "first": event.first}}


def _outcome_json(outcome: Outcome) -> dict[str, Any]:
    return {
        "exitCode": outcome.exit_code,
        "stdout": _stream_json(outcome.stdout),
        "stderr": _stream_json(outcome.stderr),
        "durationMs": outcome.duration_ms,
        "cwd": _cut(outcome.cwd, _PATH_LIMIT),
        "timedOut": outcome.timed_out,
        "background": list(outcome.background[:_PIDS_LIMIT]),
        "shellRestarted": outcome.shell_restarted,
        "notes": [_cut(note, _TEXT_LIMIT) for note in outcome.notes[:_NOTES_LIMIT]],
    }


def _failure_json(failure: Failure) -> dict[str, Any]:
    return {"error": {"kind": failure.kind, "message": _cut(failure.message, _TEXT_LIMIT)}}


def _stream_json(stream: StreamOutput) -> dict[str, Any]:
    return {
        "head": base64.b64encode(stream.head).decode(),
        "tail": base64.b64encode(stream.tail).decode(),
        "totalBytes": stream.total_bytes,
        "file": stream.file,
        "fileBytes": stream.file_bytes,
    }


# --- decoding


def decode_run_request(data: bytes) -> RunRequest:
    found = mapping(parse(data, lone_surrogates=True))
    return RunRequest(
        *members(
            {"outputBytes": STREAM_LIMIT_BYTES, **found},
            command=text(BODY_LIMIT_BYTES),
            timeoutSeconds=number(_LEAST_TIMEOUT_SECONDS, LONGEST_TIMEOUT_SECONDS),
            outputBytes=integer(LEAST_STREAM_LIMIT_BYTES, LARGEST_STREAM_LIMIT_BYTES),
        )
    )


def decode_cancel_request(data: bytes) -> CancelRequest:
    (jti,) = members(parse(data), jti=matching(HEX_128))
    return CancelRequest(jti)


def decode_health(data: bytes) -> Health:
    versions, pod_uid, boot, detail = members(
        parse(data),
        versions=list_of(integer(1, 1_000), 16),
        podUid=matching(IDENTIFIER),
        boot=matching(HEX_128),
        detail=text(_TEXT_LIMIT),
    )
    return Health(AgentIdentity(pod_uid, boot), versions, detail)


def decode_refusal(data: bytes) -> Refusal:
    error, pod_uid, boot = members(
        parse(data), error=mapping, podUid=matching(IDENTIFIER), boot=matching(HEX_128)
    )
    kind, message = members(error, kind=one_of(RefusalKind), message=text(_TEXT_LIMIT))
    return Refusal(kind, message, AgentIdentity(pod_uid, boot))


def decode_run_event(line: bytes) -> RunEvent:
    """One line, with or without its line feed."""
    if len(line) > EVENT_LIMIT_BYTES:
        raise MalformedMessage(f"a line is longer than {EVENT_LIMIT_BYTES} bytes")
    name, value = only_member(parse(line), _RUN_EVENTS)
    event: RunEvent = _RUN_EVENTS[name](value)
    return event


def decode_tool_arguments(data: bytes) -> dict[str, Any]:
    """The JSON object of a request to a typed tool; what is in it is for the tool to check."""
    return mapping(parse(data))


def decode_tool_answer(data: bytes) -> ToolResult | Failure:
    """What is in a result is for the caller to check."""
    name, value = only_member(parse(data), ("result", "error"))
    return (
        ToolResult(*members(value, content=mapping, first=boolean)) if name == "result" else _failure(value)
    )


def _accepted(value: Any) -> Accepted:
    pod_uid, boot = members(value, podUid=matching(IDENTIFIER), boot=matching(HEX_128))
    return Accepted(AgentIdentity(pod_uid, boot))


def _progress(value: Any) -> Progress:
    return Progress(
        *members(
            value,
            elapsedSeconds=number(0, _COUNT_MAX),
            outputBytes=integer(0, _COUNT_MAX),
            lastLine=text(_TEXT_LIMIT),
            queued=boolean,
        )
    )


def _finished(value: Any) -> Finished:
    return Finished(*members(value, outcome=_outcome, first=boolean))


def _outcome(value: Any) -> Outcome:
    return Outcome(
        *members(
            value,
            exitCode=integer(0, 255),
            stdout=_stream,
            stderr=_stream,
            durationMs=integer(0, _COUNT_MAX),
            cwd=text(_PATH_LIMIT),
            timedOut=boolean,
            background=list_of(integer(1, _PID_MAX), _PIDS_LIMIT),
            shellRestarted=boolean,
            notes=list_of(text(_TEXT_LIMIT), _NOTES_LIMIT),
        )
    )


def _failure(value: Any) -> Failure:
    return Failure(*members(value, kind=one_of(FailureKind), message=text(_TEXT_LIMIT)))


_RUN_EVENTS: Mapping[str, Callable[[Any], RunEvent]] = {
    "accepted": _accepted,
    "progress": _progress,
    "finished": _finished,
    "error": _failure,
}


def _stream(value: Any) -> StreamOutput:
    stream = StreamOutput(
        *members(
            value,
            head=base64_bytes(LARGEST_STREAM_LIMIT_BYTES),
            tail=base64_bytes(LARGEST_STREAM_LIMIT_BYTES),
            totalBytes=integer(0, _COUNT_MAX),
            file=text_or_none(_PATH_LIMIT),
            fileBytes=integer(0, _COUNT_MAX),
        )
    )
    carried = len(stream.head) + len(stream.tail)
    whole = carried == stream.total_bytes and not stream.tail
    if carried > LARGEST_STREAM_LIMIT_BYTES or not (whole or carried < stream.total_bytes):
        raise MalformedMessage("the lengths of a stream contradict each other")
    return stream
