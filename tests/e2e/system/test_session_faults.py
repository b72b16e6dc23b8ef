"""Sessions while whatever serves them is killed: none is lost that its pod has not lost, none has two."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
import requests

from cli_mcp import names
from tests.e2e import cluster_faults
from tests.e2e.counting import CountingCaller
from tests.e2e.node import Nodes, nodes
from tests.e2e.operator import NAMESPACE, eventually, kubectl, objects
from tests.e2e.running_call import UNTIL_INTERRUPTED, running_call
from tests.hooks.world import ALLOWLIST

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.e2e.instances import Instance
    from tests.e2e.mcp_client import McpClient
    from tests.e2e.operator import Object

REPLICAS = 3
WARM_PODS = 2
SESSIONS = 60
# All begin within this time, some of them in the middle of each fault.
BEGIN_SECONDS = 60
BETWEEN_CALLS_SECONDS = 3
BETWEEN_FAULTS_SECONDS = 6
CALM_SECONDS = 180


@pytest.fixture(scope="module")
def ready(instance: Instance) -> Instance:
    instance.create({"replicas": REPLICAS, "proxy": ALLOWLIST, "sandbox": {"warmPoolSize": WARM_PODS}})
    instance.wait_for("Ready", 120)
    eventually(lambda: len(instance.replicas("")) == REPLICAS)
    return instance


@pytest.fixture(scope="module")
def token(ready: Instance) -> str:
    return ready.token()


@pytest.fixture
def replicas(ready: Instance, token: str) -> list[McpClient]:
    eventually(lambda: len(ready.replicas(token)) == REPLICAS)
    return ready.replicas(token)


@pytest.fixture(scope="module")
def node() -> Iterator[Nodes]:
    with nodes() as made:
        yield made


def test_a_container_that_was_killed_gives_back_the_shells_state_and_says_why(
    ready: Instance, replicas: list[McpClient], node: Nodes
) -> None:
    replicas[0].bash("idle", "cd /tmp; COUNT=1")
    (pod,) = ready.session_pods("idle")
    node.kill(pod)
    # The cause is the kubelet's to tell, which looks once a second.
    eventually(lambda: ready.restarts("idle"), 30)
    answer = replicas[1].bash("idle", 'echo "$COUNT in $PWD"')
    assert answer.stdout == "1 in /tmp\n", answer.text
    assert answer.structured["shell_restarted"]
    assert answer.structured["session"] == "continued"
    assert "the sandbox's container was started again: it had ended at " in answer.text
    assert "with exit code 137" in answer.text
    assert not replicas[1].bash("idle", "true").structured["shell_restarted"], "once is enough"
    assert replicas[0].end("idle").status_code == 204


def test_a_command_whose_container_is_killed_is_said_to_be_cut_off(
    ready: Instance, replicas: list[McpClient], node: Nodes
) -> None:
    replicas[0].bash("busy", "COUNT=1")
    (pod,) = ready.session_pods("busy")
    with running_call(ready, replicas[0], "busy", "COUNT=2; sleep 120") as running:
        node.kill(pod)
        cut_off = running.result(60)
    assert cut_off.is_error
    assert "The command was cut off: the sandbox's container ended with exit code 137" in cut_off.text
    assert "How far the command came is unknown" in cut_off.text
    assert replicas[1].bash("busy", "echo $COUNT").stdout == "1\n", "the state from before"
    assert replicas[0].end("busy").status_code == 204


def test_a_command_whose_replica_dies_is_interrupted_and_the_session_goes_on_elsewhere(
    ready: Instance, replicas: list[McpClient], node: Nodes
) -> None:
    replicas[0].bash("orphan", "COUNT=1")
    with running_call(ready, replicas[0], "orphan", f"COUNT=2; {UNTIL_INTERRUPTED}") as running:
        node.kill(server_of(ready, replicas[0]))
        assert isinstance(running.exception(60), requests.RequestException)
    begin = time.monotonic()
    answer = replicas[1].bash("orphan", "cat seen; echo $COUNT")
    assert answer.stdout == "interrupted\n2\n", answer.text
    assert time.monotonic() - begin < 30
    assert replicas[1].end("orphan").status_code == 204


def server_of(instance: Instance, client: McpClient) -> Object:
    """The pod of a replica."""
    host = client.url.removeprefix("https://").rpartition(":")[0]
    return next(it for it in instance.component("server") if it["status"].get("podIP") == host)


class Storm:
    """The faults, one after the other. `callers` begin and end their sessions meanwhile."""

    def __init__(self, instance: Instance, node: Nodes, callers: list[CountingCaller]) -> None:
        self.instance = instance
        self.node = node
        self.callers = {it.session: it for it in callers}

    def faults(self) -> list[Callable[[], None]]:
        faults = [
            self.one_replica_dies,
            self.agents_die,
            self.proxies_die,
            self.pods_are_taken_away,
            self.operator_dies,
            self.a_replica_is_evicted,
            self.agents_die,
            self.all_replicas_die,
        ]
        # In the middle, while sessions still begin.
        return (
            [*faults[:5], cluster_faults.restart_api_server, *faults[5:]]
            if cluster_faults.COMMAND
            else faults
        )

    def one_replica_dies(self) -> None:
        self.node.kill(self.instance.component("server")[0])

    def all_replicas_die(self) -> None:
        for pod in self.instance.component("server"):
            self.node.kill(pod)

    def a_replica_is_evicted(self) -> None:
        name = self.instance.component("server")[1]["metadata"]["name"]
        kubectl("-n", self.instance.namespace, "delete", "pod", name, "--wait=false")

    def proxies_die(self) -> None:
        for pod in self.instance.component("proxy"):
            self.node.kill(pod)

    def operator_dies(self) -> None:
        """Hooks and Metacontroller, where they are pods."""
        for pod in objects(NAMESPACE, "pods"):
            self.node.kill(pod)

    def agents_die(self) -> None:
        for pod in self._running_sessions(5):
            self.node.kill(pod)

    def pods_are_taken_away(self) -> None:
        for pod in self._running_sessions(3):
            self.callers[pod["metadata"]["labels"][names.LABEL_SESSION_ID]].may_end = True
            kubectl("-n", self.instance.namespace, "delete", "pod", pod["metadata"]["name"], "--wait=false")

    def _running_sessions(self, number: int) -> list[Object]:
        pods = [
            it
            for it in self.instance.component("sandbox")
            if it["metadata"]["labels"].get(names.LABEL_SESSION_ID) in self.callers
            and any("running" in status["state"] for status in it["status"].get("containerStatuses", ()))
        ]
        return random.sample(pods, min(number, len(pods)))


class Servers:
    """The addresses of the replicas that there are, as somebody who looks now and then knows them."""

    def __init__(self, instance: Instance, token: str) -> None:
        self._instance = instance
        self._token = token
        self._one_looks = threading.Lock()
        self.hosts: list[str] = []
        self.look()

    def look(self) -> None:
        with self._one_looks:
            found = [it.url.removeprefix("https://") for it in self._instance.replicas(self._token)]
            self.hosts = found or self.hosts

    def client(self) -> McpClient:
        return self._instance.client(self._token, random.choice(self.hosts))


def test_no_session_is_lost_and_no_pod_left_over_whatever_is_killed(
    ready: Instance, replicas: list[McpClient], token: str, node: Nodes
) -> None:
    """Each of many callers asks random replicas, one call after the other."""
    callers = [CountingCaller(f"storm-{number}") for number in range(SESSIONS)]
    storm = Storm(ready, node, callers)
    servers = Servers(ready, token)
    calm = threading.Event()

    def call_until_calm(number: int) -> None:
        calm.wait(number * BEGIN_SECONDS / SESSIONS)
        while not calm.is_set():
            callers[number].ask(servers.client())
            calm.wait(BETWEEN_CALLS_SECONDS)

    with ThreadPoolExecutor(SESSIONS) as threads:
        calling = [threads.submit(call_until_calm, number) for number in range(SESSIONS)]
        try:
            for fault in storm.faults():
                time.sleep(BETWEEN_FAULTS_SECONDS)
                fault()
                servers.look()
        finally:
            calm.set()
    for it in calling:
        it.result()
    eventually(lambda: len(ready.replicas(token)) == REPLICAS)
    servers.look()
    answers_again(callers, servers)
    assert pods_by_session(ready) == dict.fromkeys(storm.callers, 1)
    eventually(lambda: pods_of_the_pool(ready) == WARM_PODS)
    for caller in callers:
        assert servers.client().end(caller.session).status_code == 204
    eventually(lambda: len(ready.component("sandbox")) == WARM_PODS)
    eventually(lambda: pods_of_the_pool(ready) == WARM_PODS)


def answers_again(callers: list[CountingCaller], servers: Servers) -> None:
    """Every session continues, through more than one replica."""

    def answers(caller: CountingCaller) -> bool:
        if caller.ask(servers.client()):
            return True
        servers.look()  # the last fault may have killed those that were seen after it
        return False

    def asked_twice(caller: CountingCaller) -> None:
        eventually(lambda: answers(caller), CALM_SECONDS)
        eventually(lambda: answers(caller), CALM_SECONDS)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(asked_twice, callers))


def pods_by_session(instance: Instance) -> Counter[str]:
    labels = [it["metadata"]["labels"] for it in instance.component("sandbox")]
    return Counter(it[names.LABEL_SESSION_ID] for it in labels if names.LABEL_SESSION_ID in it)


def pods_of_the_pool(instance: Instance) -> int:
    labels = [it["metadata"]["labels"] for it in instance.component("sandbox")]
    return sum(names.LABEL_SESSION_ID not in it for it in labels)
