"""From `kubectl apply` of one file to a command of a session that reads the cluster."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from tests.e2e.instances import INVESTIGATOR
from tests.e2e.operator import kubectl
from tests.hooks.world import KUBERNETES

if TYPE_CHECKING:
    from tests.e2e.instances import Instance

READY_SECONDS = 60


@pytest.fixture(scope="module")
def ready(instance: Instance) -> Instance:
    begin = time.monotonic()
    instance.create({"replicas": 2, "sandbox": {"warmPoolSize": 1}, "proxy": KUBERNETES})
    instance.wait_for("Ready", READY_SECONDS)
    print(f"\nReady {time.monotonic() - begin:.1f} s after it was applied")
    return instance


def test_a_caller_reads_what_the_investigation_identity_may_read(ready: Instance) -> None:
    kubectl("-n", ready.namespace, "create", "configmap", "seen", "--from-literal=answer=42")
    answer = ready.client().bash("s1", "kubectl get configmaps -o name")
    assert answer.exit_code == 0, answer.text
    assert "configmap/seen" in answer.stdout.splitlines()


def test_what_it_may_not_read_it_does_not_see(ready: Instance) -> None:
    answer = ready.client().bash("s1", "kubectl get pods")
    assert answer.exit_code == 1
    assert f"system:serviceaccount:{ready.namespace}:{INVESTIGATOR}" in answer.structured["stderr"]


def test_the_shells_own_kubeconfig_holds_no_credential(ready: Instance) -> None:
    """Neither does anything else in reach: with it the API server would know the caller."""
    answer = ready.client().bash("s1", 'cat "$KUBECONFIG"; env; ls /var/run/secrets 2>&1')
    assert "proxy-managed-token" in answer.stdout
    assert "eyJ" not in answer.stdout, "how every JWT begins"
    assert "No such file" in answer.stdout


async def test_the_mcp_library_lists_and_calls_the_tool(ready: Instance) -> None:
    async with ready.client().sdk("s2") as client:
        tools = await client.list_tools()
        assert [it.name for it in tools.tools] == ["bash"]
        await client.call_tool("bash", {"command": "WHO=me"})
    async with ready.client().sdk("s2") as client:
        result = await client.call_tool("bash", {"command": 'echo "still $WHO"'})
        assert result.structured_content is not None
        assert result.structured_content["stdout"] == "still me\n"


def test_every_replica_continues_the_session(ready: Instance) -> None:
    first, second = ready.replicas()
    first.bash("s3", "cd /tmp; COUNT=1")
    assert second.bash("s3", 'echo "$COUNT in $PWD"').stdout == "1 in /tmp\n"
    assert len(ready.session_pods("s3")) == 1
