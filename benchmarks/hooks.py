"""What a sync costs: time and CPU at 0, 100 and 1,000 pods, memory, and how a pool of 300 fills.

Run as `python -m benchmarks.hooks`. Each row stands beside a baseline of the same run: the same request,
parsed and written again without any thought. Pods are as large as the API server shows them.
"""

import argparse
import resource
import statistics
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import orjson
from flask.testing import FlaskClient

from cli_mcp import names
from hooks import main as hook_process
from hooks.app import create_app
from hooks.keys import RandomKeys
from hooks.settings import Settings
from hooks.wire import CHILD_KINDS, ENDPOINT_SLICE, POD

SIZES = (0, 100, 1000)
TARGETS_MS = {0: 5, 100: 40, 1000: 300}
NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
SETTINGS = Settings(image="registry.example.com/cli-mcp:1", sandbox_image="registry.example.com/sandbox:1")
POOL_OF_THE_FILL = 300
# client-go's share of the time: Metacontroller creates one object after the other at this rate.
METACONTROLLER_QPS = 50


def main() -> None:
    options = _parser().parse_args()
    hook_process.collect_garbage_rarely()
    app = create_app(SETTINGS, RandomKeys(), lambda: NOW)
    heads = ("pods", "request MB", "p50 ms", "p99 ms", "CPU ms", "JSON alone ms", "aim ms", "RSS MiB")
    print("  ".join(heads))
    for size in SIZES:
        body = orjson.dumps(settled_request(app.test_client(), size))
        rounds = max(10, options.rounds // max(1, size // 10))
        client = app.test_client()
        sync = measure(partial(client.post, "/sync", data=body), rounds)
        baseline = measure(partial(read_and_write, body), rounds)
        cells = (size, len(body) / 1e6, *sync, baseline[0], TARGETS_MS[size], rss_mib())
        print("  ".join(f"{cell:>{len(head)}.4g}" for cell, head in zip(cells, heads, strict=True)))
    fill(app.test_client())


def fill(client: FlaskClient) -> None:
    """A pool of 300 from nothing, every answer taken over at once: the hooks' own share of a fill."""
    request = settled_request(client, 0)
    request["parent"]["spec"]["sandbox"]["warmPoolSize"] = POOL_OF_THE_FILL
    syncs, spent = 0, 0.0
    while len(request["children"][POD.key]) < POOL_OF_THE_FILL:
        started = time.perf_counter()
        answer = post(client, orjson.dumps(request))
        spent += time.perf_counter() - started
        syncs += 1
        take_over(request, answer)
    print(
        f"\nA pool of {POOL_OF_THE_FILL}: {syncs} syncs, {spent * 1000:.0f} ms in the hooks, "
        f"{POOL_OF_THE_FILL / spent:.0f} children/s; Metacontroller at {METACONTROLLER_QPS} requests/s takes "
        f"{POOL_OF_THE_FILL / METACONTROLLER_QPS:.0f} s for the same"
    )


def settled_request(client: FlaskClient, pods: int) -> dict[str, Any]:
    """The request of an instance at rest with `pods` warm pods, made by the hooks' own answers."""
    request = first_request(pods)
    for _ in range(6 + pods // 100):
        take_over(request, post(client, orjson.dumps(request)))
    assert len(request["children"][POD.key]) == pods
    return request


def first_request(pods: int) -> dict[str, Any]:
    parent = {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "metadata": {"name": "bench", "namespace": "ns", "uid": "u-1", "generation": 1},
        "spec": {
            "sandbox": {"warmPoolSize": pods},
            "proxy": {"targets": [{"type": "allowlist", "domains": ["pypi.org"]}]},
        },
    }
    endpoints = {
        "apiVersion": ENDPOINT_SLICE.api_version,
        "kind": ENDPOINT_SLICE.kind,
        "metadata": {
            "name": "s",
            "namespace": "ns",
            "labels": {"kubernetes.io/service-name": "cli-mcp-bench-proxy"},
        },
        "endpoints": [{"conditions": {"ready": True}}],
    }
    return {
        "controller": {},
        "parent": parent,
        "children": {kind.key: {} for kind in CHILD_KINDS},
        "related": {ENDPOINT_SLICE.key: {"ns/s": endpoints}},
        "finalizing": False,
    }


def take_over(request: dict[str, Any], answer: dict[str, Any]) -> None:
    """Store the answer as the API server and Metacontroller would."""
    for child in answer["children"]:
        key = f"{child['kind']}.{child['apiVersion']}"
        name = f"ns/{child['metadata']['name']}"
        request["children"][key].setdefault(name, as_stored(child))
    request["parent"]["status"] = answer["status"]


def as_stored(child: dict[str, Any]) -> dict[str, Any]:
    applied = orjson.dumps(child, option=orjson.OPT_SORT_KEYS).decode()
    metadata = {
        **child["metadata"],
        "uid": f"uid-{child['metadata']['name']}",
        "resourceVersion": "1",
        "creationTimestamp": (NOW - timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "annotations": {names.ANNOTATION_LAST_APPLIED: applied},
        "managedFields": [{"manager": "metacontroller", "fieldsV1": {"f:metadata": _field_names(child)}}],
    }
    stored = {**child, "metadata": metadata}
    if child["kind"] == "Service":
        stored["spec"] = {**child["spec"], "clusterIP": "10.96.0.20"}
    if child["kind"] == "Pod":
        ready = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T11:00:00Z"}
        stored["status"] = {"phase": "Running", "podIP": "10.244.0.1", "conditions": [ready] * 4}
    return stored


def _field_names(value: Any) -> Any:
    """What managedFields repeats of an object: every name, no value."""
    if isinstance(value, dict):
        return {f"f:{key}": _field_names(item) for key, item in value.items()}
    if isinstance(value, list):
        return {f"k:{index}": _field_names(item) for index, item in enumerate(value)}
    return {}


def read_and_write(body: bytes) -> bytes:
    return orjson.dumps(orjson.loads(body))


def post(client: FlaskClient, body: bytes) -> dict[str, Any]:
    answer = client.post("/sync", data=body)
    assert answer.status_code == 200, answer.text
    parsed: dict[str, Any] = orjson.loads(answer.data)
    return parsed


def measure(run: Callable[[], object], rounds: int) -> tuple[float, float, float]:
    """p50 and p99 of the wall time, and the mean CPU time, in milliseconds."""
    run()
    walls, cpu = [], time.process_time()
    for _ in range(rounds):
        started = time.perf_counter()
        run()
        walls.append((time.perf_counter() - started) * 1000)
    used = (time.process_time() - cpu) * 1000 / rounds
    return statistics.median(walls), sorted(walls)[int(len(walls) * 0.99) - 1], used


def rss_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=200, help="syncs at 0 pods (default %(default)s)")
    return parser


if __name__ == "__main__":
    main()
