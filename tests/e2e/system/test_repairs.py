"""What somebody deletes or forbids, and how long it takes until a session that was there works again."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from hooks.repairs import MADE_TOGETHER
from tests.e2e.operator import apply, eventually, get, kubectl
from tests.hooks.world import KUBERNETES

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.e2e.instances import Instance
    from tests.e2e.mcp_client import McpClient

SESSION = "kept"
QUESTION = "kubectl get configmap kube-root-ca.crt -o name"
ANSWER = "configmap/kube-root-ca.crt\n"
# All have heard of a new key by then, and sign with it.
ADOPTED_SECONDS = 150
NEW_SESSION_EVERY = 40


@pytest.fixture(scope="module")
def ready(instance: Instance) -> Instance:
    instance.create({"sandbox": {"warmPoolSize": 1}, "proxy": KUBERNETES})
    instance.wait_for("Ready", 120)
    assert instance.client().bash(SESSION, f"KEPT=yes; {QUESTION}").stdout == ANSWER
    return instance


@pytest.fixture(scope="module")
def client(ready: Instance) -> McpClient:
    return ready.client()


def seconds_until(works: Callable[[], bool], at_most: float) -> float:
    began = time.monotonic()
    eventually(works, at_most)
    return time.monotonic() - began


def deny_all(instance: Instance) -> None:
    metadata = {"name": "default-deny", "namespace": instance.namespace}
    spec = {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    apply({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": metadata, "spec": spec})


def test_a_namespace_that_denies_everything_by_default_serves(ready: Instance, client: McpClient) -> None:
    deny_all(ready)
    time.sleep(2)  # the network plugin's own time
    assert client.bash(SESSION, f"{QUESTION}; echo $KEPT").stdout == f"{ANSWER}yes\n"
    assert client.bash("new", QUESTION).stdout == ANSWER
    kubectl("-n", ready.namespace, "delete", "networkpolicy", "default-deny")


def test_a_deleted_service_of_the_proxy_comes_back_for_sessions_that_run(
    ready: Instance, client: McpClient
) -> None:
    service = f"cli-mcp-{ready.name}-proxy"
    before = ready.child("service", service)["spec"]["clusterIP"]
    kubectl("-n", ready.namespace, "delete", "service", service)

    def works() -> bool:
        return client.bash(SESSION, f"{QUESTION} && echo $KEPT").stdout == f"{ANSWER}yes\n"

    print(f"the proxy's Service deleted: {seconds_until(works, 30):.1f} s until a running session has it")
    assert ready.child("service", service)["spec"]["clusterIP"] == before
    ready.wait_for("Ready", 30)


def test_a_deleted_service_account_of_the_server_costs_no_session(ready: Instance, client: McpClient) -> None:
    name = f"cli-mcp-{ready.name}"
    made = datetime.fromisoformat(ready.child("deployment", name)["metadata"]["creationTimestamp"])
    time.sleep(max(0.0, (made + MADE_TOGETHER - datetime.now(UTC)).total_seconds() + 2))
    kubectl("-n", ready.namespace, "delete", "serviceaccount", name)
    eventually(lambda: get(ready.namespace, "serviceaccount", name), 30)

    def works() -> bool:
        answer = client.bash(f"after-{time.monotonic_ns()}", "echo hi")
        return not answer.is_error and answer.stdout == "hi\n"

    print(f"the server's ServiceAccount made again: {seconds_until(works, 90):.1f} s until sessions begin")
    kubectl("-n", ready.namespace, "rollout", "status", f"deployment/{name}", "--timeout=60s")
    assert client.bash(SESSION, f"{QUESTION}; echo $KEPT").stdout == f"{ANSWER}yes\n"


@pytest.mark.parametrize("secret", ["proxy-ca", "session-key"])
def test_a_deleted_secret_of_the_instance_costs_neither_old_nor_new_sessions_a_call(
    ready: Instance, client: McpClient, secret: str
) -> None:
    kubectl("-n", ready.namespace, "delete", "secret", f"cli-mcp-{ready.name}-{secret}")
    began, calls = time.monotonic(), 0
    while time.monotonic() - began < ADOPTED_SECONDS:
        for session in (SESSION, f"{secret}-{calls // NEW_SESSION_EVERY}"):
            answer = client.bash(session, QUESTION)
            assert answer.stdout == ANSWER, (round(time.monotonic() - began), session, answer.text)
            calls += 1
        time.sleep(0.5)
    print(f"{secret} deleted: {calls} calls in {ADOPTED_SECONDS} s, none failed")
