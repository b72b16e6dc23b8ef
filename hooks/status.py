"""The status of an instance: conditions that say what is wrong and what to do, in words that do not change by
themselves. A time appears only where a condition changed, so that a sync at rest writes nothing."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from cli_mcp.path_report import PathReport
from hooks.path import targets_condition
from hooks.pods import parse_time
from hooks.problem import Problem, Reason, gravest_first
from hooks.wire import Manifest, Parent

REFILL_GRACE = timedelta(minutes=5)
"""How long a pool that was full may be short of pods, because sessions claimed them, without Ready going."""
_MAX_MESSAGE_CHARACTERS = 4096
_STATUSES = {True: "True", False: "False", None: "Unknown"}


@dataclass(frozen=True, slots=True)
class PoolState:
    """`trouble` says why the pool does not fill; None while nothing is known to be wrong."""

    ready: int
    desired: int
    trouble: str | None = None

    @property
    def full(self) -> bool:
        return self.ready >= self.desired


@dataclass(frozen=True, slots=True)
class Condition:
    """`status` None is Unknown."""

    type: str
    status: bool | None
    reason: Reason
    message: str
    since: datetime

    def as_manifest(self, generation: int) -> Manifest:
        return {
            "type": self.type,
            "status": _STATUSES[self.status],
            "reason": str(self.reason),
            "message": self.message,
            "lastTransitionTime": self.since.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "observedGeneration": generation,
        }


def conditions(
    parent: Parent, problems: Sequence[Problem], pool: PoolState, path: PathReport | None, now: datetime
) -> tuple[list[Manifest], datetime | None]:
    """Ready, WarmPoolReady and TargetsReachable, and when they may change though nothing else does."""
    warm = _warm_pool_condition(parent, pool, now)
    refill_until = warm.since + REFILL_GRACE
    found = list(problems)
    # A pool that was never full has no grace: the first fill is part of becoming Ready.
    refilling = warm.reason is Reason.WARM_POOL_NOT_READY and now < refill_until
    if not warm.status and not refilling:
        found.append(Problem(warm.reason, warm.message))
    ready = _ready_condition(parent, found, now)
    targets = _condition(parent, "TargetsReachable", *targets_condition(path), now)
    written = [condition.as_manifest(parent.generation) for condition in (ready, warm, targets)]
    return written, refill_until if refilling else None


def only_ready(parent: Parent, problem: Problem, now: datetime) -> dict[str, Any]:
    """The status as it was, but for Ready: nothing else can be said of an instance that cannot be read."""
    condition = _condition(parent, "Ready", False, problem.reason, problem.message, now)
    others = [old for old in _old_conditions(parent).values() if old.get("type") != "Ready"]
    kept = {key: value for key, value in parent.status.items() if key != "conditions" and value is not None}
    return kept | {"conditions": [condition.as_manifest(parent.generation), *others]}


def _ready_condition(parent: Parent, problems: list[Problem], now: datetime) -> Condition:
    ordered = gravest_first(problems)
    message = "; ".join(problem.message for problem in ordered)
    failures = [problem for problem in ordered if not problem.warning]
    if failures:
        return _condition(parent, "Ready", False, failures[0].reason, message, now)
    if ordered:
        return _condition(parent, "Ready", True, ordered[0].reason, message, now)
    return _condition(parent, "Ready", True, Reason.READY, "sandboxes can be claimed", now)


def _warm_pool_condition(parent: Parent, pool: PoolState, now: datetime) -> Condition:
    name = "WarmPoolReady"
    if pool.full:
        return _condition(parent, name, True, Reason.READY, "the pool is full", now)
    old = _old_conditions(parent).get(name, {})
    was_unhealthy = old.get("reason") == Reason.WARM_POOL_UNHEALTHY
    if pool.trouble or was_unhealthy:
        # Until the pool is full again: a replaced pod that is only starting is not yet an improvement.
        message = pool.trouble or old.get("message") or "the pool does not fill"
        return _condition(parent, name, False, Reason.WARM_POOL_UNHEALTHY, message, now)
    once_full = old.get("status") == "True" or old.get("reason") == Reason.WARM_POOL_NOT_READY
    if once_full:
        return _condition(parent, name, False, Reason.WARM_POOL_NOT_READY, "the pool is being refilled", now)
    return _condition(parent, name, False, Reason.RECONCILING, "the pool fills for the first time", now)


def _condition(
    parent: Parent, name: str, status: bool | None, reason: Reason, message: str, now: datetime
) -> Condition:
    old = _old_conditions(parent).get(name, {})
    unchanged = old.get("status") == _STATUSES[status]
    since = parse_time(old.get("lastTransitionTime")) if unchanged else None
    return Condition(name, status, reason, message[:_MAX_MESSAGE_CHARACTERS], since or now)


def _old_conditions(parent: Parent) -> Mapping[str, Mapping[str, Any]]:
    return {condition.get("type", ""): condition for condition in parent.status.get("conditions") or ()}
