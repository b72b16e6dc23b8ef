"""What the doctor finds in clusters that differ from a good one in one thing."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from cli_mcp.crd import custom_resource_definition
from cli_mcp.doctor.checks import ADMISSION_POLICIES, Finding, Level, examine
from cli_mcp.doctor.facts import Facts, Unread

ADMISSION = Path(__file__).parents[3] / "config/admission"


def named(name: str, **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": spec}


def workload(image: str, ready: int = 1, *args: str) -> dict[str, Any]:
    containers = [{"name": "metacontroller", "image": image, "args": list(args)}]
    return {
        "metadata": {"name": "metacontroller", "namespace": "cli-mcp-system"},
        "spec": {"template": {"spec": {"containers": containers}}},
        "status": {"readyReplicas": ready},
    }


def instance(reason: str = "Ready", ready: str = "True", **changed: Any) -> dict[str, Any]:
    condition = {"type": "Ready", "status": ready, "reason": reason, "message": "do this"}
    return {
        "metadata": {"name": "shell", "namespace": "team", "generation": 2},
        "spec": {},
        "status": {"observedGeneration": 2, "conditions": [condition]},
    } | changed


def binding(policy: str, action: str = "Deny") -> dict[str, Any]:
    return named(policy, policyName=policy, validationActions=[action])


RELEASED = "ghcr.io/metacontroller/metacontroller:v4.17.2"
POLICIES = tuple(map(named, ADMISSION_POLICIES))
BINDINGS = tuple(map(binding, ADMISSION_POLICIES))
GOOD = Facts(
    version=(1, 34),
    definitions=(custom_resource_definition(),),
    composite_controllers=(named("cli-mcp"),),
    workloads=(workload("quay.io/somebody/else:1"), workload(RELEASED, 2, "--zap-log-level=2")),
    policies=POLICIES,
    bindings=BINDINGS,
    instances=(instance(),),
)


def other_definition() -> dict[str, Any]:
    changed = copy.deepcopy(custom_resource_definition())
    del changed["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["ssh"]
    return changed


def stored_definition() -> dict[str, Any]:
    """The API server keeps bounds in floating point, and shows them so."""
    changed = copy.deepcopy(custom_resource_definition())
    sandbox = changed["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"][
        "sandbox"
    ]
    seconds = sandbox["properties"]["tolerations"]["items"]["properties"]["tolerationSeconds"]
    assert seconds["maximum"] == 2**63 - 1
    seconds["maximum"] = 9223372036854776000
    return changed


def found(facts: Facts) -> list[Finding]:
    return [finding for finding in examine(facts) if finding.level is not Level.OK]


def test_a_good_installation_has_no_findings_but_good_ones() -> None:
    assert found(GOOD) == []
    assert [finding.subject for finding in examine(GOOD)] == [
        "Kubernetes",
        "CRD climcpinstances.cli-mcp.redhat.com",
        "Metacontroller cli-mcp-system/metacontroller",
        "CompositeController cli-mcp",
        "admission policies",
        "CliMcpInstance team/shell",
    ]


@pytest.mark.parametrize(
    ("changed", "level", "text"),
    [
        ({"version": (1, 29)}, Level.WARNING, "not in this Kubernetes"),
        ({"definitions": ()}, Level.PROBLEM, "missing"),
        ({"definitions": (other_definition(),)}, Level.PROBLEM, "of another version"),
        ({"workloads": ()}, Level.PROBLEM, "no Deployment or StatefulSet"),
        ({"workloads": (workload(RELEASED, 0),)}, Level.PROBLEM, "no pod of it is ready"),
        ({"workloads": (workload("metacontroller:v4.17.1"),)}, Level.PROBLEM, "4.17.1 is too old"),
        ({"workloads": (workload("metacontroller:4.9.30-distroless"),)}, Level.PROBLEM, "4.9.30 is too old"),
        ({"workloads": (workload("local/metacontroller:1"),)}, Level.WARNING, "cannot be told"),
        ({"workloads": (workload("local/metacontroller@sha256:1"),)}, Level.WARNING, "cannot be told"),
        (
            {"workloads": (workload(RELEASED, 1, "--zap-log-level=5"),)},
            Level.PROBLEM,
            "logs the contents of Secrets",
        ),
        ({"composite_controllers": ()}, Level.PROBLEM, "Metacontroller does nothing"),
        ({"policies": POLICIES[1:]}, Level.PROBLEM, "cli-mcp-sandbox-class missing"),
        ({"bindings": BINDINGS[1:]}, Level.PROBLEM, "cli-mcp-sandbox-class missing"),
        (
            {"bindings": tuple(binding(it, "Audit") for it in ADMISSION_POLICIES)},
            Level.PROBLEM,
            "not enforced",
        ),
        ({"instances": (instance("SecretsNotFound", "False"),)}, Level.PROBLEM, "not Ready, SecretsNotFound"),
        ({"instances": (instance("IsolationNotEnforced", "False"),)}, Level.PROBLEM, "IsolationNotEnforced"),
        ({"instances": (instance("CredentialExpiring"),)}, Level.WARNING, "CredentialExpiring"),
        ({"instances": (instance(status={}),)}, Level.PROBLEM, "the hooks have not answered"),
        ({"instances": (instance(status={"observedGeneration": 1}),)}, Level.PROBLEM, "not answered"),
        (
            {"instances": (instance(spec={"sandbox": {"isolationTest": False}}),)},
            Level.WARNING,
            "does not test whether",
        ),
        (
            {
                "instances": (
                    instance(
                        metadata={"name": "shell", "namespace": "team", "deletionTimestamp": "2026-01-01"}
                    ),
                )
            },
            Level.WARNING,
            "being deleted since 2026-01-01",
        ),
    ],
)
def test_what_is_wrong_is_named_with_a_remedy(changed: dict[str, Any], level: Level, text: str) -> None:
    (finding,) = found(replace(GOOD, **changed))
    assert finding.level is level
    assert text in finding.text
    assert finding.remedy or "cannot be told" in finding.text


def test_a_kubernetes_that_cannot_say_who_calls_is_too_old() -> None:
    problem, warning = found(replace(GOOD, version=(1, 27)))
    assert (problem.level, problem.text) == (Level.PROBLEM, "1.27 is too old to say who calls")
    assert (warning.level, warning.subject) == (Level.WARNING, "admission policies")


def test_a_definition_is_compared_as_the_api_server_keeps_it() -> None:
    assert found(replace(GOOD, definitions=(stored_definition(),))) == []


def test_no_instance_yet_is_no_problem() -> None:
    assert found(replace(GOOD, instances=())) == []


def test_what_the_admin_may_not_read_is_said_and_nothing_is_concluded_from_it() -> None:
    unread = Unread("deployments.apps is forbidden")
    facts = Facts(GOOD.version, unread, unread, unread, unread, BINDINGS, unread)
    assert [(finding.level, finding.text) for finding in found(facts)] == [
        (Level.WARNING, "not checked: deployments.apps is forbidden")
    ] * 5


def test_the_policies_are_those_of_the_configuration() -> None:
    manifests = [it for path in ADMISSION.glob("*.yaml") for it in yaml.safe_load_all(path.read_text())]
    policies = [it["metadata"]["name"] for it in manifests if it["kind"] == "ValidatingAdmissionPolicy"]
    assert sorted(policies) == sorted(ADMISSION_POLICIES)
