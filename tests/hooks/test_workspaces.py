"""Claims of persistent workspaces: kept for their session, given up in two steps, taken over when unused."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from cli_mcp import names
from hooks.pods import SandboxPod, observe_pod
from hooks.wire import CHILD_KINDS, PERSISTENT_VOLUME_CLAIM, HookRequest, Parent
from hooks.workspaces import WorkspacePlan, plan_workspaces

PARENT = Parent({"metadata": {}}, "demo", "ns", "u", 1)
NOW = datetime(2026, 1, 2, tzinfo=UTC)
RETAIN = timedelta(hours=2)
SESSION = {names.LABEL_SESSION_ID: "s"}
RETIRING = {names.LABEL_STATE: "retiring"}


def stamp(time: datetime) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ")


def claim(
    labels: dict[str, str] | None = None,
    used: timedelta | None = None,
    age: timedelta = timedelta(hours=1),
    applied: str | None = None,
    **metadata: Any,
) -> dict[str, Any]:
    """Named `c`; `used` and `age` are counted back from NOW."""
    identity = {"name": "c", "namespace": "ns"}
    pool = {names.LABEL_POOL_HASH: "new"}
    content = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": identity | {"labels": pool},
    }
    annotations = {names.ANNOTATION_LAST_APPLIED: json.dumps(content) if applied is None else applied}
    if used is not None:
        annotations[names.ANNOTATION_LAST_USED] = stamp(NOW - used)
    observed = {
        "labels": pool | (labels or {}),
        "annotations": annotations,
        "creationTimestamp": stamp(NOW - age),
    }
    return {**content, "metadata": identity | observed | metadata}


def pod_with(claim_name: str) -> SandboxPod:
    manifest = {
        "metadata": {"name": "p", "namespace": "ns", "creationTimestamp": stamp(NOW)},
        "spec": {"volumes": [{"name": "tmp"}, {"persistentVolumeClaim": {"claimName": claim_name}}]},
    }
    return observe_pod(manifest, PARENT)


def plan(observed: dict[str, Any], *pods: SandboxPod, pool_hash: str | None = "new") -> WorkspacePlan:
    children: dict[str, dict[str, Any]] = {kind.key: {} for kind in CHILD_KINDS}
    children[PERSISTENT_VOLUME_CLAIM.key]["c"] = observed
    return plan_workspaces(HookRequest(PARENT, children, {}), pods, RETAIN, NOW, pool_hash)


def fate(result: WorkspacePlan) -> str:
    if result.unused:
        return "unused"
    if not result.children:
        return "left out"
    labels = result.children[0]["metadata"].get("labels", {})
    return "retire" if labels.get(names.LABEL_STATE) == "retiring" else "keep"


IN_USE = pod_with("c")
CASES: dict[str, tuple[dict[str, Any], tuple[SandboxPod, ...], str]] = {
    "a claim in use stays": (claim(SESSION, age=timedelta(days=9)), (IN_USE,), "keep"),
    "one of a session stays for a while": (claim(SESSION, used=timedelta(minutes=119)), (), "keep"),
    "and then retires": (claim(SESSION, used=timedelta(minutes=120)), (), "retire"),
    "without a stamp its creation counts": (claim(SESSION, age=timedelta(hours=2)), (), "retire"),
    "one that is retiring is left out": (claim(SESSION | RETIRING), (), "left out"),
    "one that terminates is left out": (claim(deletionTimestamp=stamp(NOW)), (IN_USE,), "left out"),
    "one that no session had is unused": (claim(), (), "unused"),
    "one of another template retires": (claim({names.LABEL_POOL_HASH: "old"}), (), "retire"),
    "a forged annotation is left out": (claim(applied="{}"), (), "left out"),
}


@pytest.mark.parametrize(("observed", "pods", "expected"), CASES.values(), ids=CASES)
def test_what_becomes_of_a_claim(
    observed: dict[str, Any], pods: tuple[SandboxPod, ...], expected: str
) -> None:
    assert fate(plan(observed, *pods)) == expected


def test_a_claim_that_retires_is_not_left_out_while_a_pod_uses_it() -> None:
    assert len(plan(claim(SESSION | RETIRING), IN_USE).children) == 1


def states(result: WorkspacePlan, *used: str, give_up: bool) -> list[str | None]:
    return [it["metadata"]["labels"].get(names.LABEL_STATE) for it in result.rest(used, give_up=give_up)]


def test_while_no_pod_can_be_made_no_unused_claim_is_given_up() -> None:
    result = plan(claim({names.LABEL_POOL_HASH: "old"}), pool_hash=None)
    assert fate(result) == "unused"
    assert states(result, give_up=False) == [None]


def test_an_unused_claim_is_taken_over_or_given_up() -> None:
    result = plan(claim())
    assert states(result, "c", give_up=True) == [None]
    assert states(result, give_up=True) == ["retiring"]


def test_no_new_session_gets_a_claim_that_has_one_or_that_retires() -> None:
    """Its own session has a minute to take the pod too."""
    assert plan(claim(SESSION, used=timedelta(seconds=20))).unfit == {"c": NOW + timedelta(seconds=40)}
    assert plan(claim(RETIRING)).unfit == {"c": NOW}
    assert plan(claim(SESSION | RETIRING, used=timedelta())).unfit == {"c": NOW}
    assert plan(claim()).unfit == {}
    assert plan(claim()).taken == {"c"}


def test_the_next_check_is_when_the_next_claim_retires() -> None:
    assert plan(claim(SESSION, used=timedelta(minutes=90))).next_check == NOW + timedelta(minutes=30)
