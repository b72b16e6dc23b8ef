"""Every rule of the API as a table, and the values that other parts read from an instance."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from cli_mcp.api.advice import advice
from cli_mcp.api.document import parse_instance
from cli_mcp.api.instance import CliMcpInstance
from cli_mcp.api.problems import InvalidInstance, format_path
from cli_mcp.names import API_VERSION, KIND
from cli_mcp.sandbox_config import CommandLimits

VERDICTS = Path(__file__).parents[2] / "data" / "instances" / "verdicts.yaml"
CASES: list[dict[str, Any]] = yaml.safe_load(VERDICTS.read_text())


def instance_of(case: dict[str, Any]) -> dict[str, Any]:
    given = {key: case[key] for key in ("apiVersion", "kind", "metadata", "spec") if key in case}
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": "shell"}} | given


def parsed(**spec: Any) -> CliMcpInstance:
    return parse_instance(instance_of({"spec": spec}))


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_the_models_say_what_the_table_says(case: dict[str, Any]) -> None:
    try:
        instance = parse_instance(instance_of(case))
    except InvalidInstance as error:
        assert [format_path(problem.path) for problem in error.problems] == [case.get("error")], str(error)
    else:
        assert "error" not in case
        warned = [format_path(problem.path) for problem in advice(instance)]
        assert warned == ([case["warning"]] if "warning" in case else [])


def test_the_table_is_consistent() -> None:
    assert len({case["name"] for case in CASES}) == len(CASES)
    for case in CASES:
        assert not ("error" in case and "warning" in case), case["name"]
        assert ("crd" in case) == ("why" in case), case["name"]


def test_all_problems_are_reported_at_once() -> None:
    with pytest.raises(InvalidInstance) as caught:
        parsed(replicas=0, sandbox={"image": "a b", "dns": "x"}, proxy={"targets": [{"type": "allowlist"}]})
    assert [format_path(problem.path) for problem in caught.value.problems] == [
        "spec.replicas",
        "spec.sandbox.image",
        "spec.sandbox.dns",
        "spec.proxy.targets[0].domains",
    ]


def test_several_broken_rules_of_one_object_are_reported_at_once() -> None:
    with pytest.raises(InvalidInstance) as caught:
        parsed(sandbox={"resources": {"requests": {"cpu": "1"}, "limits": {"cpu": "0"}}})
    assert len(caught.value.problems) == 2


def test_fields_are_known_by_their_outside_names_only() -> None:
    with pytest.raises(InvalidInstance, match="did you mean idleTimeout"):
        parsed(sandbox={"idle_timeout": "1h"})


@pytest.mark.parametrize(
    ("idle_timeout", "seconds"), [("90s", 90), ("1h30m", 5400), ("0", 1800), ("-5m", 1800), ("0.5s", 0.5)]
)
def test_an_idle_timeout_of_nothing_is_thirty_minutes(idle_timeout: str, seconds: float) -> None:
    assert parsed(sandbox={"idleTimeout": idle_timeout}).spec.sandbox.idle_timeout_seconds == seconds


def test_defaults() -> None:
    spec = parsed().spec
    assert (spec.replicas, spec.tools, spec.proxy, spec.ssh) == (1, ("bash",), None, None)
    sandbox = spec.sandbox
    assert (sandbox.idle_timeout_seconds, sandbox.warm_pool_size, sandbox.dns) == (1800, 0, "none")
    assert (sandbox.max_sessions, sandbox.max_sessions_per_owner, sandbox.max_lifetime_seconds) == (None,) * 3
    assert sandbox.isolation_test
    assert not sandbox.workspace.persistent
    assert (sandbox.workspace.size_bytes, sandbox.workspace.retain_seconds) == (10 * 2**30, 24 * 3600)
    assert sandbox.limits.cpu_millicores == 500
    assert sandbox.limits.memory_bytes == 512 * 2**20
    assert sandbox.limits.ephemeral_storage_bytes == 10 * 2**30


@pytest.mark.parametrize(
    ("given", "limits"),
    [
        ({}, CommandLimits()),
        ({"commandTimeout": {"max": "20s"}}, CommandLimits(default_seconds=20, max_seconds=20)),
        (
            {"commandTimeout": {"default": 30, "max": "1h"}},
            CommandLimits(default_seconds=30, max_seconds=3600),
        ),
        ({"commandTimeout": {"default": "1m30s"}}, CommandLimits(default_seconds=90)),
        ({"outputLimit": "32Ki"}, CommandLimits(output_bytes=32_768)),
        ({"outputLimit": 1000}, CommandLimits(output_bytes=1_000)),
    ],
)
def test_the_limits_of_commands(given: dict[str, Any], limits: CommandLimits) -> None:
    assert CommandLimits() == CommandLimits(default_seconds=60, max_seconds=300, output_bytes=50_000)
    assert parsed(sandbox=given).spec.sandbox.command_limits == limits


@pytest.mark.parametrize(
    ("given", "requests", "limits"),
    [
        ({}, {"cpu": "100m", "memory": "128Mi"}, {"cpu": "500m", "memory": "512Mi"}),
        (
            {"limits": {"memory": "64Mi"}},
            {"cpu": "100m", "memory": "64Mi"},
            {"cpu": "500m", "memory": "64Mi"},
        ),
        ({"requests": {"cpu": "2"}}, {"cpu": "2", "memory": "128Mi"}, {"cpu": "2", "memory": "512Mi"}),
        (
            {"limits": {"example.com/gpu": 1}},
            {"cpu": "100m", "memory": "128Mi"},
            {"cpu": "500m", "memory": "512Mi", "example.com/gpu": "1"},
        ),
        (
            {"limits": {"ephemeral-storage": "64Mi"}},
            {"cpu": "100m", "memory": "128Mi", "ephemeral-storage": "64Mi"},
            {"cpu": "500m", "memory": "512Mi", "ephemeral-storage": "64Mi"},
        ),
    ],
)
def test_what_is_left_out_is_filled_in_and_stays_consistent(
    given: dict[str, Any], requests: dict[str, str], limits: dict[str, str]
) -> None:
    resources = parsed(sandbox={"resources": given}).spec.sandbox.effective_resources
    assert resources.requests == {"ephemeral-storage": "100Mi"} | requests
    assert resources.limits == {"ephemeral-storage": "10Gi"} | limits


def test_endpoints_of_targets() -> None:
    targets = [{"type": "kubernetes"}, {"type": "allowlist", "domains": ["A.example", "[::1]:8443"]}]
    proxy = parsed(proxy={"targets": targets}).spec.proxy
    assert proxy is not None
    assert [target.endpoints for target in proxy.targets] == [(), (("a.example", 443), ("::1", 8443))]


@pytest.mark.parametrize(
    ("targets", "secret"),
    [
        ([{"type": "allowlist", "domains": ["a.example"]}], None),
        ([{"type": "kubernetes"}], "cli-mcp-shell-kubeconfig"),
        ([{"type": "kubernetes", "secretName": "mine"}], "mine"),
    ],
)
def test_the_kubeconfig_secret_has_a_default_name(targets: list[Any], secret: str | None) -> None:
    assert parsed(proxy={"targets": targets}).kubeconfig_secret_name == secret
    assert parsed().kubeconfig_secret_name is None


def test_an_object_from_a_cluster_is_read_with_all_its_metadata_and_status() -> None:
    data = instance_of({"spec": {}}) | {"status": {"anything": [1]}}
    data["metadata"] |= {
        "namespace": "agents",
        "uid": "3f2f4840-1e91-49df-8d5d-e9bf48e8f55b",
        "generation": 3,
        "resourceVersion": "211",
        "creationTimestamp": "2026-01-01T00:00:00Z",
        "finalizers": ["a/b"],
        "managedFields": [{"manager": "kubectl"}],
        "ownerReferences": [],
    }
    instance = parse_instance(data)
    assert instance.metadata.generation == 3
    assert instance.status == {"anything": [1]}


def test_instances_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="frozen"):
        setattr(parsed().spec, "replicas", 2)  # noqa: B010 - mypy would refuse the plain assignment


@pytest.mark.parametrize(
    ("route", "admitted", "refused"),
    [
        ({"username": "alice"}, ["alice"], ["Alice", "alice2", "", "alice\n"]),
        (
            {"usernamePattern": "^agent-[a-z0-9]+$"},
            ["agent-7", "agent-b"],
            ["agent-", "xagent-7", "agent-7\n", "agent-" + "7" * 63],
        ),
        ({"usernamePattern": "^a.c$"}, ["abc"], ["a\nc", "ac"]),
        # The worst that a pattern may be: every split of the name among three repeats is tried.
        ({"usernamePattern": "^[a-z0-9_.-]*.*[a-z]*X$"}, ["aX"], ["a" * 63]),
    ],
)
def test_a_route_is_for_whole_user_names(
    route: dict[str, str], admitted: list[str], refused: list[str]
) -> None:
    ssh = parsed(ssh={"routes": [route | {"authorizedKeysSecret": "keys"}]}).spec.ssh
    assert ssh is not None
    assert [name for name in admitted + refused if ssh.routes[0].admits(name)] == admitted
