"""The CRD on a real API server says of every instance what the table says.

Applies the CRD to the cluster that KUBECONFIG names and leaves it there (deleting it would delete everybody's
instances); the instances themselves are dry runs.
"""

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
import yaml

from cli_mcp.api.document import parse_instance
from cli_mcp.names import API_VERSION, KIND, PLURAL

pytestmark = pytest.mark.skipif("KUBECONFIG" not in os.environ, reason="KUBECONFIG names no cluster")

ROOT = Path(__file__).parents[2]
CRD_FILE = ROOT / "config" / "crd" / "climcpinstances.yaml"
SAMPLES = sorted((ROOT / "config" / "samples").glob("*.yaml"))
CASES: list[dict[str, Any]] = yaml.safe_load((ROOT / "tests/data/instances/verdicts.yaml").read_text())
STARTUP_SECONDS = 30


def kubectl(*arguments: str) -> str:
    return subprocess.run(["kubectl", *arguments], capture_output=True, text=True, check=True).stdout


@pytest.fixture(scope="module")
def api() -> Iterator[str]:
    """The URL of the API server, by way of a proxy that authenticates as KUBECONFIG says."""
    kubectl("apply", "--server-side", "--force-conflicts", "-f", str(CRD_FILE))
    kubectl("wait", "--for=condition=Established", f"--timeout={STARTUP_SECONDS}s", "-f", str(CRD_FILE))
    command = ["kubectl", "proxy", "--port=0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as proxy:
        try:
            assert proxy.stdout is not None
            # Starting to serve on 127.0.0.1:41234
            yield f"http://{proxy.stdout.readline().split()[-1]}"
        finally:
            proxy.terminate()


def create(api: str, given: dict[str, Any]) -> requests.Response:
    """What the API server says to a new instance; nothing is stored."""
    defaults = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": "shell"}}
    return requests.post(
        f"{api}/apis/{API_VERSION}/namespaces/default/{PLURAL}",
        params={"dryRun": "All", "fieldValidation": "Strict"},
        json=defaults | {key: given[key] for key in (*defaults, "spec") if key in given},
        timeout=60,
    )


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_the_api_server_says_what_the_table_says(case: dict[str, Any], api: str) -> None:
    response = create(api, case)
    verdict = case.get("crd", "refuses" if "error" in case else "accepts")
    if verdict == "accepts":
        assert response.status_code == 201, response.text
    else:
        assert response.status_code in (400, 422), response.text
        assert case.get("crd_error", case["error"]) in response.json()["message"]


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda path: path.name)
def test_the_samples_are_accepted(sample: Path, api: str) -> None:
    assert create(api, yaml.safe_load(sample.read_text())).status_code == 201


@pytest.mark.parametrize(
    "case", [case for case in CASES if "error" not in case], ids=lambda case: case["name"]
)
def test_what_is_stored_means_the_same_as_what_was_written(case: dict[str, Any], api: str) -> None:
    stored = create(api, case).json()
    assert parse_instance(stored).spec == parse_instance(stored | {"spec": case["spec"]}).spec


def test_an_instance_with_every_list_full_stays_within_the_cost_budget(api: str) -> None:
    label = "b" * 60
    targets = [
        {
            "type": "allowlist",
            "domains": [f"a{target}x{domain}.{label}.{label}.{label}:8443" for domain in range(16)],
        }
        for target in range(8)
    ]
    resources = {
        kind: {"cpu": "1", "memory": "1Gi", **{f"example.com/device-{n}": "1" for n in range(14)}}
        for kind in ("requests", "limits")
    }
    sandbox = {
        "env": [{"name": f"NAME_{n}", "value": "x" * 4000} for n in range(256)],
        "tolerations": [{"key": f"key-{n}", "value": "v", "effect": "NoSchedule"} for n in range(64)],
        "imagePullSecrets": [{"name": f"secret-{n}"} for n in range(16)],
        "nodeSelector": {f"key-{n}": "v" for n in range(32)},
        "resources": resources,
        "maxLifetime": "1h" * 30,
        "workspace": {"persistent": True, "size": "1Gi", "retain": "1h"},
    }
    routes = [{"username": f"user-{n}-" + "u" * 50, "authorizedKeysSecret": "keys"} for n in range(64)]
    bundle = "-----BEGIN CERTIFICATE-----\n" + "x" * 200_000
    proxy = {"targets": targets, "upstream": {"httpProxy": "http://proxy:3128", "caBundle": bundle}}
    spec = {"sandbox": sandbox, "proxy": proxy, "ssh": {"routes": routes}}
    response = create(api, {"spec": spec})
    assert response.status_code == 201, response.text


def test_kubectl_explain_reads_the_descriptions(api: str) -> None:
    deadline = time.monotonic() + STARTUP_SECONDS
    while True:  # a new CRD takes a few seconds to reach discovery
        explained = subprocess.run(["kubectl", "explain", "cmi.spec.sandbox"], capture_output=True, text=True)
        if explained.returncode == 0 or time.monotonic() > deadline:
            break
        time.sleep(0.5)
    assert "idleTimeout <string> How long a session may be idle" in " ".join(explained.stdout.split())
