"""What the MCP server and a sandbox's agent say to each other: paths, values and limits.

HTTP/1.1 on AGENT_PORT. All but the first are signed with a token, see cli_mcp.agent_token; for the JSON of
the values see cli_mcp.agent_json. Standard library only: the sandbox agent imports it.

    GET  /health          Health; 200 when isolated and ready, 503 before
    POST /v1/run          RunRequest; 200, a RunEvent a line: Accepted, Progress ..., Finished or Failure
    POST /v1/cancel       CancelRequest; 200 `{}`, also when that command is unknown or over
    POST /v1/tools/NAME   arguments of a typed tool; 200 ToolResult or Failure
    otherwise             Refusal
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from cli_mcp.execution import (
    STREAM_LIMIT_BYTES,
    ExecutionError,
    Outcome,
    Progress,
    SandboxUnavailable,
    SessionBusy,
    SessionEnded,
    ToolFailed,
)

API_VERSION = 1
HEALTH_PATH = "/health"
RUN_PATH = f"/v{API_VERSION}/run"
CANCEL_PATH = f"/v{API_VERSION}/cancel"
TOOLS_PATH = f"/v{API_VERSION}/tools/"

BODY_LIMIT_BYTES = 4 << 20
"""Of any request, and of the answer of a typed tool."""
EVENT_LIMIT_BYTES = 512 << 10
"""Of one line of a run's answer, with its line feed."""
REFUSAL_LIMIT_BYTES = 16 << 10
"""Of the body of a Refusal, and of Health."""

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
    """`output_bytes` is how much of each stream the answer carries."""

    command: str
    timeout_seconds: float
    output_bytes: int = STREAM_LIMIT_BYTES


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


@dataclass(frozen=True, slots=True)
class Finished:
    """Last line of a run's answer. `first`: no earlier result of this pod ever reached a server whole."""

    outcome: Outcome
    first: bool


RunEvent = Accepted | Progress | Finished | Failure


@dataclass(frozen=True, slots=True)
class ToolResult:
    """`value` is a JSON object that the typed tool defines; `first` is as in Finished."""

    value: Mapping[str, Any]
    first: bool


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
