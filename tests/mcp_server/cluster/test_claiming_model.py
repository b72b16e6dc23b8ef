"""Every interleaving of replicas that look for their session's pod, with the decision that the server takes.

A replica lists and decides in one step (nobody can tell the two apart) and writes in another; between any two
steps others act, a replica dies, or the answer to a write is lost. What the checker visits is all there is
for so many replicas, pods and accidents, so that what it does not find does not exist at this size.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from functools import cache
from typing import NamedTuple

import pytest

from cli_mcp import names
from cli_mcp.names import STATE_ACTIVE, STATE_CLAIMING, STATE_RETIRING, InstanceNames
from cli_mcp.sandbox_config import SessionLimits
from mcp_server.backend import SessionKey
from mcp_server.cluster.claiming import Activate, Asked, Claim, Create, Refuse, Retire, Use, Wait, decide
from mcp_server.cluster.pods import SandboxPod

INSTANCE = InstanceNames("demo")


class Pod(NamedTuple):
    """`life` tells pods of one name apart, `writes` is the revision."""

    name: str
    life: int = 0
    state: str = ""
    session: str = ""
    writes: int = 0
    finished: bool = False


class Pending(NamedTuple):
    """A write that a replica is about to make, to the pod as it was listed; `to` is the new state."""

    to: str
    name: str
    life: int
    writes: int


class Replica(NamedTuple):
    """`does` is `looks`, `writes`, `has` (a pod), `refused` or `dead`."""

    session: str
    does: str = "looks"
    pending: Pending | None = None
    pod: tuple[str, int] | None = None


class State(NamedTuple):
    pods: tuple[Pod, ...]
    replicas: tuple[Replica, ...]
    crashes: int
    losses: int
    accidents: int


@dataclass(frozen=True)
class World:
    """What there is to begin with, and how many crashes, lost answers and accidents may happen.

    An accident is what others do: an expiry or a DELETE retires an active pod, the pool retires a warm one, a
    pod fails, a status is written, a retiring pod goes.
    """

    sessions: tuple[str, ...]
    warm: int = 0
    crashes: int = 0
    losses: int = 0
    accidents: int = 0
    max_sessions: int | None = None

    def start(self) -> State:
        return State(
            tuple(Pod(f"pool-{number}") for number in range(self.warm)),
            tuple(Replica(session) for session in self.sessions),
            self.crashes,
            self.losses,
            self.accidents,
        )


@cache
def seen(pod: Pod) -> SandboxPod:
    return SandboxPod(
        name=pod.name,
        uid=f"{pod.name}/{pod.life}",
        revision=str(pod.writes),
        instance="demo",
        component=names.COMPONENT_SANDBOX,
        service_account=INSTANCE.sandbox,
        controller_uid="owner",
        state=pod.state,
        session_id=pod.session,
        owner="somebody",
        finished=pod.finished,
        ready=True,
        ip="10.0.0.1",
    )


@cache
def decided(world: World, session: str, pods: tuple[Pod, ...], warm: Pod | None) -> Replica:
    """What a replica that has listed `pods` does next."""
    asked = Asked(
        SessionKey("somebody", session),
        INSTANCE,
        "owner",
        SessionLimits(idle_timeout_seconds=60, max_sessions=world.max_sessions),
    )
    by_name = {pod.name: pod for pod in pods}
    step = decide(asked, [seen(pod) for pod in pods if pod.session], lambda: warm and seen(warm))
    me = Replica(session)

    def writing(to: str, name: str) -> Replica:
        pod = by_name.get(name)
        return me._replace(
            does="writes",
            pending=Pending(to, name, pod.life if pod else -1, pod.writes if pod else -1),
        )

    match step:
        case Use(pod):
            return me._replace(does="has", pod=(pod.name, by_name[pod.name].life))
        case Activate(pod):
            return writing(STATE_ACTIVE, pod.name)
        case Retire(pod):
            return writing(STATE_RETIRING, pod.name)
        case Claim(pod):
            return writing(STATE_CLAIMING, pod.name)
        case Create(name):
            return writing("born", name)
        case Wait():
            return me
        case Refuse():
            return me._replace(does="refused")


def looked(world: World, state: State, replica: Replica) -> set[Replica]:
    """Its cache of warm pods may show any of those that there are, or none."""
    warm = [pod for pod in state.pods if not pod.session and not pod.state and not pod.finished]
    return {decided(world, replica.session, state.pods, choice) for choice in (*warm, None)}


def written(state: State, replica: Replica) -> tuple[tuple[Pod, ...], Replica]:
    """The pods after a replica's write, and the replica when it got the answer."""
    pending = replica.pending
    assert pending is not None
    again = Replica(replica.session)
    pods = {pod.name: pod for pod in state.pods}
    there = pods.get(pending.name)
    if pending.to == "born":
        if there is None:
            # Whoever had this name before was somebody else.
            life = 1 + max((used for name, used in lives(state) if name == pending.name), default=-1)
            pods[pending.name] = Pod(pending.name, life, STATE_CLAIMING, replica.session)
        return tuple(sorted(pods.values())), again
    if there is None or (there.life, there.writes) != (pending.life, pending.writes):
        return state.pods, again
    session = replica.session if pending.to == STATE_CLAIMING else there.session
    pods[there.name] = there._replace(state=pending.to, session=session, writes=there.writes + 1)
    if pending.to == STATE_ACTIVE:
        again = again._replace(does="has", pod=(there.name, there.life))
    return tuple(sorted(pods.values())), again


