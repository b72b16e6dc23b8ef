"""What the installed system costs: a warm call, a claim, a cold start in its stages, memory, API requests.

Run it with `make bench-cluster` where `make deploy` was before, with the KUBECONFIG of that cluster. It makes
an instance of its own in a new namespace and takes about two minutes. Every row stands beside a baseline of
the same run: cold starts beside pods of the same image that do nothing, and beside the time that the network
plugin takes to close a new pod in, since no sandbox is used before.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import re
import statistics
import tempfile
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.local import Row, percentiles
from cli_mcp import names
from tests.e2e.conftest import in_cluster
from tests.e2e.instances import Instance, is_ready, new_namespace
from tests.e2e.kube_client import KubeClient
from tests.e2e.operator import eventually, kubectl
from tests.hooks.world import KUBERNETES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.e2e.mcp_client import McpClient

Pod = dict[str, Any]

WATCH_SECONDS = 60
# The cluster itself is busy with the end of the last sandbox and the start of its successor.
SETTLE_SECONDS = 1.0
LABEL = "example.com/benchmark"
# How long the loop in PROBE goes on, and how often it tries.
PROBE_SECONDS = 4
# Connects to what a sandbox must not reach, and prints for how many seconds after its start it could.
PROBE = f"""
import os, socket, time
began, open_until = time.monotonic(), 0.0
while time.monotonic() - began < {PROBE_SECONDS}:
    try:
        socket.create_connection((os.environ["KUBERNETES_SERVICE_HOST"], 443), 0.2).close()
        open_until = time.monotonic() - began
    except OSError:
        pass
    time.sleep(0.01)
print(open_until, flush=True)
time.sleep(3600)
"""
IDLE = ["sleep", "infinity"]


@dataclass
class Timeline:
    """When, in seconds of the monotonic clock, a watch first showed each moment of one pod's life."""

    moments: dict[str, float] = field(default_factory=dict)

    def see(self, pod: Pod, now: float) -> None:
        labels, status = pod["metadata"].get("labels", {}), pod.get("status", {})
        states = [it["state"] for it in status.get("containerStatuses", ())]
        reached = {
            "created": True,
            "scheduled": bool(pod["spec"].get("nodeName")),
            "running": any("running" in state for state in states),
            "active": labels.get(names.LABEL_STATE) == names.STATE_ACTIVE,
        }
        for moment in (name for name, is_so in reached.items() if is_so):
            self.moments.setdefault(moment, now)


@contextmanager
def watched(kube: KubeClient, selector: str) -> Iterator[Timeline]:
    """The one pod that will have these labels, watched from another thread."""
    timeline, begin = Timeline(), kube.list("Pod", labelSelector=selector).body["metadata"]["resourceVersion"]
    ended = threading.Event()

    def watch() -> None:
        for event in kube.watch("Pod", WATCH_SECONDS, labelSelector=selector, resourceVersion=begin):
            if ended.is_set():
                return
            timeline.see(event["object"], time.monotonic())

    threading.Thread(target=watch, daemon=True).start()
    yield timeline
    ended.set()


def timed(count: int, call: Callable[[], object]) -> list[float]:
    taken = []
    for _ in range(count):
        began = time.perf_counter()
        call()
        taken.append(time.perf_counter() - began)
    return taken


def milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:5.0f} ms"


def few(seconds: list[float]) -> str:
    """Percentiles only of samples that are large enough for them."""
    if len(seconds) >= 100:
        return percentiles(seconds)
    return f"median {milliseconds(statistics.median(seconds))}  max {milliseconds(max(seconds))}"


def kubernetes_requests(client: McpClient) -> float:
    """All that the server has asked of the API about pods so far."""
    text = client.get("/metrics").text
    found = re.findall(r"^cli_mcp_kubernetes_requests_total\{.*\} (\S+)$", text, re.MULTILINE)
    return sum(map(float, found))


