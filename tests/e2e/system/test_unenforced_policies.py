"""Policies that do not hold, and others' policies that let sandboxes out: no command runs, and it is said."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from cli_mcp import names
from tests.e2e.cluster_faults import NEEDS_FAULTS, unenforced_policies
from tests.e2e.operator import apply, eventually, get, kubectl
from tests.hooks.world import ALLOWLIST

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.e2e.instances import Instance
    from tests.e2e.operator import Object

# 15 s of the agent's own test, and the start of server, proxy and pods before it.
FAILED_SECONDS = 120
# The kubelet starts a container that failed again after at most 5 minutes, here much sooner.
RECOVERED_SECONDS = 330
WARM_PODS = f"{names.LABEL_COMPONENT}=sandbox,!{names.LABEL_SESSION_ID}"
EVERYWHERE: list[Object] = [{}]
TO_ONE_PORT: list[Object] = [{"ports": [{"port": 5432, "protocol": "TCP"}]}]


@contextmanager
def egress_policy(instance: Instance, egress: list[Object]) -> Iterator[str]:
    """A policy of somebody else, for all pods of the namespace; its name."""
    name = "of-somebody-else"
    metadata = {"name": name, "namespace": instance.namespace}
    spec: Object = {"podSelector": {}, "policyTypes": ["Egress"], "egress": egress}
    apply(
        {
            "apiVersion": "networking.k8s.io/v1",
            "kind": "NetworkPolicy",
            "metadata": metadata,
            "spec": spec,
        }
    )
    try:
        yield name
    finally:
        kubectl("-n", instance.namespace, "delete", "networkpolicy", name)


def runs(instance: Instance, session: str) -> bool:
    return instance.client().bash(session, "echo hi").structured.get("stdout") == "hi\n"


@NEEDS_FAULTS
def test_where_policies_are_not_enforced_no_command_runs_until_they_are(instance: Instance) -> None:
    with unenforced_policies():
        instance.create({"sandbox": {"warmPoolSize": 1}, "proxy": ALLOWLIST})
        instance.wait_for("IsolationNotEnforced", FAILED_SECONDS)
        message = instance.condition()["message"]
        assert "cli-mcp-demo-pool-0" in message
        assert "NetworkPolicies" in message
        refused = instance.client().bash("s1", "echo ran >/workspace/ran")
        assert refused.is_error
        assert not refused.structured
        assert "Not run" in refused.text
        assert "isolation" in refused.text
    instance.wait_for("Ready", RECOVERED_SECONDS)
    eventually(lambda: runs(instance, "s1"), RECOVERED_SECONDS)
    assert instance.client().bash("s1", "cat /workspace/ran").is_error


@pytest.fixture
def ready(instance: Instance) -> Instance:
    if get(instance.namespace, "climcpinstance", instance.name) is None:
        instance.create({"sandbox": {"warmPoolSize": 1}, "proxy": ALLOWLIST})
    instance.wait_for("Ready", 120)
    return instance


def test_a_policy_that_lets_sandboxes_out_is_named_until_it_is_gone(ready: Instance) -> None:
    with egress_policy(ready, TO_ONE_PORT) as name:
        ready.wait_for("PolicyWidened", 30)
        assert name in ready.condition()["message"]
        assert "podSelector" in ready.condition()["message"], "the remedy"
    ready.wait_for("Ready", 30)


def test_with_a_policy_that_opens_everything_no_new_sandbox_takes_a_command(ready: Instance) -> None:
    assert runs(ready, "before")
    with egress_policy(ready, EVERYWHERE) as name:
        ready.wait_for("PolicyWidened", 30)
        kubectl("-n", ready.namespace, "delete", "pods", "--wait=false", "-l", WARM_PODS)
        refused = ready.client().bash("opened", "echo hi")
        assert refused.is_error
        assert "Not run" in refused.text
        eventually(lambda: "can reach more than the proxy" in ready.condition()["message"], FAILED_SECONDS)
        assert ready.condition()["reason"] == "PolicyWidened"
        assert name in ready.condition()["message"]
    ready.wait_for("Ready", RECOVERED_SECONDS)
    eventually(lambda: runs(ready, "opened"), RECOVERED_SECONDS)
