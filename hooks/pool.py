"""Sandbox pods: which stay, which retire, which are gone, which are made.

A pod leaves in two steps, because Metacontroller's DELETE has no resourceVersion and would kill a pod that
was claimed a millisecond ago. First it is returned with `state: retiring`, which Metacontroller writes with
the resourceVersion that we saw: a claim that came in between makes that a conflict, and the next sync sees
the claim. Only a pod that is *observed* retiring is left out. Nobody ever takes `retiring` off.

What becomes of a pod is the table of rules below; a rule looks at one pod and never at the clock's past.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import chain, count, islice

from cli_mcp import names
from hooks.echo import UnreadableLastApplied, last_applied_echo, with_label
from hooks.pods import Role, SandboxPod, claim_time, last_activity
from hooks.wire import Manifest
from hooks.workspaces import WorkspacePlan

STUCK_AFTER = timedelta(minutes=5)
MIN_IDLE_MARGIN = timedelta(seconds=60)
CLAIM_TIME = timedelta(seconds=5)
"""For as long a warm pod that is being claimed still counts as one, so that its claim, which takes a fraction
of a second, need not compete with the start of its successor. Its decision is the next event; a claim that
breaks off has none, and the pod is replaced after this."""
FIRST_COMMAND_TIME = timedelta(seconds=1)
"""For as long after its claim it counts as one even when that is decided, so that the session's first command
need not compete with the successor either. Half the pool at most: one that empties fast is filled at once."""
MAX_NEW_PODS_PER_SYNC = 100
"""Metacontroller makes them one after the other; the next sync, soon after, asks for the rest."""


@dataclass(frozen=True, slots=True)
class PoolPolicy:
    """What the instance says about its sandboxes. `replaceable` is False while the gate is closed: then no
    pod is made, and none is given up for a better one. `pool_hash` is None while the template is not
    known."""

    size: int
    idle_timeout: timedelta
    max_lifetime: timedelta | None
    pool_hash: str | None
    replaceable: bool

    @property
    def idle_until_retired(self) -> timedelta:
        """The server stamps at most every sixth of the timeout, and stamps may be late by as much again."""
        return self.idle_timeout + max(self.idle_timeout / 6, MIN_IDLE_MARGIN)


@dataclass(frozen=True, slots=True)
class PoolPlan:
    """`children` are pods to return; `slots` numbers of warm pods to make."""

    children: list[Manifest]
    slots: list[int]
    ready: int
    """Warm pods of the current template that are ready."""
    stuck: list[str] = field(default_factory=list)
    unschedulable: list[str] = field(default_factory=list)
    missing_images: list[str] = field(default_factory=list)
    not_isolated: list[str] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)
    next_check: datetime | None = None
    """When a rule may come to another answer though nothing changed."""


Rule = Callable[[SandboxPod, PoolPolicy, datetime], datetime | None]
"""When the pod is to retire; None for never, `now` or earlier for now."""


def _when_finished(pod: SandboxPod, policy: PoolPolicy, now: datetime) -> datetime | None:
    return now if pod.finished else None


def _at_its_maximum_age(pod: SandboxPod, policy: PoolPolicy, now: datetime) -> datetime | None:
    """A session has its full life, however long its pod has waited for it; one that waits is as old as its
    pod, and is refreshed."""
    if policy.max_lifetime is None:
        return None
    begun = pod.created if pod.role is Role.UNCLAIMED else claim_time(pod, now)
    return begun + policy.max_lifetime


def _when_idle(pod: SandboxPod, policy: PoolPolicy, now: datetime) -> datetime | None:
    return last_activity(pod, now) + policy.idle_until_retired


def _when_outdated(pod: SandboxPod, policy: PoolPolicy, now: datetime) -> datetime | None:
    outdated = policy.replaceable and policy.pool_hash is not None and pod.pool_hash != policy.pool_hash
    return now if outdated else None


def _when_stuck(pod: SandboxPod, policy: PoolPolicy, now: datetime) -> datetime | None:
    # No node will suit the next one better.
    if pod.ready or pod.unschedulable or not policy.replaceable:
        return None
    return pod.ready_changed + STUCK_AFTER


RULES: dict[Role, tuple[Rule, ...]] = {
    Role.CLAIMED: (_when_finished, _at_its_maximum_age, _when_idle),
    Role.UNCLAIMED: (_when_finished, _at_its_maximum_age, _when_outdated, _when_stuck),
}
"""A claimed pod keeps what it started with: neither a new template nor trouble of its own takes it away."""


def plan_pool(
    pods: Iterable[SandboxPod], workspaces: WorkspacePlan, policy: PoolPolicy, now: datetime, prefix: str
) -> PoolPlan:
    """`prefix` is what the names of pool pods have before their number."""
    pods = list(pods)
    retire: set[str] = set()
    keep: list[SandboxPod] = []
    checks: list[datetime] = []
    for pod in pods:
        if pod.role in (Role.TERMINATING, Role.RETIRING):
            continue  # step two: Metacontroller deletes what it does not find in the answer
        due = _due(pod, policy, workspaces, now)
        if due is not None and due <= now:
            retire.add(pod.name)
        else:
            keep.append(pod)
            checks += [] if due is None else [due]
    warm = [pod for pod in keep if pod.role is Role.UNCLAIMED]
    if policy.replaceable:
        retire |= _surplus(warm, policy.size)
        warm = [pod for pod in warm if pod.name not in retire]
    claims = _fresh_claims(keep, prefix, policy.size, now)
    counted = [*warm, *(pod for pod, _ in claims)]
    missing = max(0, policy.size - len(counted)) if policy.replaceable else 0
    children, unreadable = _echoes(pods, retire)
    ours = [pod for pod in pods if pod.role is not Role.FOREIGN]
    return PoolPlan(
        children=children,
        slots=list(_free_slots(pods, workspaces, prefix, min(missing, MAX_NEW_PODS_PER_SYNC))),
        ready=sum(pod.ready for pod in counted if pod.pool_hash == policy.pool_hash),
        stuck=[pod.name for pod in pods if pod.name in retire and _is_stuck(pod, policy, now)],
        unschedulable=[pod.name for pod in warm if pod.unschedulable],
        missing_images=sorted({image for pod in warm for image in pod.missing_images}),
        not_isolated=[pod.name for pod in ours if pod.isolation_failed],
        unreadable=unreadable,
        foreign=[pod.name for pod in pods if pod.role is Role.FOREIGN],
        next_check=min((*checks, *(until for _, until in claims)), default=None),
    )


def _due(pod: SandboxPod, policy: PoolPolicy, workspaces: WorkspacePlan, now: datetime) -> datetime | None:
    dues = [rule(pod, policy, now) for rule in RULES.get(pod.role, ())]
    if pod.role is Role.UNCLAIMED:
        dues.append(workspaces.unfit.get(pod.name))  # a claim broke off: nobody else may get its workspace
    return min((due for due in dues if due is not None), default=None)


def _fresh_claims(
    pods: Iterable[SandboxPod], prefix: str, size: int, now: datetime
) -> list[tuple[SandboxPod, datetime]]:
    """Pods of the pool that a session is about to get, or just got, and until when they count as warm."""
    claimed = [pod for pod in pods if pod.role is Role.CLAIMED and _slot(pod.name, prefix) is not None]
    undecided = [(pod, last_activity(pod, now) + CLAIM_TIME) for pod in claimed if pod.claiming]
    decided = [
        (pod, pod.claimed_at + FIRST_COMMAND_TIME)
        for pod in claimed
        # A clock that is ahead must not keep the pool from being filled.
        if not pod.claiming and pod.claimed_at is not None and pod.claimed_at < now + FIRST_COMMAND_TIME
    ]
    open_claims = [(pod, until) for pod, until in undecided if until > now]
    return open_claims + [(pod, until) for pod, until in decided if until > now][: size // 2]


def _is_stuck(pod: SandboxPod, policy: PoolPolicy, now: datetime) -> bool:
    due = _when_stuck(pod, policy, now) if pod.role is Role.UNCLAIMED else None
    return due is not None and due <= now


def _surplus(warm: list[SandboxPod], size: int) -> set[str]:
    """Those beyond `size`: the unready first, then the youngest."""
    ranked = sorted(warm, key=lambda pod: (not pod.ready, pod.created, pod.name))
    return {pod.name for pod in ranked[size:]}


def _echoes(pods: list[SandboxPod], retire: set[str]) -> tuple[list[Manifest], list[str]]:
    children: list[Manifest] = []
    unreadable: list[str] = []
    for pod in pods:
        if pod.role in (Role.TERMINATING, Role.RETIRING):
            continue
        try:
            echo = last_applied_echo(pod.manifest)
        except UnreadableLastApplied:
            unreadable.append(pod.name)  # left out: a stub would strip its spec at every sync
            continue
        children.append(
            with_label(echo, names.LABEL_STATE, names.STATE_RETIRING) if pod.name in retire else echo
        )
    return children, unreadable


def _free_slots(
    pods: Iterable[SandboxPod], workspaces: WorkspacePlan, prefix: str, missing: int
) -> Iterator[int]:
    """Slots with an unused workspace, then the lowest numbers whose names nobody has. A cache that lags
    gives a name that exists, and the creation fails (409) instead of making one pod too many."""
    pod_names = {pod.name for pod in pods}
    reused = [slot for name in workspaces.unused if (slot := _slot(name, prefix)) is not None]
    taken = pod_names | workspaces.taken
    fresh = (slot for slot in count() if f"{prefix}{slot}" not in taken)
    return islice(
        chain((slot for slot in sorted(reused) if f"{prefix}{slot}" not in pod_names), fresh), missing
    )


def _slot(name: str, prefix: str) -> int | None:
    number = name.removeprefix(prefix)
    return int(number) if name.startswith(prefix) and number.isdecimal() and number.isascii() else None
