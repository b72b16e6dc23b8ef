"""Ready means that a call would work: what does not answer on its way is in the conditions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.e2e.instances import INVESTIGATOR, READ_CONFIG_MAPS
from tests.e2e.operator import eventually, kubectl
from tests.hooks.world import KUBERNETES

if TYPE_CHECKING:
    from tests.e2e.instances import Instance

# A minute between two looks of the proxy, a few seconds to be sure, and the servers' own.
NOTICED_SECONDS = 100
NOBODY = {"type": "allowlist", "domains": ["kubernetes.default.svc:1"]}
READ = "kubectl get configmap kube-root-ca.crt -o name"


@pytest.fixture(scope="module")
def ready(instance: Instance) -> Instance:
    instance.create({"sandbox": {"warmPoolSize": 1}, "proxy": KUBERNETES})
    instance.wait_for("Ready", 120)
    return instance


def becomes(instance: Instance, kind: str, status: str, reason: str) -> str:
    """The message of the condition once it is this."""

    def reached() -> bool:
        found = instance.condition(kind)
        return (found.get("status"), found.get("reason")) == (status, reason)

    eventually(reached, NOTICED_SECONDS)
    return str(instance.condition(kind)["message"])


def test_targets_that_answer_are_said_to(ready: Instance) -> None:
    assert becomes(ready, "TargetsReachable", "True", "TargetsAnswer") == "the target answers"


def test_a_credential_that_was_revoked_is_told_before_anybody_stumbles_over_it(ready: Instance) -> None:
    kubectl("-n", ready.namespace, "delete", "serviceaccount", INVESTIGATOR)
    message = becomes(ready, "TargetsReachable", "False", "CredentialRefused")
    assert "refuses the token of the kubeconfig (401)" in message
    assert becomes(ready, "Ready", "False", "CredentialRefused") == message
    ready.make_kubeconfig(ready.make_identity(INVESTIGATOR, READ_CONFIG_MAPS))
    becomes(ready, "TargetsReachable", "True", "TargetsAnswer")
    ready.wait_for("Ready", 10)
    assert ready.client().bash("after", READ).exit_code == 0


def test_a_host_that_does_not_answer_is_named(ready: Instance) -> None:
    before = ready.spec
    ready.apply({**before, "proxy": {"targets": [*before["proxy"]["targets"], NOBODY]}})
    message = becomes(ready, "TargetsReachable", "False", "TargetUnreachable")
    assert "kubernetes.default.svc:1" in message
    ready.apply(before)
    becomes(ready, "TargetsReachable", "True", "TargetsAnswer")
    ready.wait_for("Ready", 60)


def test_what_the_servers_write_is_theirs_alone(ready: Instance) -> None:
    """Metacontroller applies the ConfigMap again and again, without data of its own."""
    pods = {pod["metadata"]["name"] for pod in ready.component("server")}
    eventually(lambda: set(ready.child("configmap", "cli-mcp-demo-path")["data"]) == pods, 30)
