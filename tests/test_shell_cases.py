from dataclasses import replace
from typing import Any

import pytest

from tests.shell_cases import EXPECTATIONS, Observed, command_of, load_cases, problems

SEEN = Observed(
    1.0,
    is_error=False,
    exit_code=0,
    stdout=b"begin \xc3\xa9 end\n",
    stderr=b"warning\n",
    background=(5,),
    output_file="/f",
)
TOOL_ERROR = Observed(1.0, is_error=True, tool_error="`command` is empty.")


@pytest.mark.parametrize(
    ("step", "good"),
    [
        ({"exit": 0}, True),
        ({"exit": 1}, False),
        ({"stdout": "begin é end\n"}, True),
        ({"stdout": "begin é end"}, False),
        ({"stdout_has": "é"}, True),
        ({"stdout_has": "e\u0301"}, False),
        ({"stdout_ends": "end\n"}, True),
        ({"stdout_ends": "end"}, False),
        ({"stdout_b64": "YmVnaW4gw6kgZW5kCg=="}, True),
        ({"stdout_b64": "AA=="}, False),
        ({"stderr": "warning\n"}, True),
        ({"stderr": ""}, False),
        ({"stderr_has": "warn"}, True),
        ({"stderr_has": "error"}, False),
        ({"timed_out": False}, True),
        ({"timed_out": True}, False),
        ({"truncated": False}, True),
        ({"truncated": True}, False),
        ({"restarted": False}, True),
        ({"restarted": True}, False),
        ({"within": 2}, True),
        ({"within": 0.5}, False),
        ({"background": 1}, True),
        ({"background": 2}, False),
        ({"tool_error_has": "command"}, False),
    ],
)
def test_every_expectation_can_hold_and_fail(step: dict[str, Any], good: bool) -> None:
    assert (problems(step, SEEN) == []) is good


def test_a_tool_error_is_good_only_where_it_is_expected() -> None:
    assert problems({"tool_error_has": "command"}, TOOL_ERROR) == []
    assert problems({"tool_error_has": "session"}, TOOL_ERROR)
    assert problems({}, TOOL_ERROR)


def test_is_error_must_go_with_the_exit_code() -> None:
    assert problems({}, replace(SEEN, is_error=True))
    assert problems({}, replace(SEEN, exit_code=3))
    assert problems({"exit": 3}, replace(SEEN, exit_code=3, is_error=True)) == []


def test_an_expectation_that_nobody_checks_is_an_error() -> None:
    with pytest.raises(AssertionError, match="stdout_is"):
        problems({"run": "x", "stdout_is": "y"}, SEEN)


def test_every_case_expects_something_known() -> None:
    cases = load_cases()
    assert len(cases) > 30
    for case in cases:
        assert any(step.keys() & EXPECTATIONS.keys() for step in case.steps), case.id


@pytest.mark.parametrize(
    ("step", "command"),
    [
        ({"run": "wc {P} ${X}"}, "wc /f ${X}"),
        ({"run_py": "'a' * 3"}, "aaa"),
    ],
)
def test_a_command_is_text_or_the_value_of_an_expression(step: dict[str, Any], command: str) -> None:
    assert command_of(step, {"P": "/f"}) == command
