"""maxSessions and maxSessionsPerOwner, never exceeded by replicas that admit sessions at the same time.

A session counts from its claim on. Whoever has claimed looks once more before it activates, and counts the
claims that it sees as well: of any two that may both become active, one saw the other. When only claims of
others stand in the way, those with the lowest ids wait and the rest give up, so that some get in.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
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
    verdicts = [_verdict(session, group, claims) for group in _groups(session, pods, limits)]
    return max(verdicts, key=lambda verdict: verdict.value, default=Room.FREE)


def too_many(session: SessionKey, pods: Iterable[SandboxPod], limits: SessionLimits) -> SandboxUnavailable:
    """What to tell a caller for whom there is no room."""
    full = next(it for it in _groups(session, pods, limits) if it.is_full)
    return SandboxUnavailable(
        f"Not run: as many sessions {full.whose} are open as may be ({full.field}: {full.limit}). Use one of "
        "them again, end one (DELETE /sessions/ID), or wait until one has been idle long enough."
    )


@dataclass(frozen=True, slots=True)
class _Group:
    """The other sessions that one limit counts, by their ids."""

    field: str
    whose: str
    limit: int
    active: frozenset[str]
    claiming: frozenset[str]

    @property
    def is_full(self) -> bool:
        return len(self.active) + len(self.claiming) >= self.limit


def _groups(session: SessionKey, pods: Iterable[SandboxPod], limits: SessionLimits) -> Iterator[_Group]:
    others = [pod for pod in pods if pod.live and pod.session_id not in ("", session.id)]
    own = [pod for pod in others if pod.owner == session.owner]
    for field, whose, limit, counted in (
        ("maxSessionsPerOwner", "of yours", limits.max_sessions_per_owner, own),
        ("maxSessions", "of this instance", limits.max_sessions, others),
    ):
        if limit is not None:
            active = frozenset(pod.session_id for pod in counted if pod.state == names.STATE_ACTIVE)
            claiming = frozenset(pod.session_id for pod in counted) - active
            yield _Group(field, whose, limit, active, claiming)


def _verdict(session: SessionKey, group: _Group, claims: bool) -> Room:
    if not group.is_full:
        return Room.FREE
    ahead = sum(other < session.id for other in group.claiming)
    return Room.CONTENDED if claims and len(group.active) + ahead < group.limit else Room.NONE
