"""The children: labels, security, environment, and what makes a new pool hash."""

import dataclasses
from typing import Any

import pytest

from cli_mcp import names
from cli_mcp.api.instance import InstanceSpec
from hooks.children import CHILDREN, Inputs, fixed_children
from hooks.routes import Routes
from hooks.sandbox import sandbox_template
from hooks.settings import CallerAuthentication, Settings
from hooks.wire import Manifest, Parent
from tests.hooks.world import ALLOWLIST, SETTINGS

PARENT = Parent({"metadata": {}}, "demo", "ns", "uid-1", 1)
INPUTS = Inputs(
    parent=PARENT,
    spec=InstanceSpec.model_validate({"proxy": ALLOWLIST}),
    settings=SETTINGS,
    routes=Routes("{}", "kubeconfig", (), complete=True),
    dns_addresses=["169.254.20.10/32"],
    proxy_address="10.96.0.20",
    session_keys=[],
    ca_certificates="certificates",
)
SSH = {"routes": [{"username": "ann", "authorizedKeysSecret": "keys.of.ann"}]}
OPENSHIFT = Settings(SETTINGS.image, SETTINGS.sandbox_image, "openshift")


def inputs(spec: dict[str, Any] | None = None, **changes: Any) -> Inputs:
    read = InstanceSpec.model_validate({"proxy": ALLOWLIST} | (spec or {}))
    return dataclasses.replace(INPUTS, spec=read, **changes)


def pod_specs(given: Inputs) -> dict[str, Manifest]:
    found = sandbox_template(given)
    assert found is not None
    specs = {"sandbox": found.pod["spec"]}
    for child in fixed_children(given):
        if child["kind"] == "Deployment":
            specs[child["metadata"]["name"]] = child["spec"]["template"]["spec"]
    return specs


def test_every_child_is_in_the_table_once_and_says_whose_it_is() -> None:
    children = fixed_children(inputs({"replicas": 2, "ssh": SSH}))
    assert len(children) == len(CHILDREN)
    for child, entry in zip(children, CHILDREN, strict=True):
        assert (child["apiVersion"], child["kind"]) == (entry.kind.api_version, entry.kind.kind)
        assert child["metadata"]["name"] == entry.name(PARENT.names)
        assert child["metadata"]["namespace"] == "ns"
        labels = child["metadata"]["labels"]
        assert labels[names.LABEL_CONTROLLER_UID] == "uid-1"
        assert labels[names.LABEL_INSTANCE] == "demo"


@pytest.mark.parametrize(("how", "flags"), [("self-review", 0), ("token-review", 1)])
def test_the_installation_says_how_servers_authenticate_callers(
    how: CallerAuthentication, flags: int
) -> None:
    given = inputs(settings=dataclasses.replace(SETTINGS, caller_authentication=how))
    (container,) = pod_specs(given)[PARENT.names.server]["containers"]
    assert container["args"].count("--token-review") == flags


@pytest.mark.parametrize("platform", [SETTINGS, OPENSHIFT], ids=["generic", "openshift"])
@pytest.mark.parametrize("image", ["", "registry.example.com/tools:1"], ids=["own image", "admin's image"])
def test_every_pod_meets_the_restricted_pod_security_level(platform: Settings, image: str) -> None:
    """https://kubernetes.io/docs/concepts/security/pod-security-standards/#restricted"""
    for name, spec in pod_specs(inputs({"sandbox": {"image": image}, "ssh": SSH}, settings=platform)).items():
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert ("runAsUser" in spec["securityContext"]) is (platform is SETTINGS), name
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec)
        allowed = {"name", "emptyDir", "secret", "configMap", "persistentVolumeClaim"}
        assert all(set(volume) <= allowed for volume in spec["volumes"])
        for it in [*spec["containers"], *spec.get("initContainers", ())]:
            assert it["securityContext"]["allowPrivilegeEscalation"] is False
            assert it["securityContext"]["capabilities"] == {"drop": ["ALL"]}
            assert it["securityContext"]["readOnlyRootFilesystem"] is True
            assert "privileged" not in it["securityContext"]
            assert not any("hostPort" in port for port in it.get("ports", ()))


def test_on_openshift_the_platform_makes_the_servers_certificate() -> None:
    def annotations(settings: Settings) -> Manifest:
        services = [it for it in fixed_children(inputs(settings=settings)) if it["kind"] == "Service"]
        found: Manifest = services[0]["metadata"].get("annotations", {})
        return found

    assert annotations(OPENSHIFT) == {
        "service.beta.openshift.io/serving-cert-secret-name": "cli-mcp-demo-tls"
    }
    assert annotations(SETTINGS) == {}
