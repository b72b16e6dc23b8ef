"""One call of a tool, from its arguments to its result; independent of how it arrived.

Every failure ends here, as a tool error that says what to do. Neither arguments nor results are logged.
"""

import logging
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from mcp import types

from cli_mcp.execution import (
    ExecutionError,
    NotSessionOwner,
    Progress,
    ProgressCallback,
    SandboxUnavailable,
    SessionBusy,
    SessionEnded,
    ToolFailed,
)
from mcp_server.backend import SandboxBackend, SessionKey
from mcp_server.calls import Call, CallCancelled, CallKey, RunningCalls, ShuttingDown
from mcp_server.metrics import Metrics
from mcp_server.results import progress_message, tool_error
from mcp_server.tool import InvalidCall

logger = logging.getLogger(__name__)

# What the metrics call an error; a type stands for its subclasses.
_OUTCOME_OF_ERROR: Mapping[type[Exception], str] = {
    InvalidCall: "invalid",
    ShuttingDown: "shutting_down",
    CallCancelled: "cancelled",
    ToolFailed: "failed",
    SessionBusy: "busy",
    SessionEnded: "session_ended",
    SandboxUnavailable: "unavailable",
    NotSessionOwner: "not_owner",
    ExecutionError: "not_run",
}
_READABLE_ERRORS = tuple(_OUTCOME_OF_ERROR)


class ProgressReport(Protocol):
    """Tells the client how far its call is; `progress` and `total` are seconds."""

    async def __call__(
        self, progress: float, total: float | None = None, message: str | None = None
    ) -> None: ...


@dataclass(frozen=True, slots=True)
class Finished:
    """A call that ran: its result, and what the metrics call that (ok, failed, timed_out)."""

    result: types.CallToolResult
    outcome: str


class PreparedCall(Protocol):
    """A call whose arguments are valid."""

    @property
    def timeout_seconds(self) -> float: ...

    async def run(
        self, backend: SandboxBackend, session: SessionKey, on_progress: ProgressCallback
    ) -> Finished:
        """Raises ExecutionError."""
        ...


class Tool(Protocol):
    """A tool as clients see it, and what its calls do."""

    @property
    def definition(self) -> types.Tool: ...

    def prepare(self, arguments: Mapping[str, object]) -> PreparedCall:
        """Raises InvalidCall."""
        ...


class ToolCalls:
    def __init__(
        self,
        backend: SandboxBackend,
        calls: RunningCalls,
        metrics: Metrics,
        *,
        progress_interval_seconds: float,
    ) -> None:
        self._backend = backend
        self._calls = calls
        self._metrics = metrics
        self._progress_interval_seconds = progress_interval_seconds

    async def call(
        self,
        tool: Tool,
        *,
        session_of: Callable[[], SessionKey],
        request_id: int | str | None,
        arguments: Mapping[str, object],
        report: ProgressReport | None,
    ) -> types.CallToolResult:
        """Run a call of `tool`. Cancelling this interrupts it.

        `session_of` tells its session or raises InvalidCall."""
        started = time.monotonic()
        outcome = "cancelled"  # which is what happened when nothing below gets to say otherwise
        try:
            session = session_of()
            prepared = tool.prepare(arguments)
            latest = _Latest()
            call = self._calls.start(
                CallKey(session, request_id), prepared.run(self._backend, session, latest.keep)
            )
            finished = await self._wait(call, prepared.timeout_seconds, latest, report)
            result, outcome = finished.result, finished.outcome
        except _READABLE_ERRORS as error:
            outcome = _outcome_of_error(error)
            result = tool_error(str(error))
        except Exception as error:  # noqa: BLE001 - the last stop before the wire, which must not show internals
            outcome = "internal_error"
            result = tool_error(internal_error(error))
        finally:
            self._metrics.call_ended(outcome, time.monotonic() - started)
        return result

    def cancel(self, session_of: Callable[[], SessionKey], request_id: int | str | None) -> None:
        """Interrupt the call of that session that came with this id, if it is the only one."""
        try:
            session = session_of()
        except InvalidCall:
            return  # no call can have come for such a session
        self._calls.cancel(CallKey(session, request_id))

    async def _wait(
        self, call: Call[Finished], total_seconds: float, latest: "_Latest", report: ProgressReport | None
    ) -> Finished:
        started = time.monotonic()
        interval_seconds = None if report is None else self._progress_interval_seconds
        try:
            while not await call.wait(interval_seconds):
                if report is not None:
                    await report(time.monotonic() - started, total_seconds, progress_message(latest.progress))
        finally:
            call.cancel()
        return call.result()


class _Latest:
    """The last thing that a backend reported: it may do so more often than a client wants to hear it."""

    progress: Progress | None = None

    def keep(self, progress: Progress) -> None:
        self.progress = progress


def _outcome_of_error(error: Exception) -> str:
    return next(outcome for kind, outcome in _OUTCOME_OF_ERROR.items() if isinstance(error, kind))


def internal_error(error: Exception) -> str:
    """What the caller is told about a failure of ours; the log has the rest under the same id."""
    error_id = secrets.token_hex(4)
    logger.error("internal error %s", error_id, exc_info=error)
    return f"internal error, id {error_id}: the server's log has more under this id."
