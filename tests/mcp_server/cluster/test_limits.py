"""Who may open a session, as one list shows it; test_claiming_model.py has several replicas at once."""

from __future__ import annotations

import pytest

from cli_mcp.names import STATE_ACTIVE, STATE_CLAIMING, STATE_RETIRING
from cli_mcp.sandbox_config import SessionLimits
from mcp_server.backend import SessionKey
from mcp_server.cluster.limits import Room, limited, room, too_many
from mcp_server.cluster.pods import SandboxPod

ME = SessionKey("me", "m")


def limits(in_all: int | None = None, per_owner: int | None = None) -> SessionLimits:
    return SessionLimits(idle_timeout_seconds=60, max_sessions=in_all, max_sessions_per_owner=per_owner)


def pod(session_id: str, state: str = STATE_ACTIVE, owner: str = "me") -> SandboxPod:
    return SandboxPod(f"p-{session_id}", session_id, "1", state=state, session_id=session_id, owner=owner)


@pytest.mark.parametrize(
    ("allowed", "pods", "claims", "verdict"),
    [
        (limits(), [pod("a"), pod("b")], False, Room.FREE),
        (limits(2), [pod("a")], False, Room.FREE),
        (limits(2), [pod("a"), pod("b")], False, Room.NONE),
        (limits(2), [pod("a"), pod("b")], True, Room.NONE),
        # Two pods of one session, pods without one, and those that go, count once or not at all.
        (limits(2), [pod("a"), pod("a", STATE_CLAIMING)], False, Room.FREE),
        (limits(1), [pod(""), pod("a", STATE_RETIRING), pod("m")], False, Room.FREE),
        # A claim of somebody else counts like a session, unless we have claimed, too, and come before it.
        (limits(2), [pod("a"), pod("z", STATE_CLAIMING)], False, Room.NONE),
        (limits(2), [pod("a"), pod("z", STATE_CLAIMING)], True, Room.CONTENDED),
        (limits(2), [pod("a"), pod("b", STATE_CLAIMING)], True, Room.NONE),
        # Either limit is enough to refuse, and another owner's sessions count for one of them alone.
        (limits(9, 1), [pod("a", owner="other")], False, Room.FREE),
        (limits(9, 1), [pod("a")], False, Room.NONE),
        (limits(1, 9), [pod("a", owner="other")], False, Room.NONE),
        (limits(2, 1), [pod("a", owner="other"), pod("z", STATE_CLAIMING)], True, Room.CONTENDED),
        (limits(0), [], True, Room.NONE),
    ],
)
def test_there_is_room_as_long_as_no_limit_is_reached(
    allowed: SessionLimits, pods: list[SandboxPod], claims: bool, verdict: Room
) -> None:
    assert room(ME, pods, allowed, claims=claims) is verdict


def test_of_two_that_claim_the_last_place_one_waits_and_the_other_gives_up() -> None:
    first, second = SessionKey("me", "a"), SessionKey("me", "b")
    claims = [pod("a", STATE_CLAIMING), pod("b", STATE_CLAIMING)]
    assert room(first, claims, limits(1), claims=True) is Room.CONTENDED
    assert room(second, claims, limits(1), claims=True) is Room.NONE


@pytest.mark.parametrize(
    ("allowed", "needed"), [(limits(), False), (limits(1), True), (limits(None, 1), True)]
)
def test_the_pods_of_all_sessions_are_listed_only_for_a_limit(allowed: SessionLimits, needed: bool) -> None:
    assert limited(allowed) is needed


@pytest.mark.parametrize(
    ("allowed", "words"),
    [
        (limits(9, 1), "sessions of yours are open as may be (maxSessionsPerOwner: 1)"),
        (limits(1, 9), "sessions of this instance are open as may be (maxSessions: 1)"),
        (limits(1, 1), "maxSessionsPerOwner"),
    ],
)
def test_a_refusal_names_the_limit_and_the_way_out(allowed: SessionLimits, words: str) -> None:
    message = str(too_many(ME, [pod("a")], allowed))
    assert words in message
    assert "DELETE /sessions/ID" in message
