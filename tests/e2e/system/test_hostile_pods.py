"""An agent that works against its server harms neither the server nor anybody else's session."""

from __future__ import annotations

import json
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
import requests

from cli_mcp import names
from cli_mcp.execution import QUEUE_SECONDS
from tests.e2e.hostile_agent import FLOODS, HONEST, LIES, SECRET, SLOW
from tests.e2e.hostile_pod import make_hostile_pod
from tests.e2e.operator import kubectl
from tests.hooks.world import ALLOWLIST

if TYPE_CHECKING:
    from tests.e2e.instances import Instance
    from tests.e2e.mcp_client import McpClient

POD, SESSION, OTHER_SESSION = "cli-mcp-demo-hostile", "hostile", "honest"
# A command's own second, and what INT, TERM and KILL may take.
SLOW_SECONDS = 1 + 20
NOISE_SECONDS = 10


@pytest.fixture(scope="module")
def ready(instance: Instance) -> Instance:
    instance.create({"sandbox": {"warmPoolSize": 1}, "proxy": ALLOWLIST})
    instance.wait_for("Ready", 120)
    assert instance.client().bash(OTHER_SESSION, "echo hi").stdout == "hi\n"
    (pod,) = instance.session_pods(OTHER_SESSION)
    make_hostile_pod(instance, POD, SESSION, pod["metadata"]["annotations"][names.ANNOTATION_SESSION_OWNER])
    assert instance.client().bash(SESSION, HONEST).exit_code == 0, "the positive control"
    return instance


@pytest.fixture(scope="module")
def client(ready: Instance) -> McpClient:
    return ready.client()


def server_memory_kib(instance: Instance) -> int:
    (pod,) = instance.component("server")
    status = kubectl("-n", instance.namespace, "exec", pod["metadata"]["name"], "--", "cat", "/proc/1/status")
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS:")))


def restarts(instance: Instance) -> int:
    (pod,) = instance.component("server")
    return int(pod["status"]["containerStatuses"][0]["restartCount"])


def requests_of(instance: Instance) -> list[dict[str, str]]:
    """All that the hostile agent has been asked."""
    return [json.loads(it) for it in kubectl("-n", instance.namespace, "logs", POD).splitlines()]


@pytest.mark.parametrize("lie", LIES)
def test_what_no_agent_says_is_an_error_that_does_not_quote_it(client: McpClient, lie: str) -> None:
    answer = client.bash(SESSION, lie, 1)
    assert answer.is_error
    assert not answer.structured
    assert SECRET not in answer.text
    assert len(answer.text) < 500


def test_a_redirect_is_not_followed(ready: Instance, client: McpClient) -> None:
    client.bash(SESSION, "a redirect")
    assert {it["path"] for it in requests_of(ready)} <= {"/health", "/v1/run", "/v1/cancel"}


def test_slow_answers_end_with_the_time_of_their_command(client: McpClient) -> None:
    began = time.monotonic()
    with ThreadPoolExecutor(len(SLOW)) as threads:
        answers = list(threads.map(lambda behaviour: client_of(client).bash(SESSION, behaviour, 1), SLOW))
    # The agent is believed that an earlier command runs.
    assert time.monotonic() - began < SLOW_SECONDS + QUEUE_SECONDS + 10
    assert all(it.is_error and not it.structured for it in answers)


def test_floods_cost_the_server_no_memory_and_other_sessions_little_time(
    ready: Instance, client: McpClient
) -> None:
    for flood in FLOODS:
        client.bash(SESSION, flood, 1)  # what is allocated once is there now
    before = server_memory_kib(ready)
    until = time.monotonic() + NOISE_SECONDS

    def flooded(behaviour: str) -> int:
        caller, count = client_of(client), 0
        while time.monotonic() < until:
            answer = caller.bash(SESSION, behaviour, 1)
            assert answer.is_error and SECRET not in answer.text
            count += 1
        return count

    with ThreadPoolExecutor(len(FLOODS)) as threads:
        floods = [threads.submit(flooded, it) for it in FLOODS]
        latencies = []
        while time.monotonic() < until:
            began = time.monotonic()
            assert client.bash(OTHER_SESSION, "echo hi").stdout == "hi\n"
            latencies.append(time.monotonic() - began)
        assert all(it.result() for it in floods)
    grown = server_memory_kib(ready) - before
    print(
        f"\n{sum(it.result() for it in floods)} floods; other session: {statistics.median(latencies):.3f} s"
    )
    print(f"server: {before} KiB, and {grown} more")
    assert statistics.median(latencies) < 2
    assert grown < 40 * 1024
    assert restarts(ready) == 0


def test_what_a_hostile_agent_hears_opens_nothing_elsewhere(ready: Instance) -> None:
    """The orders that were signed for it, sent to the agent of another session and to the server."""
    heard = [it for it in requests_of(ready) if it["authorization"]]
    assert heard, "the positive control"
    (other,) = ready.session_pods(OTHER_SESSION)
    agent = f"http://{other['status']['podIP']}:{names.AGENT_PORT}"
    assert requests.get(f"{agent}/health", timeout=10).status_code == 200, "the positive control"
    for it in heard[-3:]:
        headers = {"Authorization": it["authorization"], "Content-Type": "application/json"}
        replayed = requests.post(agent + it["path"], it["body"], headers=headers, timeout=10)
        assert replayed.status_code == 401, replayed.text
        stolen = ready.client(it["authorization"].removeprefix("Bearer "))
        assert stolen.post(OTHER_SESSION, "bash", command="id").status_code == 401


def test_no_command_goes_to_a_pod_that_is_not_the_instances(ready: Instance) -> None:
    """Which has all labels, and another owner."""
    name, session = "cli-mcp-demo-foreign", "foreign"
    (pod,) = ready.session_pods(OTHER_SESSION)
    owner = pod["metadata"]["annotations"][names.ANNOTATION_SESSION_OWNER]
    config_map = ready.child("configmap", "kube-root-ca.crt")
    make_hostile_pod(
        ready,
        name,
        session,
        owner,
        owner_reference={
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "name": config_map["metadata"]["name"],
            "uid": config_map["metadata"]["uid"],
            "controller": True,
        },
    )
    assert ready.client().bash(session, "echo mine").stdout == "mine\n"
    assert "/v1/run" not in kubectl("-n", ready.namespace, "logs", name)


def client_of(client: McpClient) -> McpClient:
    """Another one like it, for another thread."""
    return type(client)(client.url.removeprefix("https://"), client.name, client.authority, client.token)
