"""The life of sandbox pods: which stay, which retire, which are made."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from cli_mcp import names
from hooks.diagnosis import pool_trouble
from hooks.pods import SandboxPod, observe_pod
from hooks.pool import FIRST_COMMAND_TIME, MAX_NEW_PODS_PER_SYNC, PoolPlan, PoolPolicy, plan_pool
from hooks.wire import Parent
from hooks.workspaces import WorkspacePlan

PARENT = Parent({"metadata": {}}, "demo", "ns", "uid-1", 1)
PREFIX = "cli-mcp-demo-pool-"
NOW = datetime(2026, 1, 2, tzinfo=UTC)
NO_WORKSPACES = WorkspacePlan([], {}, {}, frozenset(), [], None)
OPEN = PoolPolicy(
    size=2, idle_timeout=timedelta(minutes=30), max_lifetime=None, pool_hash="new", replaceable=True
)
CLOSED = PoolPolicy(
    size=0, idle_timeout=timedelta(minutes=30), max_lifetime=None, pool_hash="new", replaceable=False
)
READY = {"conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T23:00:00Z"}]}
UNSCHEDULABLE = {"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]}
CLAIMING = {names.LABEL_SESSION_ID: "s", names.LABEL_STATE: "claiming"}
CLAIMED = {names.LABEL_SESSION_ID: "s", names.LABEL_STATE: "active"}
RETIRING = {names.LABEL_STATE: "retiring"}


def stamp(time: datetime) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ")


def pod(
    name: str = "0",
    labels: dict[str, str] | None = None,
    status: dict[str, Any] | None = None,
    *,
    pool_hash: str = "new",
    age: timedelta = timedelta(hours=1),
    active: timedelta | None = None,
    claimed: timedelta | None = None,
    applied: str | None = None,
    **metadata: Any,
) -> SandboxPod:
    """`age`, `active` (since the last activity) and `claimed` are counted back from NOW."""
    applied_labels = {
        names.LABEL_INSTANCE: "demo",
        names.LABEL_COMPONENT: "sandbox",
        names.LABEL_POOL_HASH: pool_hash,
    }
    identity = {"name": PREFIX + name, "namespace": "ns"}
    spec = {"serviceAccountName": "cli-mcp-demo-sandbox", "containers": [{"name": "sandbox", "image": "old"}]}
    content = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": identity | {"labels": applied_labels},
        "spec": spec,
    }
    annotations = {names.ANNOTATION_LAST_APPLIED: json.dumps(content) if applied is None else applied}
    if active is not None:
        annotations[names.ANNOTATION_LAST_ACTIVITY] = stamp(NOW - active)
    if claimed is not None:
        annotations[names.ANNOTATION_CLAIMED_AT] = (NOW - claimed).isoformat()
    manifest = {
        **content,
        "metadata": identity
        | {
            "labels": applied_labels | (labels or {}),
            "annotations": annotations,
            "creationTimestamp": stamp(NOW - age),
        }
        | metadata,
        "status": READY if status is None else status,
    }
    return observe_pod(manifest, PARENT)


def plan(*pods: SandboxPod, policy: PoolPolicy = OPEN, workspaces: WorkspacePlan = NO_WORKSPACES) -> PoolPlan:
    return plan_pool(pods, workspaces, policy, NOW, PREFIX)


def fates(result: PoolPlan) -> dict[str, str]:
    """By the pod's number: kept, or marked to retire. Pods that are left out are not there."""
    return {
        child["metadata"]["name"].removeprefix(PREFIX): "retire"
        if child["metadata"]["labels"].get(names.LABEL_STATE) == "retiring"
        else "keep"
        for child in result.children
    }


