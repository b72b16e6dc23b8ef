"""Sessions that take all they can get, in real pods: the others go on, and the proxy and its log survive."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from tests.attack.bystander import assert_unharmed, calling, quiet
from tests.e2e.greedy import GREED, SECONDS
from tests.e2e.operator import kubectl
from tests.hooks.world import KUBERNETES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.e2e.instances import Instance

ORIGIN = "kubernetes.default.svc"
BYSTANDER = "bystander"
SEVERAL = 3
# What the proxy may hold when all of it is over, of the 512 MiB that its pod has.
MEMORY_KIB = 300 * 1024
RULES = ({"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "list", "watch"]},)


@pytest.fixture(scope="module")
def ready(instance: Instance) -> Instance:
    limits = {"memory": "256Mi", "cpu": "1"}
    instance.create(
        {"sandbox": {"resources": {"limits": limits}, "warmPoolSize": 1}, "proxy": KUBERNETES}, RULES
    )
    instance.wait_for("Ready", 120)
    client = instance.client()
    for session in (BYSTANDER, *(f"greedy-{n}" for n in range(SEVERAL))):
        assert client.bash_once_started(session, "echo hi").stdout == "hi\n"
    return instance


@contextmanager
def greedy(instance: Instance, program: str, sessions: int) -> Iterator[None]:
    command = GREED[program].command(ORIGIN)

    def work(session: str) -> None:
        instance.client().bash(session, command, SECONDS + 15)

    threads = [threading.Thread(target=work, args=(f"greedy-{n}",)) for n in range(sessions)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        for thread in threads:
            thread.join()


def proxy_pod(instance: Instance) -> str:
    (pod,) = instance.component("proxy")
    return str(pod["metadata"]["name"])


def proxy_restarts(instance: Instance) -> int:
    (pod,) = instance.component("proxy")
    return int(pod["status"]["containerStatuses"][0]["restartCount"])


def proxy_memory_kib(instance: Instance) -> int:
    status = kubectl("-n", instance.namespace, "exec", proxy_pod(instance), "--", "cat", "/proc/1/status")
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS:")))


@pytest.mark.parametrize("sessions", [1, SEVERAL])
@pytest.mark.parametrize("program", GREED)
def test_a_bystander_is_served_and_the_proxy_survives(ready: Instance, program: str, sessions: int) -> None:
    client = ready.client()

    def call() -> None:
        assert client.bash(BYSTANDER, "true", 20).exit_code == 0

    restarts = proxy_restarts(ready)
    before = quiet(call)
    with greedy(ready, program, sessions), calling(call) as beside:
        threading.Event().wait(SECONDS)
    assert proxy_restarts(ready) == restarts, "the proxy was killed"
    memory = proxy_memory_kib(ready)
    print(f"proxy: {memory} KiB")
    assert client.bash(BYSTANDER, "kubectl get configmaps -o name").stdout.startswith("configmap/")
    assert memory < MEMORY_KIB
    assert_unharmed(program, before, beside, attackers=sessions)


def test_a_flood_of_refused_requests_leaves_the_records_of_others_in_the_log(ready: Instance) -> None:
    client = ready.client()
    assert client.bash(BYSTANDER, "kubectl get configmap kube-root-ca.crt -o name").exit_code == 0
    (pod,) = ready.session_pods(BYSTANDER)
    with greedy(ready, "refused requests", SEVERAL):
        pass
    lines = kubectl("-n", ready.namespace, "logs", proxy_pod(ready)).splitlines()
    records = [json.loads(line) for line in lines if line.startswith("{")]
    own = [it for it in records if it["client"] == pod["status"]["podIP"]]
    assert any(it["path"].endswith("/configmaps/kube-root-ca.crt") for it in own)
    refused = [it for it in records if it["target"] == "refused.example.com:443"]
    print(f"{len(lines)} lines, {sum(map(len, lines))} bytes, {len(refused)} of them refusals")
    assert refused, "the flood is on record"
    assert sum(len(line) for line in lines) < 2_000_000
