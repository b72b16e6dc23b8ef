"""The seam between the MCP server and what runs commands: pods in a cluster, bubblewrap on one machine."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from cli_mcp.execution import Outcome, ProgressCallback


@dataclass(frozen=True, slots=True)
class SessionKey:
    """A session of one caller. The same id under another owner is never the same sandbox."""

    owner: str
    id: str


class SessionState(StrEnum):
    """How a call found its session; part of every result."""

    NEW = "new"
    CONTINUED = "continued"
    RESUMED = "resumed"  # the workspace was still there, the shell is a fresh one


@dataclass(frozen=True, slots=True)
class SessionOutcome:
    outcome: Outcome
    session: SessionState


@dataclass(frozen=True, slots=True)
class SessionToolResult:
    """`result` is what the sandbox says, JSON of any shape: to be checked before it is used."""

    result: Mapping[str, object]
    session: SessionState


@dataclass(frozen=True, slots=True)
class Readiness:
    """Whether new sessions can be served; `detail` says why not, for an operator."""

    ready: bool
    detail: str = "ok"


@dataclass(frozen=True, slots=True)
class OpenSession:
    """A session that has a sandbox; `idle_seconds` is None while a command runs, or how long none has."""

    id: str
    idle_seconds: float | None


class SandboxBackend(Protocol):
    """Finds or makes the sandbox of a session and runs commands in it.

    Cancelling the task that awaits `run` interrupts the command; the session lives on. All methods are
    called from one event loop and any number of them at the same time.
    """

    async def run(
        self, session: SessionKey, command: str, timeout_seconds: float, on_progress: ProgressCallback
    ) -> SessionOutcome:
        """Run `command`. Raises ExecutionError and nothing else."""
        ...

    async def call_tool(
        self, session: SessionKey, name: str, arguments: Mapping[str, object], timeout_seconds: float
    ) -> SessionToolResult:
        """Have the typed tool `name` called in the sandbox, also while a command runs there.

        `arguments` are valid for the tool. Raises ExecutionError and nothing else: ToolFailed when the tool
        itself says no.
        """
        ...

    async def end(self, session: SessionKey, *, delete_workspace: bool) -> None:
        """End the session and whatever runs in it; an unknown session is no error.
        Raises NotSessionOwner."""
        ...

    def hold(self, session: SessionKey) -> AbstractContextManager[None]:
        """While it is entered the session is not idle, although no command runs: its client is connected.

        It makes no sandbox, and several may be entered for one session at the same time.
        """
        ...

    def open_sessions(self, owner: str) -> Sequence[OpenSession]:
        """Those of one caller, as far as they are known here."""
        ...

    def readiness(self) -> Readiness: ...

    def session_count(self) -> int: ...

    def warm_count(self) -> int: ...