CASES = [
    ("a ready pod of the template stays", pod(), OPEN, "keep"),
    ("one that starts stays", pod(status={}, age=timedelta(minutes=4)), OPEN, "keep"),
    ("one that is stuck goes", pod(status={}, age=timedelta(minutes=5)), OPEN, "retire"),
    ("one that no node takes is held", pod(status=UNSCHEDULABLE), OPEN, "keep"),
    ("one of another template goes", pod(pool_hash="old"), OPEN, "retire"),
    ("one that failed goes", pod(status={"phase": "Failed"}), OPEN, "retire"),
    (
        "a claimed pod keeps its template",
        pod(labels=CLAIMED, pool_hash="old", active=timedelta()),
        OPEN,
        "keep",
    ),
    ("a claimed pod may be unready", pod(labels=CLAIMED, status={}, active=timedelta()), OPEN, "keep"),
    (
        "a claimed pod that failed goes",
        pod(labels=CLAIMED, status={"phase": "Failed"}, active=timedelta()),
        OPEN,
        "retire",
    ),
    ("an idle session has its margin", pod(labels=CLAIMED, active=timedelta(minutes=34)), OPEN, "keep"),
    ("an idle session goes after it", pod(labels=CLAIMED, active=timedelta(minutes=35)), OPEN, "retire"),
    ("without a stamp the creation counts", pod(labels=CLAIMED), OPEN, "retire"),
    ("a closed gate holds the outdated", pod(pool_hash="old"), CLOSED, "keep"),
    ("a closed gate holds the stuck", pod(status={}), CLOSED, "keep"),
    ("a closed gate holds the surplus", pod(), CLOSED, "keep"),
    ("a closed gate ends idle sessions", pod(labels=CLAIMED), CLOSED, "retire"),
    ("a retiring pod is left out", pod(labels=RETIRING), OPEN, None),
    ("a retiring session is left out", pod(labels=CLAIMED | RETIRING), OPEN, None),
    ("a terminating pod is left out", pod(deletionTimestamp=stamp(NOW)), OPEN, None),
    (
        "a foreign pod is kept",
        pod(labels={names.LABEL_COMPONENT: "x"}, pool_hash="old", status={}),
        OPEN,
        "keep",
    ),
]


@pytest.mark.parametrize(
    ("sandbox", "policy", "fate"), [case[1:] for case in CASES], ids=[c[0] for c in CASES]
)
def test_what_becomes_of_a_pod(sandbox: SandboxPod, policy: PoolPolicy, fate: str | None) -> None:
    assert fates(plan(sandbox, policy=policy)) == ({} if fate is None else {"0": fate})


def test_a_maximum_lifetime_ends_even_a_busy_session() -> None:
    policy = PoolPolicy(1, timedelta(hours=1), timedelta(hours=2), "new", replaceable=True)
    young = pod("0", labels=CLAIMED, active=timedelta(), age=timedelta(minutes=119))
    old = pod("1", labels=CLAIMED, active=timedelta(), age=timedelta(minutes=120))
    result = plan(young, old, policy=policy)
    assert fates(result) == {"0": "keep", "1": "retire"}
    assert result.next_check == NOW + timedelta(minutes=1)


LIFETIME = PoolPolicy(1, timedelta(days=1), timedelta(hours=2), "new", replaceable=True)
LONG_WARM = timedelta(hours=100)


@pytest.mark.parametrize(
    ("sandbox", "ends_in"),
    [
        (pod(labels=CLAIMED, active=timedelta(), age=LONG_WARM, claimed=timedelta(minutes=5)), 115),
        (pod(labels=CLAIMING, active=timedelta(), age=LONG_WARM, claimed=timedelta()), 120),
        (pod(labels=CLAIMED, active=timedelta(), age=timedelta(minutes=20), claimed=-timedelta(days=1)), 100),
        (pod(labels=CLAIMED, active=timedelta(), age=timedelta(minutes=20)), 100),
        (pod(age=timedelta(minutes=20)), 100),
    ],
    ids=["since the claim", "being claimed", "a clock that is ahead", "no stamp", "unclaimed: refreshed"],
)
def test_a_session_has_its_full_life_however_long_its_pod_was_kept_warm(
    sandbox: SandboxPod, ends_in: int
) -> None:
    assert fates(plan(sandbox, policy=LIFETIME)) == {"0": "keep"}
    due = NOW + timedelta(minutes=ends_in)
    later = plan_pool([sandbox], NO_WORKSPACES, LIFETIME, due, PREFIX)
    assert fates(later) == {"0": "retire"}
    just_before = plan_pool([sandbox], NO_WORKSPACES, LIFETIME, due - timedelta(seconds=1), PREFIX)
    assert fates(just_before) == {"0": "keep"}


