"""What is allowed and probably not meant, in words. Which field is meant stands in the table of instances."""

from typing import Any

import pytest

from cli_mcp.api.advice import advice
from cli_mcp.api.document import parse_instance

PROXY = {"targets": [{"type": "kubernetes"}]}


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        ({}, "spec: no proxy, so a sandbox would reach nothing and a cluster starts none; add one"),
        (
            {"proxy": PROXY, "sandbox": {"idleTimeout": "-1s"}},
            "spec.sandbox.idleTimeout: zero and negative mean 30m; write the time you mean",
        ),
        (
            {"proxy": PROXY, "sandbox": {"env": [{"name": "A"}, {"name": "HOME"}]}},
            "spec.sandbox.env[1].name: HOME is set by the operator, which ignores this entry; remove it",
        ),
        (
            {"proxy": PROXY, "serverContainer": {"resources": {"requests": {"memory": "1.5"}}}},
            "spec.serverContainer.resources.requests.memory: 1.5 is a fraction of a byte; use Mi or Gi",
        ),
    ],
)
def test_a_warning_names_field_cause_and_remedy(spec: dict[str, Any], text: str) -> None:
    data = {
        "apiVersion": "cli-mcp.redhat.com/v1alpha1",
        "kind": "CliMcpInstance",
        "metadata": {"name": "shell"},
        "spec": spec,
    }
    assert [str(problem) for problem in advice(parse_instance(data))] == [text]
