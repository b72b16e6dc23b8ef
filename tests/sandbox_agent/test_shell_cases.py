"""The cases that the shell must pass wherever it runs, here without a server and without isolation."""

import base64
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from cli_mcp.execution import Outcome
from tests.sandbox_agent.conftest import TestSession, stderr, stdout

CASES = [
    case
    for path in (Path(__file__).parents[1] / "data/shell.yaml", Path(__file__).with_name("more_cases.yaml"))
    for case in yaml.safe_load(path.read_text())
]
# What a step may expect of the outcome; `within`, `save_path` and `tool_error_has` are not about it.
CHECKS: dict[str, Callable[[Outcome, Any], bool]] = {
    "exit": lambda outcome, value: outcome.exit_code == value,
    "stdout": lambda outcome, value: stdout(outcome) == value,
    "stderr": lambda outcome, value: stderr(outcome) == value,
    "stdout_has": lambda outcome, value: value in stdout(outcome),
    "stderr_has": lambda outcome, value: value in stderr(outcome),
    "stdout_ends": lambda outcome, value: stdout(outcome).endswith(value),
    "stdout_b64": lambda outcome, value: outcome.stdout.head == base64.b64decode(value),
    "timed_out": lambda outcome, value: outcome.timed_out is value,
    "truncated": lambda outcome, value: (outcome.stdout.truncated or outcome.stderr.truncated) is value,
    "background": lambda outcome, value: len(outcome.background) >= value,
    "notes_have": lambda outcome, value: value in " ".join(outcome.notes),
    "restarted": lambda outcome, value: outcome.shell_restarted is value,
}


@pytest.mark.parametrize("steps", [case["steps"] for case in CASES], ids=[case["id"] for case in CASES])
async def test_case(session: TestSession, steps: list[dict[str, Any]]) -> None:
    saved: dict[str, str] = {}
    for step in steps:
        if "tool_error_has" in step:
            continue  # an empty command never gets as far as the shell
        command: str = step["run"] if "run" in step else eval(step["run_py"])
        for name, path in saved.items():
            command = command.replace(f"{{{name}}}", path)
        began = time.monotonic()
        outcome = await session.sh(command, step.get("timeout", 60))
        elapsed = time.monotonic() - began
        for name, value in step.items():
            assert name not in CHECKS or CHECKS[name](outcome, value), (name, value, outcome)
        assert elapsed <= step.get("within", 60)
        if "save_path" in step:
            assert outcome.stdout.file is not None
            saved[step["save_path"]] = outcome.stdout.file
