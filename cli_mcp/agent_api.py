"""What the MCP server and a sandbox's agent say to each other: the values and their JSON.

HTTP/1.1 on AGENT_PORT. Either side takes the other's bytes for hostile: decoding accepts exactly the keys,
types, ranges and sizes that encoding produces, and raises MalformedMessage for everything else. All but the
first are signed with a token, see cli_mcp.agent_token. Standard library only: the sandbox agent imports it.

    GET  /health          Health; 200 when isolated and ready, 503 before
    POST /v1/run          RunRequest; 200, a RunEvent a line: Accepted, Progress ..., Outcome or Failure
    POST /v1/cancel       CancelRequest; 200 `{}`, also when that command is unknown or over
    POST /v1/tools/NAME   arguments of a typed tool; 200 ToolResult or Failure
    otherwise             Refusal
"""

import base64
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from cli_mcp.agent_token import HEX_128, IDENTIFIER
from cli_mcp.execution import (
    MAX_TIMEOUT_SECONDS,
    STREAM_LIMIT_BYTES,
    ExecutionError,
    Outcome,
    Progress,
    SandboxUnavailable,
    SessionBusy,
    SessionEnded,
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

API_VERSION = 1
HEALTH_PATH = "/health"
RUN_PATH = f"/v{API_VERSION}/run"
CANCEL_PATH = f"/v{API_VERSION}/cancel"
TOOLS_PATH = f"/v{API_VERSION}/tools/"

BODY_LIMIT_BYTES = 4 << 20
"""Of any request, and of the answer of a typed tool."""
EVENT_LIMIT_BYTES = 512 << 10
"""Of one line of a run's answer, with its line feed. The limits of the single fields below keep to it."""
REFUSAL_LIMIT_BYTES = 16 << 10
"""Of the body of a Refusal, and of Health."""

_LEAST_TIMEOUT_SECONDS = 0.001
_TEXT_LIMIT = 1_000
_PATH_LIMIT = 4_096
_NOTES_LIMIT = 16
_PIDS_LIMIT = 4_096
_PID_MAX = 1 << 22  # proc(5), /proc/sys/kernel/pid_max
_COUNT_MAX = 1 << 53  # what JSON readers agree on, RFC 8259 section 6
_TOOL_NAME = re.compile(r"[a-z][a-z_]{0,31}")


class FailureKind(StrEnum):
    """Why a call that was accepted has no result. `tool` is a typed tool's own no, for the model to read."""

    BUSY = "busy"
    ENDED = "ended"
    UNAVAILABLE = "unavailable"
    INVALID = "invalid"
    INTERRUPTED = "interrupted"
    TOOL = "tool"


_EXCEPTIONS: Mapping[FailureKind, type[ExecutionError]] = {
    FailureKind.BUSY: SessionBusy,
    FailureKind.ENDED: SessionEnded,
    FailureKind.UNAVAILABLE: SandboxUnavailable,
    FailureKind.INVALID: ExecutionError,
    FailureKind.INTERRUPTED: ExecutionError,
    FailureKind.TOOL: ToolFailed,
}


class RefusalKind(StrEnum):
    """Why a request was not accepted; then nothing ran."""

    MALFORMED = "malformed"
    UNAUTHORIZED = "unauthorized"
    OTHER_SESSION = "other_session"
    NOT_FOUND = "not_found"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    TOO_SLOW = "too_slow"
    WRONG_BOOT = "wrong_boot"
    LENGTH_REQUIRED = "length_required"
    TOO_LARGE = "too_large"
    HEAD_TOO_LARGE = "head_too_large"
    NOT_ISOLATED = "not_isolated"
    TOO_MANY_CALLS = "too_many_calls"
    TOO_MANY_CONNECTIONS = "too_many_connections"


REFUSAL_STATUS: Mapping[RefusalKind, int] = {
    RefusalKind.MALFORMED: 400,
    RefusalKind.UNAUTHORIZED: 401,
    RefusalKind.OTHER_SESSION: 403,
    RefusalKind.NOT_FOUND: 404,
    RefusalKind.METHOD_NOT_ALLOWED: 405,
    RefusalKind.TOO_SLOW: 408,
    RefusalKind.WRONG_BOOT: 409,
    RefusalKind.LENGTH_REQUIRED: 411,
    RefusalKind.TOO_LARGE: 413,
    RefusalKind.HEAD_TOO_LARGE: 431,
    RefusalKind.NOT_ISOLATED: 503,
    RefusalKind.TOO_MANY_CALLS: 503,
    RefusalKind.TOO_MANY_CONNECTIONS: 503,
}


@dataclass(frozen=True, slots=True)
class RunRequest:
    command: str
    timeout_seconds: float


@dataclass(frozen=True, slots=True)
class CancelRequest:
    """`jti` is that of the token with which the command was sent."""

    jti: str


@dataclass(frozen=True, slots=True)
class AgentIdentity:
    """The pod, and the start of the agent's process in it: random, new after a restart of the container."""

    pod_uid: str
    boot: str


@dataclass(frozen=True, slots=True)
class Health:
    """`detail` says why the agent is not ready, and is empty when it is."""

    identity: AgentIdentity
    versions: tuple[int, ...] = (API_VERSION,)
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Accepted:
    """First line of a run's answer: this agent has the command."""

    identity: AgentIdentity


@dataclass(frozen=True, slots=True)
class Failure:
    kind: FailureKind
    message: str

    @classmethod
    def of(cls, error: ExecutionError) -> "Failure":
        kinds = (kind for kind, exception in _EXCEPTIONS.items() if type(error) is exception)
        return cls(next(kinds, FailureKind.INVALID), str(error))

    def exception(self) -> ExecutionError:
        return _EXCEPTIONS[self.kind](self.message)


RunEvent = Accepted | Progress | Outcome | Failure


@dataclass(frozen=True, slots=True)
class ToolResult:
    """`value` is a JSON object that the typed tool defines."""

    value: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Refusal:
    kind: RefusalKind
    message: str
    identity: AgentIdentity


def tool_path(name: str) -> str:
    return TOOLS_PATH + name


def tool_name(path: str) -> str | None:
    """The tool that a path names, or None when it is no path of a tool."""
    name = path.removeprefix(TOOLS_PATH)
    return name if path.startswith(TOOLS_PATH) and _TOOL_NAME.fullmatch(name) else None


# --- encoding: what is longer than its limit is cut, so that what is sent can always be decoded


def encode_run_request(request: RunRequest) -> bytes:
    return _dump({"command": request.command, "timeoutSeconds": request.timeout_seconds})


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
    data = _dump({"result": answer.value} if isinstance(answer, ToolResult) else _failure_json(answer))
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
    return {
        "outcome": {
            "exitCode": event.exit_code,
            "stdout": _stream_json(event.stdout),
            "stderr": _stream_json(event.stderr),
            "durationMs": event.duration_ms,
            "cwd": _cut(event.cwd, _PATH_LIMIT),
            "timedOut": event.timed_out,
            "background": list(event.background[:_PIDS_LIMIT]),
            "shellRestarted": event.shell_restarted,
            "notes": [_cut(note, _TEXT_LIMIT) for note in event.notes[:_NOTES_LIMIT]],
        }
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
    command, timeout_seconds = members(
        parse(data, lone_surrogates=True),
        command=text(BODY_LIMIT_BYTES),
        timeoutSeconds=number(_LEAST_TIMEOUT_SECONDS, MAX_TIMEOUT_SECONDS),
    )
    return RunRequest(command, timeout_seconds)


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
    return ToolResult(mapping(value)) if name == "result" else _failure(value)


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
    "outcome": _outcome,
    "error": _failure,
}


def _stream(value: Any) -> StreamOutput:
    stream = StreamOutput(
        *members(
            value,
            head=base64_bytes(STREAM_LIMIT_BYTES),
            tail=base64_bytes(STREAM_LIMIT_BYTES),
            totalBytes=integer(0, _COUNT_MAX),
            file=text_or_none(_PATH_LIMIT),
            fileBytes=integer(0, _COUNT_MAX),
        )
    )
    carried = len(stream.head) + len(stream.tail)
    whole = carried == stream.total_bytes and not stream.tail
    if carried > STREAM_LIMIT_BYTES or not (whole or carried < stream.total_bytes):
        raise MalformedMessage("the lengths of a stream contradict each other")
    return stream
