"""What an agent's answers mean, for callers. Pure: values of cli_mcp.agent_api in, results or errors out.

An agent belongs to the model after the first command. Messages here are ours; of the agent's words at most a
short printable piece is quoted.
"""

from collections.abc import Mapping

from cli_mcp.agent_api import AgentIdentity, Failure, FailureKind, Refusal, RefusalKind
from cli_mcp.execution import ExecutionError, SandboxUnavailable, SessionBusy
from mcp_server.agents.agent import AgentLost, AgentUnreachable, misbehaved

_QUOTED_CHARACTERS = 1_000

_REFUSALS: Mapping[RefusalKind, tuple[type[ExecutionError], str]] = {
    RefusalKind.UNAUTHORIZED: (
        AgentUnreachable,
        "The sandbox does not accept this server's signature. After a rotation of the session key that takes "
        "up to two minutes to pass; otherwise use a new session.",
    ),
    RefusalKind.OTHER_SESSION: (
        AgentUnreachable,
        "The sandbox works for another session and did not run the command. Try again.",
    ),
    RefusalKind.NOT_FOUND: (
        AgentUnreachable,
        "The sandbox's agent is of another version than this server and did not run the command. "
        "Use a new session.",
    ),
    RefusalKind.TOO_LARGE: (
        AgentUnreachable,
        "The command is larger than a sandbox takes. Write large files in several calls.",
    ),
    RefusalKind.NOT_ISOLATED: (
        SandboxUnavailable,
        "The sandbox is not known to be isolated yet and did not run the command. Try again in a moment.",
    ),
    RefusalKind.TOO_MANY_CALLS: (
        SessionBusy,
        "Too many calls of this session run or wait. Wait until one has ended.",
    ),
    RefusalKind.TOO_MANY_CONNECTIONS: (
        SessionBusy,
        "Too many calls of this session run or wait. Wait until one has ended.",
    ),
    RefusalKind.TOO_SLOW: (
        AgentUnreachable,
        "The command reached the sandbox too slowly and did not run. Try again.",
    ),
}


def check_identity(identity: AgentIdentity, pod_uid: str, boot: str | None = None) -> None:
    """Raises AgentMisbehaved when the answer is not of that pod, or of another start of its agent."""
    if identity.pod_uid != pod_uid:
        raise misbehaved("it comes from another pod")
    if boot is not None and identity.boot != boot:
        raise misbehaved("it comes from another start of the agent")


def refusal_error(refusal: Refusal) -> ExecutionError:
    """What a caller is told; nothing ran."""
    if refusal.kind not in _REFUSALS:
        return misbehaved(f"it calls a good request bad ({refusal.kind})")
    kind, message = _REFUSALS[refusal.kind]
    return kind(message)


def unreachable() -> AgentUnreachable:
    return AgentUnreachable(
        "The sandbox does not answer, so the command did not run. Try again in a moment; when it stays so, "
        "end this session (DELETE /sessions/ID) and use a new one."
    )


def lost(what: str) -> AgentLost:
    """`what` says what happened to the sandbox."""
    return AgentLost(
        f"The sandbox was lost while the command ran: {what}. How far the command came is unknown: look "
        "before you run it again."
    )


_FAILURES: Mapping[FailureKind, str] = {
    FailureKind.BUSY: "The session is busy",
    FailureKind.ENDED: "The session has ended",
    FailureKind.UNAVAILABLE: "The sandbox cannot run commands",
    FailureKind.INVALID: "The sandbox did not run this",
    FailureKind.INTERRUPTED: "The command was interrupted",
    FailureKind.TOOL: "The tool failed",
}


def failure_error(failure: Failure) -> ExecutionError:
    """The agent took the call and says why it has no result."""
    return type(failure.exception())(f"{_FAILURES[failure.kind]}: {printable(failure.message)}")


def printable(text: str) -> str:
    """A short piece of an agent's text, of printable characters in one line."""
    shown = "".join(c if c.isprintable() else " " for c in text[:_QUOTED_CHARACTERS])
    return " ".join(shown.split()) or "no reason given"
