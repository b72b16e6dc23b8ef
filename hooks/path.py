"""What the servers found on the way of a call, as problems of the instance and as a condition of its own."""

import logging
from collections.abc import Iterable

from pydantic import ValidationError

from cli_mcp.path_report import PathReport, TargetKind, TargetState, merged
from hooks.problem import Problem, Reason
from hooks.wire import CONFIG_MAP, HookRequest

_LISTED_AT_MOST = 5

_log = logging.getLogger(__name__)


def path_report(request: HookRequest) -> PathReport | None:
    """The reports of all servers in one, of which a problem outweighs its absence; None before the first."""
    observed = request.child(CONFIG_MAP, request.parent.names.path_report)
    reports = [
        report
        for name, text in sorted(((observed or {}).get("data") or {}).items())
        if (report := _read(name, text)) is not None
    ]
    if not reports:
        return None
    sentences = dict.fromkeys(sentence for report in reports for sentence in report.unreachable)
    return PathReport(
        targets=merged(state for report in reports for state in report.targets), unreachable=tuple(sentences)
    )


def path_problems(report: PathReport | None) -> list[Problem]:
    """What keeps calls from working: Ready goes when no API server answers. Other hosts are told by the
    condition alone, since shells work without them."""
    if report is None:
        return []
    clusters = [state for state in report.targets if state.kind is TargetKind.KUBERNETES]
    failing = [state for state in clusters if state.problem]
    by_reason = [
        (reason, [state for state in failing if _reason(state) is reason])
        for reason in (Reason.CREDENTIAL_REFUSED, Reason.TARGET_UNREACHABLE)
    ]
    return [Problem(Reason.PATH_BROKEN, sentence) for sentence in report.unreachable] + [
        Problem(reason, _told(states), warning=len(failing) < len(clusters))
        for reason, states in by_reason
        if states
    ]


def targets_condition(report: PathReport | None) -> tuple[bool | None, Reason, str]:
    """Status (None is Unknown), reason and message of TargetsReachable."""
    if report is None or not report.targets:
        return None, Reason.NOT_CHECKED, "no proxy has asked the targets yet"
    failing = [state for state in report.targets if state.problem]
    if failing:
        refused = [state for state in failing if state.credential_refused]
        return False, _reason((refused or failing)[0]), _told(refused or failing)
    count = len(report.targets)
    return True, Reason.TARGETS_ANSWER, "the target answers" if count == 1 else f"all {count} targets answer"


def _read(name: str, text: str) -> PathReport | None:
    try:
        return PathReport.model_validate_json(text)
    except ValidationError as error:
        _log.warning("the report of server %s cannot be read: %s", name, error)
        return None


def _reason(state: TargetState) -> Reason:
    return Reason.CREDENTIAL_REFUSED if state.credential_refused else Reason.TARGET_UNREACHABLE


def _told(states: Iterable[TargetState]) -> str:
    """Targets that fail alike in one sentence each; what to do once for all that have the same remedy."""
    remedies: dict[str, list[str]] = {}
    for state in states:
        remedies.setdefault(state.remedy, []).append(state.problem)
    return "; ".join(f"{_listed(problems)}: {remedy}" for remedy, problems in remedies.items())


def _listed(problems: list[str]) -> str:
    more = len(problems) - _LISTED_AT_MOST
    return ", ".join(problems[:_LISTED_AT_MOST]) + (f" and {more} more" if more > 0 else "")
