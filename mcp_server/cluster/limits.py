"""maxSessions and maxSessionsPerOwner, never exceeded by replicas that admit sessions at the same time.

A session counts from its claim on. Whoever has claimed looks once more before it activates, and counts the
claims that it sees as well: of any two that may both become active, one saw the other. When only claims of
others stand in the way, those with the lowest ids wait and the rest give up, so that some get in.
"""

from collections.abc import Iterable, Iterator
from enum import Enum, auto

from cli_mcp import names
from cli_mcp.execution import SandboxUnavailable
from cli_mcp.sandbox_config import SessionLimits
from mcp_server.backend import SessionKey
from mcp_server.cluster.pods import SandboxPod


class Room(Enum):
    FREE = auto()
    CONTENDED = auto()
    """There will be room when claims of others that come after this one have given up."""
    NONE = auto()


def limited(limits: SessionLimits) -> bool:
    """Whether a decision needs to see the pods of all sessions."""
    return limits.max_sessions is not None or limits.max_sessions_per_owner is not None


def room(session: SessionKey, pods: Iterable[SandboxPod], limits: SessionLimits, *, claims: bool) -> Room:
    """Whether `session`, which is not active yet, may be; `claims` says whether it has claimed a pod."""
    verdicts = [_verdict(session, limit, others, claims) for limit, others in _groups(session, pods, limits)]
    return max(verdicts, key=lambda verdict: verdict.value, default=Room.FREE)


def too_many(session: SessionKey, pods: Iterable[SandboxPod], limits: SessionLimits) -> SandboxUnavailable:
    """What to tell a caller for whom there is no room."""
    for limit, others in _groups(session, pods, limits):
        open_sessions = len({pod.session_id for pod in others})
        if open_sessions >= limit:
            whose = "of yours" if limit == limits.max_sessions_per_owner else "of this instance"
            break
    return SandboxUnavailable(
        f"Not run: {open_sessions} sessions {whose} are open, which is the limit. Use one of them again, end "
        "one (DELETE /sessions/ID), or wait until one has been idle long enough."
    )


def _groups(
    session: SessionKey, pods: Iterable[SandboxPod], limits: SessionLimits
) -> Iterator[tuple[int, list[SandboxPod]]]:
    """Each limit with the pods of the other sessions that it counts."""
    others = [pod for pod in pods if pod.live and pod.session_id not in ("", session.id)]
    if limits.max_sessions_per_owner is not None:
        yield limits.max_sessions_per_owner, [pod for pod in others if pod.owner == session.owner]
    if limits.max_sessions is not None:
        yield limits.max_sessions, others


def _verdict(session: SessionKey, limit: int, others: list[SandboxPod], claims: bool) -> Room:
    active = {pod.session_id for pod in others if pod.state == names.STATE_ACTIVE}
    claiming = {pod.session_id for pod in others} - active
    if len(active) + len(claiming) < limit:
        return Room.FREE
    ahead = sum(other < session.id for other in claiming)
    return Room.CONTENDED if claims and len(active) + ahead < limit else Room.NONE
