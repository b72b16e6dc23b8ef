"""Conditions: their reasons, their order, and when they change."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from cli_mcp.api import status as api_status
from cli_mcp.path_report import PathReport, TargetKind, TargetState
from hooks.problem import Problem, Reason, gravest_first
from hooks.status import PoolState, conditions, only_ready
from hooks.wire import Parent

START = datetime(2026, 1, 1, tzinfo=UTC)
FULL = PoolState(2, 2)
SHORT = PoolState(1, 2)


def parent(*old: dict[str, Any], **status: Any) -> Parent:
    manifest = {"metadata": {}, "status": {"conditions": list(old), **status}}
    return Parent(manifest, "demo", "ns", "u", 7)


class Life:
    """An instance whose status is written after each look."""

    def __init__(self) -> None:
        self.conditions: list[dict[str, Any]] = []
        self.path: PathReport | None = None

    def look(
        self, minutes: float, pool: PoolState, *problems: Problem
    ) -> tuple[tuple[str, str], tuple[str, str], datetime | None]:
        """(status, reason) of Ready and of WarmPoolReady, and the next change."""
        now = START + timedelta(minutes=minutes)
        self.conditions, next_change = conditions(
            parent(*self.conditions), list(problems), pool, self.path, now
        )
        ready, warm, _ = ((it["status"], it["reason"]) for it in self.conditions)
        return ready, warm, next_change


def test_a_first_fill_is_part_of_becoming_ready() -> None:
    life = Life()
    assert life.look(0, SHORT)[:2] == (("False", "Reconciling"), ("False", "Reconciling"))
    assert life.look(1, FULL)[:2] == (("True", "Ready"), ("True", "Ready"))


def test_a_refill_has_five_minutes() -> None:
    life = Life()
    life.look(0, FULL)
    assert life.look(1, SHORT) == (
        ("True", "Ready"),
        ("False", "WarmPoolNotReady"),
        START + timedelta(minutes=6),
    )
    assert life.look(5.9, SHORT)[0] == ("True", "Ready")
    assert life.look(6, SHORT) == (("False", "WarmPoolNotReady"), ("False", "WarmPoolNotReady"), None)
    assert life.look(7, FULL)[0] == ("True", "Ready")


def test_a_pool_in_trouble_stays_unhealthy_until_it_is_full() -> None:
    life = Life()
    life.look(0, FULL)
    stuck = PoolState(0, 2, "not ready for 5 minutes and replaced: p")
    assert life.look(1, stuck)[:2] == (("False", "WarmPoolUnhealthy"), ("False", "WarmPoolUnhealthy"))
    assert life.look(2, PoolState(0, 2))[1] == ("False", "WarmPoolUnhealthy"), "a new pod is only starting"
    assert life.conditions[1]["message"] == "not ready for 5 minutes and replaced: p"
    assert life.look(3, FULL)[1] == ("True", "Ready")


def test_a_time_changes_only_with_the_status() -> None:
    life = Life()
    life.look(0, FULL, Problem(Reason.SECRETS_NOT_FOUND, "a"))
    life.look(5, FULL, Problem(Reason.KUBECONFIG_INVALID, "b"))
    assert life.conditions[0]["lastTransitionTime"] == "2026-01-01T00:00:00Z"
    assert life.conditions[0]["message"] == "b"
    life.look(9, FULL)
    assert life.conditions[0]["lastTransitionTime"] == "2026-01-01T00:09:00Z"
    before = life.conditions
    life.look(500, FULL)
    assert life.conditions == before


def test_the_gravest_problem_is_the_reason_and_all_are_in_the_message() -> None:
    life = Life()
    problems = (Problem(Reason.CHILDREN_NOT_READY, "later"), Problem(Reason.SECRETS_NOT_FOUND, "first"))
    assert life.look(0, FULL, *problems)[0] == ("False", "SecretsNotFound")
    assert life.conditions[0]["message"] == "first; later"
    assert life.conditions[0]["observedGeneration"] == 7


def test_a_warning_leaves_ready_true() -> None:
    life = Life()
    assert life.look(0, FULL, Problem(Reason.CREDENTIAL_EXPIRING, "soon", warning=True))[0] == (
        "True",
        "CredentialExpiring",
    )
    assert life.look(1, FULL, Problem(Reason.CREDENTIAL_EXPIRED, "expired"))[0] == (
        "False",
        "CredentialExpired",
    )


def test_targets_are_unknown_until_they_were_asked_and_then_what_the_report_says() -> None:
    life = Life()
    seen = []
    good = TargetState(endpoint="api.example.com:6443", kind=TargetKind.KUBERNETES)
    bad = good.model_copy(update={"problem": "refused", "remedy": "mend it", "credential_refused": True})
    for minute, path in enumerate((None, PathReport(targets=(good,)), PathReport(targets=(bad,)))):
        life.path = path
        life.look(minute, FULL)
        seen.append({key: life.conditions[2][key] for key in ("status", "reason", "lastTransitionTime")})
    assert [(it["status"], it["reason"]) for it in seen] == [
        ("Unknown", "NotChecked"),
        ("True", "TargetsAnswer"),
        ("False", "CredentialRefused"),
    ]
    assert [it["lastTransitionTime"][14:16] for it in seen] == ["00", "01", "02"]


def test_an_unreadable_instance_keeps_the_rest_of_its_status() -> None:
    warm = {
        "type": "WarmPoolReady",
        "status": "True",
        "reason": "Ready",
        "message": "m",
        "lastTransitionTime": "t",
    }
    found = only_ready(parent(warm, warmPoolReady=2), Problem(Reason.SPEC_INVALID, "spec.x: bad"), START)
    assert found["warmPoolReady"] == 2
    assert [it["type"] for it in found["conditions"]] == ["Ready", "WarmPoolReady"]
    assert found["conditions"][1] == warm


def test_a_status_has_only_fields_of_the_api() -> None:
    life = Life()
    life.look(0, SHORT, Problem(Reason.NAME_TAKEN, "x" * 10_000))
    for condition in life.conditions:
        api_status.Condition.model_validate(condition)


@pytest.mark.parametrize("reason", list(Reason))
def test_what_an_admin_has_to_mend_comes_before_what_mends_itself(reason: Reason) -> None:
    pending = Problem(Reason.RECONCILING, "a")
    ordered = gravest_first([pending, Problem(reason, "b")])
    waiting = {
        Reason.RECONCILING,
        Reason.SESSIONS_CUT_OFF,
        Reason.DEPLOYMENT_DEGRADED,
        Reason.CREDENTIAL_EXPIRING,
        Reason.NOT_CHECKED,
        Reason.TARGETS_ANSWER,
        Reason.READY,
    }
    assert (ordered[0].reason is reason) is (reason not in waiting or reason is Reason.RECONCILING)
