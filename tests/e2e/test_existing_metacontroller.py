"""The overlay for a Metacontroller that is there already: hooks behind TLS and a bearer token."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest
import requests
import yaml

from tests.e2e.cluster import Cluster, new_cluster
from tests.e2e.operator import (
    NAMESPACE,
    NEEDS_METACONTROLLER,
    ROOT,
    Object,
    Operator,
    apply,
    installed,
    loopback_controller,
)
from tests.hooks.world import ALLOWLIST

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = NEEDS_METACONTROLLER

TOKEN = "a-long-random-text"
SERVICE = "cli-mcp-hooks.cli-mcp-system:8443"


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """The folder of a certificate that is its own authority, for hooks on this machine."""
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=hooks"),
            *("-addext", "subjectAltName=IP:127.0.0.1", "-keyout", "tls.key", "-out", "tls.crt"),
        ],
        cwd=tmp_path,
        check=True,
        capture_output=True,
    )
    (tmp_path / "token").write_text(TOKEN)
    return tmp_path


def overlaid_controller(port: int) -> Object:
    """The CompositeController with the patch of the overlay, for hooks on a port of this machine."""
    patch_file = ROOT / "config/overlays/existing-metacontroller/webhooks.yaml"
    patch = yaml.safe_load(patch_file.read_text().replace(SERVICE, f"127.0.0.1:{port}"))
    controller = loopback_controller(port)
    for name, hook in patch["spec"]["hooks"].items():
        controller["spec"]["hooks"][name]["webhook"] |= hook["webhook"]
    return controller


def secret(name: str, data: dict[str, str]) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "stringData": data,
    }


@pytest.fixture
def operator(certificate: Path) -> Iterator[Operator]:
    def controller(port: int) -> Object:
        apply(
            secret("cli-mcp-hooks-tls", {"ca.crt": (certificate / "tls.crt").read_text()}),
            secret("cli-mcp-hooks-token", {"token": TOKEN}),
        )
        return overlaid_controller(port)

    files = {"--tls-cert": "tls.crt", "--tls-key": "tls.key", "--token-file": "token"}
    arguments = tuple(text for flag, file in files.items() for text in (flag, str(certificate / file)))
    with installed(certificate, controller, arguments) as running:
        yield running


@pytest.fixture
def cluster(operator: Operator) -> Iterator[Cluster]:
    with new_cluster() as cluster:
        yield cluster


def test_an_instance_becomes_ready_by_tls_and_token(
    cluster: Cluster, operator: Operator, certificate: Path
) -> None:
    cluster.apply({"sandbox": {"warmPoolSize": 1}, "proxy": ALLOWLIST})
    cluster.wait_for("Ready")
    assert len(cluster.pods()) == 1
    url = f"https://127.0.0.1:{operator.port}/sync"
    stranger = requests.post(url, "{}", verify=str(certificate / "tls.crt"), timeout=30)
    assert stranger.status_code == 401