def lives(state: State) -> set[tuple[str, int]]:
    """Names and lives that somebody still refers to; nothing else could be mistaken for a new pod."""
    return {(pod.name, pod.life) for pod in state.pods} | {
        reference
        for replica in state.replicas
        for reference in (
            replica.pod,
            replica.pending and (replica.pending.name, replica.pending.life),
        )
        if reference
    }


def next_states(world: World, state: State) -> set[State]:
    return (
        {following for number in range(len(state.replicas)) for following in steps(world, state, number)}
        | crashes(state)
        | accidents(state)
    )


def steps(world: World, state: State, number: int) -> set[State]:
    replica = state.replicas[number]
    match replica.does:
        case "looks":
            return {
                state._replace(replicas=changed(state, number, after))
                for after in looked(world, state, replica)
            }
        case "writes":
            pods, after = written(state, replica)
            found = {state._replace(pods=pods, replicas=changed(state, number, after))}
            if state.losses and after.does != "looks":  # otherwise it makes no difference
                lost = state._replace(
                    pods=pods,
                    losses=state.losses - 1,
                    replicas=changed(state, number, Replica(replica.session)),
                )
                found.add(lost)
            return found
    return set()


def crashes(state: State) -> set[State]:
    if not state.crashes:
        return set()
    return {
        state._replace(
            crashes=state.crashes - 1,
            replicas=changed(state, number, replica._replace(does="dead", pending=None, pod=None)),
        )
        for number, replica in enumerate(state.replicas)
        if replica.does in ("looks", "writes")
    }


def accidents(state: State) -> set[State]:
    found = set()
    for pod in state.pods:
        if pod.state == STATE_RETIRING:  # no accident: the second step of every retirement
            found.add(state._replace(pods=tuple(it for it in state.pods if it != pod)))
        elif pod.state == STATE_CLAIMING and not looked_for(state, pod.session):
            retired = pod._replace(state=STATE_RETIRING, writes=pod.writes + 1)
            found.add(state._replace(pods=tuple(sorted(retired if it == pod else it for it in state.pods))))
        elif state.accidents:
            changes = [
                pod._replace(writes=pod.writes + 1),
                pod._replace(state=STATE_RETIRING, writes=pod.writes + 1),
            ]
            if not pod.finished:
                changes.append(pod._replace(finished=True, writes=pod.writes + 1))
            for change in changes:
                pods = tuple(sorted(change if it == pod else it for it in state.pods))
                found.add(state._replace(pods=pods, accidents=state.accidents - 1))
    return found


def looked_for(state: State, session: str) -> bool:
    """Claims of which nobody knows any more expire."""
    return any(
        replica.session == session and replica.does in ("looks", "writes") for replica in state.replicas
    )


