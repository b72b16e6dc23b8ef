"""Files as admins have them: the sample, and one for the Go operator, in whose place this one comes."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import pytest
import yaml

from tests.e2e.instances import INVESTIGATOR, SMALL, Instance, kubeconfig, merged, new_namespace
from tests.e2e.operator import ROOT, Object, kubectl

if TYPE_CHECKING:
    from collections.abc import Iterator

READY_SECONDS = 60
SAMPLE = (ROOT / "config/samples/kubernetes.yaml").read_text()
# With every field that its API has.
OF_THE_GO_OPERATOR = """
apiVersion: cli-mcp.redhat.com/v1alpha1
kind: CliMcpInstance
metadata:
  name: cluster-shell
spec:
  replicas: 1
  sandbox:
    image: localhost/sandbox:e2e
    imagePullPolicy: IfNotPresent
    idleTimeout: 1h30m
    warmPoolSize: 1
    resources:
      requests: {cpu: 50m, memory: 64Mi}
      limits: {cpu: "1", memory: 512Mi}
    env:
      - name: TEAM
        value: sre
  serverContainer:
    imagePullPolicy: IfNotPresent
    resources:
      requests: {cpu: 50m, memory: 64Mi}
  proxy:
    targets:
      - type: kubernetes
        secretName: admin-made-kubeconfig
      - type: allowlist
        domains:
          - pypi.org
          - mirror.example.com:8443
"""
FILES = {"the sample": SAMPLE, "of the Go operator": OF_THE_GO_OPERATOR}


@pytest.fixture(scope="module", params=FILES)
def ready(
    system: None, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Instance]:
    """What is in the file, with requests for a small node and an image that the cluster has."""
    found: Object = yaml.safe_load(FILES[request.param])
    spec = merged(found["spec"], SMALL)
    if "image" in spec["sandbox"]:
        spec["sandbox"]["image"] = os.environ["E2E_SANDBOX_IMAGE"]
    with new_namespace(tmp_path_factory.mktemp("files"), "files") as instance:
        instance.name = found["metadata"]["name"]
        begin = time.monotonic()
        instance.create(spec)
        for target in spec["proxy"]["targets"]:
            if "secretName" in target:
                text = yaml.safe_dump(kubeconfig(instance.namespace, instance.token(INVESTIGATOR, "1000h")))
                instance.make_secret(target["secretName"], {"kubeconfig": text})
        instance.wait_for("Ready", READY_SECONDS)
        print(f"\n{request.param}: Ready {time.monotonic() - begin:.1f} s after it was applied")
        yield instance


def test_its_pool_is_as_large_as_it_says(ready: Instance) -> None:
    status = ready.instance()["status"]
    expected = ready.spec["sandbox"]["warmPoolSize"]
    assert (status["warmPoolReady"], status["warmPoolDesired"]) == (expected, expected)
    assert status["clientServiceAccount"] == f"cli-mcp-{ready.name}-client"
    assert len(ready.component("server")) == ready.spec["replicas"]


async def test_its_client_is_told_what_can_be_reached_and_reaches_it(ready: Instance) -> None:
    kubectl("-n", ready.namespace, "create", "configmap", "seen", "--from-literal=answer=42")
    async with ready.client().sdk("s1") as client:
        (bash,) = (await client.list_tools()).tools
        assert bash.description is not None
        assert "kubernetes.default.svc:443 (Kubernetes; the credential is put in), pypi.org:443" in (
            bash.description
        )
        result = await client.call_tool("bash", {"command": "kubectl get configmaps -o name"})
        assert result.structured_content is not None
        assert "configmap/seen" in result.structured_content["stdout"].splitlines()
        refused = await client.call_tool("bash", {"command": "kubectl get pods"})
        assert refused.structured_content is not None
        assert f"{ready.namespace}:{INVESTIGATOR}" in refused.structured_content["stderr"]


def test_its_variables_are_in_the_shell(ready: Instance) -> None:
    (variable,) = ready.spec["sandbox"]["env"]
    answer = ready.client().bash("s1", f'printf %s "${variable["name"]}"')
    assert answer.stdout == variable["value"]