def measure_calls(instance: Instance, count: int) -> list[Row]:
    """One connection, one session; beside it what the same client and TLS cost for an answer without work."""
    client = instance.client()
    run(client, "warm", "true")
    settle(instance)
    timed(count // 10, lambda: client.bash("warm", "true"))
    before = kubernetes_requests(client)
    ours = timed(count, lambda: client.bash("warm", "true"))
    requests = (kubernetes_requests(client) - before) / count
    bare = timed(count, lambda: client.get("/live"))
    over = statistics.median(ours) - statistics.median(bare)
    return [
        Row("warm call, `true`", percentiles(ours), f"GET /live {percentiles(bare)}"),
        Row("    over GET /live", f"p50 {over * 1e3:6.2f} ms", ""),
        Row("    Kubernetes requests", f"{requests:.3f} for each call", "0 but for a stamp now and then"),
    ]


def measure_claims(instance: Instance, count: int) -> list[Row]:
    """A new session each time, when the pool has been full again for a moment; ended before the next."""
    client = instance.client()
    first, second, requests = [], [], 0.0
    for number in range(count):
        settle(instance)
        session = f"claim-{number}"
        before = kubernetes_requests(client)
        first += timed(1, partial(run, client, session, "true"))
        requests += kubernetes_requests(client) - before
        second += timed(1, partial(client.bash, session, "true"))
        client.end(session).raise_for_status()
    return [
        Row("claim of a warm pod, first result", few(first), f"the call after it {few(second)}"),
        Row("    Kubernetes requests", f"{requests / count:.1f} for each claim", ""),
    ]


def settle(instance: Instance) -> None:
    """Return when the pool is full and its newest pod no longer keeps the node busy."""
    eventually(lambda: len(warm_pods(instance)) == pool_size(instance))
    time.sleep(SETTLE_SECONDS)


def pool_size(instance: Instance) -> int:
    size: int = instance.spec["sandbox"]["warmPoolSize"]
    return size


def run(client: McpClient, session: str, command: str) -> None:
    answer = client.bash(session, command)
    assert answer.exit_code == 0, answer.text


def measure_cold_starts(instance: Instance, kube: KubeClient, count: int) -> list[Row]:
    """Without a pool; a bare pod, a probe of the network and a cold start by turns."""
    size = pool_size(instance)
    instance.apply({**instance.spec, "sandbox": {**instance.spec["sandbox"], "warmPoolSize": 0}})
    eventually(lambda: not warm_pods(instance))
    client, template = instance.client(), sandbox_template(instance)
    bare, lags, totals = [], [], []
    stages: dict[str, list[float]] = {}
    for number in range(count):
        bare.append(start_bare_pod(kube, template, number))
        lags.append(policy_lag(kube, template, number))
        session = f"cold-{number}"
        with watched(kube, f"{names.LABEL_SESSION_ID}={session}") as timeline:
            began = time.monotonic()
            run(client, session, "true")
            done = time.monotonic()
        totals.append(done - began)
        for stage, seconds in split(timeline.moments, began, done).items():
            stages.setdefault(stage, []).append(seconds)
        client.end(session).raise_for_status()
    instance.apply({**instance.spec, "sandbox": {**instance.spec["sandbox"], "warmPoolSize": size}})
    above = statistics.median(totals) - statistics.median(bare) - statistics.median(lags)
    rows = [
        Row("cold start, first result", few(totals), f"bare pod running {few(bare)}"),
        Row("    above pod and policy", milliseconds(above), f"policies closed  {few(lags)}"),
    ]
    return rows + [Row(f"    {stage}", few(seconds), "") for stage, seconds in stages.items()]


def split(moments: dict[str, float], began: float, done: float) -> dict[str, float]:
    """The time up to each moment since the one before, in the order in which they were seen."""
    spans, last = {}, began
    for moment, seen in sorted(moments.items(), key=lambda item: item[1]):
        if seen < done:
            spans[f"to {moment}"], last = seen - last, seen
    return spans | {"to the result": done - last}


def warm_pods(instance: Instance) -> list[Pod]:
    return [it for it in instance.component("sandbox") if is_ready(it) and not is_claimed(it)]


def is_claimed(pod: Pod) -> bool:
    return names.LABEL_SESSION_ID in pod["metadata"]["labels"]


def sandbox_template(instance: Instance) -> Pod:
    config = json.loads(
        instance.child("configmap", f"cli-mcp-{instance.name}")["data"][names.SANDBOX_CONFIG_KEY]
    )
    template: Pod = config["template"]
    return template


def start_bare_pod(kube: KubeClient, template: Pod, number: int) -> float:
    """Seconds until a pod of the sandbox's image and confinement, without volumes, is seen to run."""
    pod = plain_pod(template, f"bare-{number}", IDLE)
    with watched(kube, f"{LABEL}=bare-{number}") as timeline:
        began = time.monotonic()
        assert kube.create(pod).code == 201
        eventually(lambda: "running" in timeline.moments)
    kube.delete("Pod", f"bare-{number}", gracePeriodSeconds="0")
    return timeline.moments["running"] - began


def policy_lag(kube: KubeClient, template: Pod, number: int) -> float:
    """Seconds for which a new pod under the sandboxes' NetworkPolicy is open after its start."""
    name = f"probe-{number}"
    pod = plain_pod(template, name, ["python3", "-c", PROBE])
    # The labels that the NetworkPolicy goes by; without Metacontroller's own no sandbox for anybody.
    wanted = (names.LABEL_INSTANCE, names.LABEL_COMPONENT)
    pod["metadata"]["labels"] |= {label: template["metadata"]["labels"][label] for label in wanted}
    assert kube.create(pod).code == 201
    eventually(lambda: printed(kube, name))
    lag = float(printed(kube, name))
    kube.delete("Pod", name, gracePeriodSeconds="0")
    return lag


def printed(kube: KubeClient, name: str) -> str:
    return kubectl("-n", kube.namespace, "logs", name, check=False).strip()


def plain_pod(template: Pod, name: str, command: list[str]) -> Pod:
    spec = template["spec"]
    (sandbox,) = spec["containers"]
    container = {key: sandbox[key] for key in ("image", "resources", "securityContext")}
    kept = ("serviceAccountName", "automountServiceAccountToken", "securityContext", "nodeSelector")
    return copy.deepcopy(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "labels": {LABEL: name}},
            "spec": {
                **{key: spec[key] for key in kept if key in spec},
                "containers": [{"name": "it", "command": command, **container}],
                "terminationGracePeriodSeconds": 0,
            },
        }
    )


