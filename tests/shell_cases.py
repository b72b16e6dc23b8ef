"""The cases of tests/data/shell.yaml, whose head says what their fields mean, and the check of a result.

Pure: results come from anywhere, a shell in this process or a server over MCP.
"""

import base64
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

CASES_FILE = Path(__file__).parent / "data" / "shell.yaml"


@dataclass(frozen=True, slots=True)
class Case:
    id: str
    steps: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True, slots=True)
class Observed:
    """What came of a step. `tool_error` is the text of a call without a result, which has nothing else."""

    seconds: float
    is_error: bool
    tool_error: str | None = None
    exit_code: int | None = None
    stdout: bytes = b""
    stderr: bytes = b""
    timed_out: bool = False
    truncated: bool = False
    shell_restarted: bool = False
    background: tuple[int, ...] = ()
    output_file: str | None = None


def load_cases() -> list[Case]:
    return [Case(case["id"], tuple(case["steps"])) for case in yaml.safe_load(CASES_FILE.read_text())]


def command_of(step: Mapping[str, Any], saved: Mapping[str, str]) -> str:
    """The step's command, with the paths that earlier steps have `saved` put in."""
    if "run_py" in step:
        return str(eval(step["run_py"], {"__builtins__": {}}))
    command = str(step["run"])
    for name, path in saved.items():
        command = command.replace(f"{{{name}}}", path)
    return command


def problems(step: Mapping[str, Any], seen: Observed) -> list[str]:
    """What is not as the step expects; empty when everything is."""
    unknown = step.keys() - EXPECTATIONS.keys() - {"run", "run_py", "timeout", "save_path"}
    assert not unknown, f"no expectation is called {unknown}"
    wrong = [
        f"{name}: {step[name]!r} expected"
        for name, holds in EXPECTATIONS.items()
        if name in step and not holds(step[name], seen)
    ]
    if "tool_error_has" not in step and seen.tool_error is not None:
        wrong.append("a result expected")
    if seen.tool_error is None and seen.is_error != (seen.exit_code != 0):
        wrong.append("isError exactly when the exit code is not 0 expected")
    return [*wrong, f"seen: {seen}"[:2_000]] if wrong else []


EXPECTATIONS: Mapping[str, Callable[[Any, Observed], bool]] = {
    "exit": lambda expected, seen: seen.exit_code == expected,
    "stdout": lambda expected, seen: seen.stdout == expected.encode(),
    "stderr": lambda expected, seen: seen.stderr == expected.encode(),
    "stdout_has": lambda expected, seen: expected.encode() in seen.stdout,
    "stderr_has": lambda expected, seen: expected.encode() in seen.stderr,
    "stdout_ends": lambda expected, seen: seen.stdout.endswith(expected.encode()),
    "stdout_b64": lambda expected, seen: seen.stdout == base64.b64decode(expected),
    "timed_out": lambda expected, seen: seen.timed_out == expected,
    "truncated": lambda expected, seen: seen.truncated == expected,
    "within": lambda expected, seen: seen.seconds <= expected,
    "background": lambda expected, seen: len(seen.background) >= expected,
    "restarted": lambda expected, seen: seen.shell_restarted == expected,
    "tool_error_has": lambda expected, seen: seen.is_error and expected in (seen.tool_error or ""),
}
