"""What servers report of the way of a call becomes problems and a condition."""

import json
from typing import Any

import pytest

from cli_mcp import names
from cli_mcp.path_report import PathReport, TargetKind, TargetState
from hooks.path import path_problems, path_report, targets_condition
from hooks.problem import Reason
from hooks.wire import CHILD_KINDS, CONFIG_MAP, HookRequest, parse_request
from tests.hooks.world import NAMESPACE

GONE: dict[str, Any] = {"problem": "unreachable", "remedy": "see whether it runs"}
REFUSED: dict[str, Any] = {"problem": "token refused", "remedy": "a new token", "credential_refused": True}


def target(host: str, kind: TargetKind = TargetKind.ALLOWLIST, **found: Any) -> TargetState:
    return TargetState(endpoint=f"{host}:443", kind=kind, **found)


def cluster(host: str = "api", **found: Any) -> TargetState:
    return target(host, TargetKind.KUBERNETES, **found)


def request(data: dict[str, str] | None) -> HookRequest:
    name = names.InstanceNames("demo").path_report
    owner = {"apiVersion": names.API_VERSION, "kind": names.KIND, "name": "demo", "uid": "u"}
    config_map: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": NAMESPACE, "ownerReferences": [owner]},
    }
    if data is not None:
        config_map["data"] = data
    parent = {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "metadata": {"name": "demo", "namespace": NAMESPACE, "uid": "u", "generation": 1},
        "spec": {},
    }
    children: dict[str, Any] = {kind.key: {} for kind in CHILD_KINDS}
    children[CONFIG_MAP.key][f"{NAMESPACE}/{name}"] = config_map
    return parse_request(
        {"controller": {}, "parent": parent, "children": children, "related": {}, "finalizing": False}
    )


def text(*targets: TargetState, unreachable: tuple[str, ...] = ()) -> str:
    return PathReport(targets=targets, unreachable=unreachable).model_dump_json(by_alias=True)


@pytest.mark.parametrize("data", [None, {}, {"server-1": "{"}, {"server-1": json.dumps({"targets": 5})}])
def test_without_a_report_that_can_be_read_nothing_is_known(data: dict[str, str] | None) -> None:
    assert path_report(request(data)) is None


def test_a_report_of_a_later_version_is_read_as_far_as_it_is_known() -> None:
    later = json.loads(text(target("a"))) | {"more": 1}
    assert path_report(request({"server-1": json.dumps(later)})) == PathReport(targets=(target("a"),))


def test_of_several_servers_the_one_with_a_problem_is_believed() -> None:
    report = path_report(
        request(
            {
                "server-1": text(target("a", **GONE), target("b")),
                "server-2": text(target("a"), target("b"), unreachable=("no way",)),
            }
        )
    )
    assert report == PathReport(targets=(target("a", **GONE), target("b")), unreachable=("no way",))


@pytest.mark.parametrize(
    ("targets", "expected"),
    [
        ([], []),
        ([cluster(), target("a")], []),
        ([cluster(**GONE), target("a")], [(Reason.TARGET_UNREACHABLE, False)]),
        ([cluster(**REFUSED), target("a")], [(Reason.CREDENTIAL_REFUSED, False)]),
        ([cluster("a", **REFUSED), cluster("b")], [(Reason.CREDENTIAL_REFUSED, True)]),
        ([cluster(), target("a", **GONE)], []),
        ([target("a", **GONE)], []),
        (
            [cluster("a", **REFUSED), cluster("b", **GONE)],
            [(Reason.CREDENTIAL_REFUSED, False), (Reason.TARGET_UNREACHABLE, False)],
        ),
    ],
)
def test_ready_goes_when_no_api_server_answers(
    targets: list[TargetState], expected: list[tuple[Reason, bool]]
) -> None:
    problems = path_problems(PathReport(targets=tuple(targets)))
    assert [(problem.reason, problem.warning) for problem in problems] == expected


def test_a_part_that_is_not_reached_is_a_failure_in_the_servers_words() -> None:
    (problem,) = path_problems(PathReport(unreachable=("the server does not get through",)))
    assert (problem.reason, problem.message, problem.warning) == (
        Reason.PATH_BROKEN,
        "the server does not get through",
        False,
    )


@pytest.mark.parametrize(
    ("report", "status", "reason", "says"),
    [
        (None, None, Reason.NOT_CHECKED, "no proxy has asked the targets yet"),
        (PathReport(), None, Reason.NOT_CHECKED, "no proxy has asked the targets yet"),
        (PathReport(targets=(target("a"),)), True, Reason.TARGETS_ANSWER, "the target answers"),
        (PathReport(targets=(target("a"), cluster())), True, Reason.TARGETS_ANSWER, "all 2 targets answer"),
        (
            PathReport(targets=(target("a", **GONE), cluster())),
            False,
            Reason.TARGET_UNREACHABLE,
            "unreachable: see whether it runs",
        ),
        (
            PathReport(targets=(target("a", **GONE), cluster(**REFUSED))),
            False,
            Reason.CREDENTIAL_REFUSED,
            "token refused: a new token",
        ),
    ],
)
def test_the_condition(report: PathReport | None, status: bool | None, reason: Reason, says: str) -> None:
    assert targets_condition(report) == (status, reason, says)


def test_many_targets_that_fail_alike_are_told_with_one_remedy() -> None:
    report = PathReport(
        targets=tuple(target(f"{n}", problem=f"{n} is gone", remedy="look") for n in range(8))
    )
    _, _, message = targets_condition(report)
    assert message == "0 is gone, 1 is gone, 2 is gone, 3 is gone, 4 is gone and 3 more: look"
