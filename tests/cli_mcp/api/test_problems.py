"""What a person reads about a field: what is wrong and what to do."""

from typing import Any

import pytest

from cli_mcp.api.document import parse_instance
from cli_mcp.api.problems import InvalidInstance, Path, format_path


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ((), ""),
        (("spec",), "spec"),
        (("spec", "proxy", "targets", 0, "domains", 1), "spec.proxy.targets[0].domains[1]"),
        (("spec", "limits", "example.com/gpu"), "spec.limits['example.com/gpu']"),
        (("a\nb",), r"['a\nb']"),
    ],
)
def test_paths_are_written_as_kubernetes_writes_them(path: Path, text: str) -> None:
    assert format_path(path) == text


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        ({"proxy": {}}, "spec.proxy.targets: is required; add it"),
        ({"sandbox": {"idleTimeout": 90}}, "spec.sandbox.idleTimeout: must be text; put the value in quotes"),
        ({"replicas": "2"}, "spec.replicas: must be a whole number without quotes"),
        ({"replicas": 0}, "spec.replicas: must be at least 1"),
        ({"replicas": 2**31}, "spec.replicas: must be at most 2147483647"),
        (
            {"sandbox": {"isolationTest": "no"}},
            "spec.sandbox.isolationTest: must be true or false without quotes",
        ),
        ({"sandbox": []}, "spec.sandbox: must be a mapping of fields to values"),
        (
            {"sandbox": {"nodeSelector": []}},
            "spec.sandbox.nodeSelector: must be a mapping of names to values",
        ),
        ({"sandbox": {"env": {}}}, "spec.sandbox.env: must be a list; begin each entry with '- '"),
        ({"sandbox": {"dns": "x"}}, "spec.sandbox.dns: must be 'none' or 'cluster'"),
        (
            {"sandbox": {"maxLifetime": ""}},
            "spec.sandbox.maxLifetime: must not be empty; give a value or remove the field",
        ),
        (
            {"sandbox": {"maxLifetime": "1h" * 40}},
            "spec.sandbox.maxLifetime: must be at most 64 characters long; shorten it",
        ),
        ({"tools": []}, "spec.tools: must have at least one entry; add one or remove the field"),
        ({"tools": ["bash"] * 4}, "spec.tools: must have at most 3 entries; remove some"),
        ({"sandbox": {"immage": "x"}}, "spec.sandbox.immage: is not a field; did you mean image?"),
        ({"sandbox": {"ENV": []}}, "spec.sandbox.ENV: is not a field; did you mean env?"),
        (
            {"ssh": {"service": {"zzz": 1}, "routes": [{"username": "a", "authorizedKeysSecret": "k"}]}},
            "spec.ssh.service.zzz: is not a field; remove it, or use one of: nodePort, type",
        ),
    ],
)
def test_a_problem_names_field_cause_and_remedy(spec: dict[str, Any], text: str) -> None:
    data = {
        "apiVersion": "cli-mcp.redhat.com/v1alpha1",
        "kind": "CliMcpInstance",
        "metadata": {"name": "shell"},
        "spec": spec,
    }
    with pytest.raises(InvalidInstance) as caught:
        parse_instance(data)
    assert str(caught.value) == text


@pytest.mark.parametrize("data", [None, [], "text", 1, {}])
def test_what_is_no_object_at_all_is_refused(data: Any) -> None:
    with pytest.raises(InvalidInstance):
        parse_instance(data)
