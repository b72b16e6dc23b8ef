"""The installation: Metacontroller has the rights that it needs and no others, and drives all kinds of
children."""

from typing import Any

import pytest
import yaml

from cli_mcp import names
from hooks import main, rbac, settings
from hooks.wire import CHILD_KINDS
from tests.hooks.world import ROOT

METACONTROLLER = ROOT / "metacontroller"


def manifests(path: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((METACONTROLLER / path).read_text()))


def controller() -> dict[str, Any]:
    (manifest,) = manifests("controller/composite-controller.yaml")
    return manifest


def test_the_role_is_the_one_that_is_derived() -> None:
    assert (METACONTROLLER / "install/role.yaml").read_text() == rbac.as_yaml()


def test_the_role_escalates_nothing() -> None:
    for rule in rbac.metacontroller_role()["rules"]:
        assert "*" not in rule["apiGroups"] + rule["resources"] + rule["verbs"]
        assert not {"escalate", "bind", "impersonate", "deletecollection"} & set(rule["verbs"])
        assert "pods/exec" not in rule["resources"]


@pytest.mark.parametrize(
    ("group", "resource", "verbs"),
    [
        ("", "pods", {"create", "delete", "get", "list", "patch", "update", "watch"}),
        ("", "secrets", {"create", "delete", "get", "list", "update", "watch"}),
        ("cli-mcp.redhat.com", "climcpinstances/mcp", {"create", "delete", "get"}),
        ("cli-mcp.redhat.com", "climcpinstances/sandboxes", {"claim"}),
        ("cli-mcp.redhat.com", "climcpinstances/status", {"update"}),
        ("discovery.k8s.io", "endpointslices", {"list", "watch"}),
        ("", "namespaces", {"list", "watch"}),
        ("metacontroller.k8s.io", "compositecontrollers", {"list", "watch"}),
    ],
)
def test_the_role_has_what_metacontroller_does_and_what_child_roles_grant(
    group: str, resource: str, verbs: set[str]
) -> None:
    rules = rbac.metacontroller_role()["rules"]
    found = [rule for rule in rules if group in rule["apiGroups"] and resource in rule["resources"]]
    assert [set(rule["verbs"]) for rule in found] == [verbs]


def test_the_composite_controller_names_every_kind_of_child_with_its_strategy() -> None:
    rules = controller()["spec"]["childResources"]
    assert [(it["apiVersion"], it["resource"], it["updateStrategy"]["method"]) for it in rules] == [
        (kind.api_version, kind.resource, kind.update_strategy) for kind in CHILD_KINDS
    ]


def test_the_composite_controller_drives_our_hooks_in_version_2() -> None:
    spec = controller()["spec"]
    assert spec["generateSelector"] is True
    assert spec["parentResource"] == {
        "apiVersion": names.API_VERSION,
        "resource": names.PLURAL,
        "ignoreStatusChanges": True,
    }
    for hook in ("sync", "finalize", "customize"):
        assert spec["hooks"][hook]["version"] == "v2"
        assert spec["hooks"][hook]["webhook"]["url"] == f"http://{main.DEFAULT_LISTEN}/{hook}"


def test_metacontroller_takes_the_controllers_that_carry_our_label_and_no_others() -> None:
    (deployment,) = manifests("install/deployment.yaml")
    metacontroller, hooks = deployment["spec"]["template"]["spec"]["containers"]
    labels = controller()["metadata"]["labels"]
    assert f"--target-label-selector={'='.join(*labels.items())}" in metacontroller["args"]
    assert "--zap-log-level=2" in metacontroller["args"], "above 4 it logs the contents of Secrets"
    (leases,) = [it for it in manifests("install/leader-election.yaml") if it["kind"] == "Role"]
    assert f"--leader-election-id={leases['rules'][1]['resourceNames'][0]}" in metacontroller["args"]
    assert installed_image(hooks["image"]) == settings.DEFAULT_IMAGE


def test_the_token_is_mounted_into_metacontroller_alone() -> None:
    (deployment,) = manifests("install/deployment.yaml")
    pod = deployment["spec"]["template"]["spec"]
    assert pod["automountServiceAccountToken"] is False
    mounts = {it["name"]: {mount["name"] for mount in it["volumeMounts"]} for it in pod["containers"]}
    assert mounts == {"metacontroller": {"token"}, "hooks": {"tmp"}}


def test_binary_and_crds_of_metacontroller_are_of_one_release() -> None:
    (deployment,) = manifests("install/deployment.yaml")
    (kustomization,) = manifests("crds/kustomization.yaml")
    image = installed_image(deployment["spec"]["template"]["spec"]["containers"][0]["image"])
    assert f"/{image.rpartition(':')[2]}/" in kustomization["resources"][0]


def installed_image(name: str) -> str:
    """With the tag that the overlays give it."""
    component = yaml.safe_load((ROOT / "config/images/kustomization.yaml").read_text())
    (tag,) = [it["newTag"] for it in component["images"] if it["name"] == name]
    return f"{name}:{tag}"
