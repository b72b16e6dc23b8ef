"""The agent of one sandbox pod as the server sees it, and how a command in it can fail."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from cli_mcp.agent_api import Finished, ToolResult
from cli_mcp.execution import STREAM_LIMIT_BYTES, ExecutionError, ProgressCallback


@dataclass(frozen=True, slots=True)
class AgentAddress:
    """Where an agent listens. It comes from what the API server says of the pod, never from an agent."""

    pod_uid: str
    ip: str


class AgentUnreachable(ExecutionError):
    """Nothing ran: the agent takes no connection, is not ready, or refused the request."""


class AgentLost(ExecutionError):
    """The connection broke while the command may have run; what became of it is unknown."""


class AgentMisbehaved(ExecutionError):
    """The agent's answer is none that an agent of ours gives; what it says is not to be believed."""


def misbehaved(what: str) -> AgentMisbehaved:
    """`what` names, in words of ours, what the answer of the agent violates."""
    return AgentMisbehaved(
        f"The sandbox gave an answer that no agent gives: {what}. A process in it may have taken the agent "
        "over. End this session (DELETE /sessions/ID) and use a new one."
    )


class SandboxAgent(Protocol):
    """Runs commands in pods that the caller of these methods has claimed."""

    async def run(
        self,
        agent: AgentAddress,
        session_id: str,
        command: str,
        timeout_seconds: float,
        on_progress: ProgressCallback,
        output_bytes: int = STREAM_LIMIT_BYTES,
    ) -> Finished:
        """Run `command`, whose result has `output_bytes` of each stream; cancelling this interrupts it.

        Raises AgentUnreachable, AgentLost, AgentMisbehaved, and what the agent itself says of the session:
        SessionBusy, SessionEnded, SandboxUnavailable.
        """
        ...

    async def call_tool(
        self,
        agent: AgentAddress,
        session_id: str,
        name: str,
        arguments: Mapping[str, object],
        timeout_seconds: float,
    ) -> ToolResult:
        """The result of the typed tool `name`, whose content is for the caller to check.

        Raises like `run`, and ToolFailed when the tool itself says no.
        """
        ...

    async def wait_ready(self, agent: AgentAddress, deadline: float) -> None:
        """Return once the agent says that it is isolated and ready. `deadline` is of the loop's clock.

        Raises AgentUnreachable, with what the agent said last, and AgentMisbehaved.
        """
        ...

    def forget(self, pod_uid: str) -> None:
        """Drop what is kept of a pod that is gone: its connections and what was learned of its agent."""
        ...