def test_the_idle_margin_is_a_sixth_but_at_least_a_minute() -> None:
    short = PoolPolicy(0, timedelta(seconds=90), None, "new", replaceable=True)
    assert short.idle_until_retired == timedelta(seconds=150)
    assert OPEN.idle_until_retired == timedelta(minutes=35)


def test_an_unknown_template_makes_no_pod_outdated() -> None:
    policy = PoolPolicy(1, timedelta(minutes=30), None, None, replaceable=False)
    assert fates(plan(pod(pool_hash="old"), policy=policy)) == {"0": "keep"}


def test_a_pod_is_marked_by_one_label_and_otherwise_returned_as_it_was_applied() -> None:
    (marked,) = plan(pod(pool_hash="old")).children
    assert marked["metadata"]["labels"].pop(names.LABEL_STATE) == "retiring"
    assert marked["spec"]["containers"] == [{"name": "sandbox", "image": "old"}], "never the new template"
    assert names.ANNOTATION_LAST_APPLIED not in marked["metadata"].get("annotations", {})


def test_a_pool_that_is_too_large_gives_up_the_unready_first_and_then_the_youngest() -> None:
    result = plan(
        pod("0", age=timedelta(hours=3)),
        pod("1", age=timedelta(hours=1)),
        pod("2", age=timedelta(hours=2)),
        pod("3", age=timedelta(hours=4), status=UNSCHEDULABLE),
    )
    assert fates(result) == {"0": "keep", "1": "retire", "2": "keep", "3": "retire"}


def test_claimed_pods_do_not_count_for_the_pool() -> None:
    result = plan(pod("0", labels=CLAIMED, active=timedelta()), pod("1"))
    assert result.slots == [2]
    assert result.ready == 1


def test_a_warm_pod_is_replaced_when_its_claim_is_decided_or_takes_too_long() -> None:
    just_now = plan(pod("0", labels=CLAIMING, active=timedelta(seconds=1)), pod("1"))
    assert (just_now.slots, just_now.ready) == ([], 2)
    assert just_now.next_check == NOW + timedelta(seconds=4)
    assert plan(pod("0", labels=CLAIMING, active=timedelta(seconds=5)), pod("1")).slots == [2]
    assert plan(pod("0", labels=CLAIMED, active=timedelta(seconds=1)), pod("1")).slots == [2]
    on_demand = replace(pod(labels=CLAIMING, active=timedelta()), name="cli-mcp-demo-s-0123456789-0")
    assert plan(on_demand, pod("1")).slots == [0], "not one of the pool's"


@pytest.mark.parametrize(
    ("milliseconds_ago", "counts"),
    [(0, True), (999, True), (1000, False), (-999, True), (-1000, False), (-3_600_000, False)],
)
def test_the_successor_of_a_claimed_pod_waits_for_the_session_s_first_command(
    milliseconds_ago: int, counts: bool
) -> None:
    claimed = timedelta(milliseconds=milliseconds_ago)
    result = plan(pod("0", labels=CLAIMED, active=timedelta(), claimed=claimed), pod("1"))
    assert (result.slots, result.ready) == (([], 2) if counts else ([2], 1))
    idle = NOW + OPEN.idle_until_retired
    assert result.next_check == (NOW - claimed + FIRST_COMMAND_TIME if counts else idle)


