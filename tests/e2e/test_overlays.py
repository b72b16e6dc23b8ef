"""What `kubectl kustomize` makes of the overlays. Needs kubectl, and no cluster."""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from cli_mcp import __version__
from hooks.settings import DEFAULT_IMAGE, DEFAULT_SANDBOX_IMAGE
from tests.e2e.operator import ROOT

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(shutil.which("kubectl") is None, reason="no kubectl")

OVERLAYS = ("generic", "openshift", "existing-metacontroller")
METACONTROLLER = "ghcr.io/metacontroller/metacontroller"
Objects = dict[tuple[str, str], dict[str, Any]]


def built(folder: Path) -> Objects:
    """By kind and name."""
    done = subprocess.run(["kubectl", "kustomize", str(folder)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return {(it["kind"], it["metadata"]["name"]): it for it in yaml.safe_load_all(done.stdout)}


def overlay(name: str) -> Objects:
    return built(ROOT / "config/overlays" / name)


def pod_of(objects: Objects) -> dict[str, Any]:
    (deployment,) = (it for (kind, _), it in objects.items() if kind == "Deployment")
    pod: dict[str, Any] = deployment["spec"]["template"]["spec"]
    return pod


def container_of(objects: Objects, name: str) -> dict[str, Any]:
    containers: dict[str, dict[str, Any]] = {it["name"]: it for it in pod_of(objects)["containers"]}
    return containers[name]


def hooks_of(objects: Objects) -> dict[str, Any]:
    return container_of(objects, "hooks")


def environment(container: dict[str, Any]) -> dict[str, str]:
    return {it["name"]: it["value"] for it in container["env"]}


@pytest.mark.parametrize("name", OVERLAYS)
def test_an_overlay_has_all_that_the_operator_needs(name: str) -> None:
    objects = overlay(name)
    assert ("CustomResourceDefinition", "climcpinstances.cli-mcp.redhat.com") in objects
    assert ("CompositeController", "cli-mcp") in objects
    assert ("Namespace", "cli-mcp-system") in objects
    kinds = {kind for kind, _ in objects}
    assert {"NetworkPolicy", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"} <= kinds


@pytest.mark.parametrize("name", OVERLAYS)
def test_everything_is_labelled_so_that_it_is_found_again(name: str) -> None:
    for key, made in overlay(name).items():
        assert made["metadata"]["labels"]["app.kubernetes.io/part-of"] == "cli-mcp", key


@pytest.mark.parametrize("name", OVERLAYS)
def test_images_are_those_of_this_version(name: str) -> None:
    hooks = hooks_of(overlay(name))
    assert hooks["image"] == DEFAULT_IMAGE
    assert DEFAULT_IMAGE.endswith(f":{__version__}")
    found = environment(hooks)
    assert (found["CLI_MCP_IMAGE"], found["CLI_MCP_SANDBOX_IMAGE"]) == (DEFAULT_IMAGE, DEFAULT_SANDBOX_IMAGE)


def test_metacontroller_and_its_crds_are_of_one_release() -> None:
    name, _, tag = container_of(overlay("generic"), "metacontroller")["image"].partition(":")
    assert name == METACONTROLLER
    assert f"/{tag}/" in (ROOT / "metacontroller/crds/kustomization.yaml").read_text()


def test_another_registry_reaches_containers_and_the_pods_that_the_hooks_make(tmp_path: Path) -> None:
    """By one edit of config/images."""
    for folder in ("config", "metacontroller"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    file = tmp_path / "config/images/kustomization.yaml"
    other = yaml.safe_load(file.read_text())
    for image in other["images"]:
        image["newName"] = image["name"].replace("quay.io", "registry.example.com:5000")
    file.write_text(yaml.safe_dump(other))
    hooks = hooks_of(built(tmp_path / "config/overlays/generic"))
    images = {hooks["image"], *environment(hooks).values()} - {"generic"}
    tag = f":{__version__}"
    assert images == {f"registry.example.com:5000/cli-mcp/{it}{tag}" for it in ("cli-mcp", "sandbox")}


def test_only_metacontroller_holds_a_credential() -> None:
    pod = pod_of(overlay("generic"))
    assert pod["automountServiceAccountToken"] is False
    mounts = {it["name"]: {mount["name"] for mount in it["volumeMounts"]} for it in pod["containers"]}
    assert ["token" in mounts["metacontroller"], "token" in mounts["hooks"]] == [True, False]


def test_openshift_chooses_user_ids_itself() -> None:
    pod = pod_of(overlay("openshift"))
    assert [it["securityContext"].get("runAsUser") for it in pod["containers"]] == [None, None]
    assert environment(hooks_of(overlay("openshift")))["CLI_MCP_PLATFORM"] == "openshift"


def test_an_existing_metacontroller_gets_no_second_one_and_calls_by_tls_with_a_token() -> None:
    objects = overlay("existing-metacontroller")
    assert [it["name"] for it in pod_of(objects)["containers"]] == ["hooks"]
    for hook in objects["CompositeController", "cli-mcp"]["spec"]["hooks"].values():
        webhook = hook["webhook"]
        assert webhook["url"].startswith("https://cli-mcp-hooks.cli-mcp-system:8443/")
        assert webhook["caBundle"]["secretRef"]["name"] == "cli-mcp-hooks-tls"
        assert webhook["authorization"]["secretRef"]["name"] == "cli-mcp-hooks-token"