def changed(state: State, number: int, replica: Replica) -> tuple[Replica, ...]:
    return (*state.replicas[:number], replica, *state.replicas[number + 1 :])


def at_rest(state: State) -> bool:
    return all(replica.does in ("has", "refused", "dead") for replica in state.replicas)


def check(world: World) -> set[State]:
    """All states that can be reached; asserts what holds in each, and that each has a way out."""
    start = world.start()
    before: dict[State, list[State]] = {start: []}
    pending = deque([start])
    while pending:
        state = pending.popleft()
        check_state(world, state)
        for following in next_states(world, state):
            if following not in before:
                before[following] = []
                pending.append(following)
            before[following].append(state)
    with_way_out = {state for state in before if at_rest(state)}
    pending = deque(with_way_out)
    while pending:
        for earlier in before[pending.popleft()]:
            if earlier not in with_way_out:
                with_way_out.add(earlier)
                pending.append(earlier)
    assert len(with_way_out) == len(before), "somebody looks for ever"
    return set(before)


def check_state(world: World, state: State) -> None:
    active = [pod for pod in state.pods if pod.state == STATE_ACTIVE]
    for session in world.sessions:
        assert sum(pod.session == session for pod in active) <= 1, f"two active pods: {state}"
    if world.max_sessions is not None:
        assert len({pod.session for pod in active}) <= world.max_sessions, f"too many sessions: {state}"
    if world.accidents:
        return
    for session in world.sessions:
        had = {replica.pod for replica in state.replicas if replica.session == session and replica.pod}
        assert len(had) <= 1, f"one session, two pods: {state}"
        assert had <= {(pod.name, pod.life) for pod in active}, (
            f"a command for a pod that is not active: {state}"
        )


WORLDS = {
    "two replicas and warm pods, everything that can go wrong": World(
        ("s", "s"), warm=2, crashes=1, losses=1, accidents=1
    ),
    "two replicas that create, everything that can go wrong": World(
        ("s", "s"), warm=0, crashes=1, losses=2, accidents=2
    ),
    "three replicas and one warm pod": World(("s", "s", "s"), warm=1, crashes=1, losses=1),
    "two sessions want one warm pod": World(("a", "b"), warm=1, crashes=1, losses=1, accidents=1),
    "two sessions, room for one": World(("a", "b"), warm=2, losses=1, crashes=1, max_sessions=1),
    "three sessions, room for two": World(("a", "b", "c"), warm=1, max_sessions=2),
    "one session twice and another, room for one": World(("a", "a", "b"), warm=1, max_sessions=1),
}


@pytest.mark.parametrize("world", WORLDS.values(), ids=WORLDS.keys())
def test_no_interleaving_gives_a_session_two_pods_or_too_many_sessions_a_pod(world: World) -> None:
    states = check(world)
    assert len(states) > 300


@pytest.mark.parametrize(("sessions", "room"), [(("a", "b"), 1), (("a", "b", "c"), 2)])
def test_as_many_sessions_get_in_as_there_is_room_for(sessions: tuple[str, ...], room: int) -> None:
    world = World(sessions, warm=1, max_sessions=room)
    for state in filter(at_rest, check(world)):
        assert sum(replica.does == "has" for replica in state.replicas) == room, state


def test_the_checker_notices_a_claim_that_is_no_compare_and_swap(monkeypatch: pytest.MonkeyPatch) -> None:
    def blind(state: State, replica: Replica) -> tuple[tuple[Pod, ...], Replica]:
        pending = replica.pending
        assert pending is not None
        there = next((pod for pod in state.pods if pod.name == pending.name), None)
        if there is not None:
            current = pending._replace(life=there.life, writes=there.writes)
            replica = replica._replace(pending=current)
        return honest(state, replica)

    honest = written
    monkeypatch.setitem(globals(), "written", blind)
    with pytest.raises(AssertionError, match=r"two active pods|not active|two pods"):
        check(replace(WORLDS["two replicas and warm pods, everything that can go wrong"], accidents=0))