def measure_memory(instance: Instance) -> list[Row]:
    client = instance.client()
    run(client, "memory", "true")
    (sandbox,) = instance.session_pods("memory")
    servers = [resident_mebibytes(instance, it) for it in instance.component("server")]
    sessions = sum(map(is_claimed, instance.component("sandbox")))
    return [
        Row("agent", f"RSS {resident_mebibytes(instance, sandbox):5.1f} MiB", "process 1 of a sandbox"),
        Row("server", f"RSS {max(servers):5.1f} MiB", f"process 1, {sessions} sessions"),
    ]


def resident_mebibytes(instance: Instance, pod: Pod) -> float:
    name, container = pod["metadata"]["name"], pod["spec"]["containers"][0]["name"]
    status = kubectl("-n", instance.namespace, "exec", name, "-c", container, "--", "cat", "/proc/1/status")
    found = re.search(r"^VmRSS:\s+(\d+) kB$", status, re.MULTILINE)
    assert found is not None, status
    return int(found[1]) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=500)
    parser.add_argument("--claims", type=int, default=20)
    parser.add_argument("--cold-starts", type=int, default=5)
    arguments = parser.parse_args()
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder, new_namespace(Path(folder), "bench") as instance:
        instance.make_secrets()
        # With the requests that everybody gets: they decide who runs first when the node is busy.
        instance.apply({"sandbox": {"warmPoolSize": 3}, "proxy": KUBERNETES})
        instance.wait_for("Ready")
        rows += measure_calls(instance, arguments.calls)
        rows += measure_memory(instance)
        rows += measure_claims(instance, arguments.claims)
        with in_cluster() as api:
            kube = KubeClient(api.url, instance.namespace)
            rows += measure_cold_starts(instance, kube, arguments.cold_starts)
    print(f"From a machine with {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}\n")
    width = max(len(row.name) for row in rows)
    values = max(len(row.values) for row in rows)
    for row in rows:
        print(f"{row.name:<{width}}  {row.values:<{values}}  | {row.baseline}")


if __name__ == "__main__":
    main()
