"""`cli-mcp render`."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from hooks import render_command
from hooks.preview import NOT_SHOWN
from tests.hooks.world import ALLOWLIST, NAMESPACE, ROOT, World

INSTANCE = """
apiVersion: cli-mcp.redhat.com/v1alpha1
kind: CliMcpInstance
metadata: {name: demo, namespace: default, uid: %s}
spec:
  sandbox: {warmPoolSize: 1}
  proxy: {targets: [{type: allowlist, domains: [pypi.org, "registry.example.com:5000"]}]}
"""
SAMPLES = sorted((ROOT / "config/samples").glob("*.yaml"))
KINDS = (
    "configmaps",
    "secrets",
    "services",
    "serviceaccounts",
    "deployments.apps",
    "pods",
    "networkpolicies.networking.k8s.io",
    "roles.rbac.authorization.k8s.io",
    "rolebindings.rbac.authorization.k8s.io",
    "endpointslices.discovery.k8s.io",
)


def written(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


def documents(text: str) -> list[dict[str, Any]]:
    return [document for document in yaml.safe_load_all(text) if document]


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda path: path.stem)
def test_every_sample_can_be_rendered_with_its_sandboxes(
    sample: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert render_command.main([str(sample)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("# Gate: open\n")
    assert {"Pod", "Deployment", "NetworkPolicy"} <= {child["kind"] for child in documents(out)}


def test_no_secret_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert render_command.main([written(tmp_path / "i", INSTANCE % "u")]) == 0
    secrets = [child for child in documents(capsys.readouterr().out) if child["kind"] == "Secret"]
    assert len(secrets) == 2
    assert {value for secret in secrets for value in secret["data"].values()} == {NOT_SHOWN}


def test_what_was_observed_decides_about_the_gate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    world = World()
    world.admin_secrets()
    world.apply({"sandbox": {"warmPoolSize": 1}, "proxy": ALLOWLIST})
    world.run()
    uid = world.get("climcpinstances.cli-mcp.redhat.com", "demo")["metadata"]["uid"]
    objects = [it for kind in KINDS for it in world.api.objects(kind, NAMESPACE)]
    instance = written(tmp_path / "i", INSTANCE % uid)
    observed = written(tmp_path / "o", json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))
    assert render_command.main([instance, "--observed", observed]) == 0
    assert capsys.readouterr().out.startswith("# Gate: open\n# Ready: ")
    without = [it for it in objects if it["kind"] != "NetworkPolicy"]
    observed = written(tmp_path / "o", yaml.safe_dump_all(without))
    assert render_command.main([instance, "--observed", observed]) == 0
    out = capsys.readouterr().out
    assert "# Gate: closed: NetworkPolicy cli-mcp-demo-sandbox is not there yet\n# Ready: False" in out


def test_nothing_observed_is_the_first_sync(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    assert render_command.main([written(tmp_path / "i", INSTANCE % "u"), "--observed", "-"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("# Gate: closed: NetworkPolicy")
    assert "Pod" not in {child["kind"] for child in documents(out)}


@pytest.mark.parametrize(
    ("text", "status", "message"),
    [
        ("a: [", 2, "line"),
        ("", 1, "has 0 instances"),
        (INSTANCE % "u" + "---" + INSTANCE % "v", 1, "has 2 instances"),
        ((INSTANCE % "u").replace("warmPoolSize: 1", "warmPoolSize: -1"), 1, "spec.sandbox.warmPoolSize"),
    ],
)
def test_what_cannot_be_rendered_is_explained(
    text: str, status: int, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert render_command.main([written(tmp_path / "i", text)]) == status
    assert message in capsys.readouterr().err


BARE_POD = "{kind: Pod, apiVersion: v1, metadata: {name: p, namespace: default, ownerReferences: [{uid: u}]}}"


@pytest.mark.parametrize(("observed", "status"), [("[1]", 1), ("a: [", 2), (BARE_POD, 1)])
def test_observed_objects_that_are_none_are_explained(
    observed: str, status: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    instance = written(tmp_path / "i", INSTANCE % "u")
    assert render_command.main([instance, "--observed", written(tmp_path / "o", observed)]) == status
    assert capsys.readouterr().err.startswith("cli-mcp render: ")


def test_a_file_that_is_not_there_is_explained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert render_command.main([str(tmp_path / "missing")]) == 2
    assert "cannot be read" in capsys.readouterr().err
