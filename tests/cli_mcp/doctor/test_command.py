"""The doctor as a person meets it, on an API server in memory and without one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import yaml

from cli_mcp.crd import custom_resource_definition
from cli_mcp.doctor.command import main
from tests.e2e.background import in_background
from tests.e2e.kube_client import KubeClient
from tests.kube.server import Server

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def api() -> Iterator[KubeClient]:
    with in_background(Server().running()) as server:
        yield KubeClient(server.url, "team")


def kubeconfig(folder: Path, url: str) -> str:
    path = folder / "kubeconfig"
    config = {
        "current-context": "it",
        "clusters": [{"name": "it", "cluster": {"server": url}}],
        "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
        "users": [{"name": "it", "user": {}}],
    }
    path.write_text(yaml.safe_dump(config))
    return str(path)


def test_an_empty_cluster_lacks_everything(
    api: KubeClient, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--kubeconfig", kubeconfig(tmp_path, api.url)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert "problem  CRD climcpinstances.cli-mcp.redhat.com: missing" in lines
    assert "         kubectl apply --server-side -k config/crd" in lines


def test_what_is_there_is_found(api: KubeClient, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert api.create(custom_resource_definition()).code == 201
    assert main(["--kubeconfig", kubeconfig(tmp_path, api.url)]) == 1
    assert "CRD climcpinstances.cli-mcp.redhat.com: of this version" in capsys.readouterr().out


def test_without_a_kubeconfig_it_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--kubeconfig", str(tmp_path / "none")]) == 2
    assert "no usable kubeconfig" in capsys.readouterr().err


def test_without_an_answer_it_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--kubeconfig", kubeconfig(tmp_path, "http://127.0.0.1:9")]) == 2
    assert "does not answer" in capsys.readouterr().err