@pytest.mark.parametrize(("size", "waiting"), [(1, 0), (2, 1), (3, 1), (5, 2)])
def test_a_pool_that_empties_fast_is_filled_at_once(size: int, waiting: int) -> None:
    just_now = timedelta(milliseconds=1)
    claimed = [pod(str(n), labels=CLAIMED, active=timedelta(), claimed=just_now) for n in range(size)]
    result = plan(*claimed, policy=replace(OPEN, size=size))
    assert len(result.slots) == size - waiting


def test_new_pods_take_the_lowest_names_that_nobody_has() -> None:
    terminating = pod("0", deletionTimestamp=stamp(NOW))
    retiring = pod("2", labels=RETIRING)
    assert plan(terminating, retiring).slots == [1, 3]


def test_a_closed_gate_makes_nothing() -> None:
    policy = PoolPolicy(5, timedelta(minutes=30), None, "new", replaceable=False)
    assert plan(policy=policy).slots == []


def test_a_huge_pool_is_made_in_portions() -> None:
    policy = PoolPolicy(2**31 - 1, timedelta(minutes=30), None, "new", replaceable=True)
    assert plan(policy=policy).slots == list(range(MAX_NEW_PODS_PER_SYNC))


def test_the_next_check_is_the_first_moment_at_which_a_rule_would_speak() -> None:
    starting = pod("0", status={}, age=timedelta(minutes=3))
    session = pod("1", labels=CLAIMED, active=timedelta(minutes=34))
    assert plan(starting, session).next_check == NOW + timedelta(minutes=1)
    assert plan(pod("0"), pod("1")).next_check is None


def test_a_pod_with_a_forged_annotation_is_left_out_and_named() -> None:
    result = plan(pod("0", applied="{}"), pod("1"))
    assert fates(result) == {"1": "keep"}
    assert result.unreadable == [PREFIX + "0"]


def test_trouble_is_named() -> None:
    not_isolated = {"containerStatuses": [{"name": "sandbox", "lastState": {"terminated": {"exitCode": 77}}}]}
    result = plan(
        pod("0", status=UNSCHEDULABLE),
        pod("1", status={}),
        pod("2", status=not_isolated, age=timedelta(0)),
        pod("3", labels={names.LABEL_INSTANCE: "other"}),
    )
    assert result.unschedulable == [PREFIX + "0"]
    assert result.stuck == [PREFIX + "1"]
    assert result.not_isolated == [PREFIX + "2"]
    assert result.foreign == [PREFIX + "3"]


def test_an_image_that_no_node_gets_is_named_once() -> None:
    waiting = {"image": "typo:1", "state": {"waiting": {"reason": "ImagePullBackOff"}}}
    result = plan(*(pod(name, status={"containerStatuses": [waiting]}, age=timedelta(0)) for name in "01"))
    assert result.missing_images == ["typo:1"]
    trouble = pool_trouble(result)
    assert trouble is not None and "typo:1" in trouble and "imagePullSecrets" in trouble


def test_a_warm_pod_whose_workspace_belongs_to_a_session_retires_when_its_claim_has_broken_off() -> None:
    soon = NOW + timedelta(seconds=9)
    unfit = {PREFIX + "0": NOW, PREFIX + "1": soon}
    workspaces = WorkspacePlan([], {}, unfit, frozenset(unfit), [], None)
    result = plan(pod("0"), pod("1"), pod("2"), workspaces=workspaces)
    assert fates(result) == {"0": "retire", "1": "keep", "2": "keep"}
    assert result.next_check == soon


def test_a_new_pod_prefers_a_workspace_that_nobody_used_and_avoids_one_that_is_taken() -> None:
    taken = frozenset(PREFIX + number for number in ("0", "3"))
    workspaces = WorkspacePlan([], {PREFIX + "3": {}}, {}, taken, [], None)
    assert plan(workspaces=workspaces).slots == [3, 1]
