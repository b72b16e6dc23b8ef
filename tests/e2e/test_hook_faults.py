"""While the hooks are slow, restart or answer garbage, the real Metacontroller deletes nothing."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.e2e.cluster import Cluster, new_cluster
from tests.e2e.faults import FAULTS, WEBHOOK_TIMEOUT_SECONDS, FaultyProxy, faulty_proxy
from tests.e2e.operator import (
    NEEDS_METACONTROLLER,
    Object,
    Operator,
    eventually,
    get,
    installed,
    kubectl,
    loopback_controller,
)
from tests.hooks.world import ALLOWLIST

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [NEEDS_METACONTROLLER, pytest.mark.slow]

# The resyncPeriodSeconds of the CompositeController, and some time to act for a busy machine.
RECOVERY_SECONDS = 120 + 60
TRIES = 3
CLAIMED = "cli-mcp-demo-pool-0"


@pytest.fixture(scope="module")
def proxy() -> Iterator[FaultyProxy]:
    with faulty_proxy() as proxy:
        yield proxy


@pytest.fixture(scope="module")
def operator(proxy: FaultyProxy, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operator]:
    def controller(hooks_port: int) -> Object:
        proxy.hooks_port = hooks_port
        made = loopback_controller(proxy.server_port)
        for hook in made["spec"]["hooks"].values():
            hook["webhook"]["timeout"] = f"{WEBHOOK_TIMEOUT_SECONDS}s"
        return made

    with installed(tmp_path_factory.mktemp("operator"), controller) as running:
        yield running


@pytest.fixture(scope="module")
def cluster(operator: Operator) -> Iterator[Cluster]:
    """With a session, and a pool of one."""
    with new_cluster() as cluster:
        cluster.apply(pool_of(1))
        cluster.wait_for("Ready")
        cluster.claim(CLAIMED, "s1")
        eventually(lambda: len(cluster.pods()) == 2)
        cluster.wait_for("Ready")
        yield cluster


def pool_of(size: int) -> dict[str, Any]:
    return {"sandbox": {"warmPoolSize": size}, "proxy": ALLOWLIST}


def resize_the_pool(cluster: Cluster) -> int:
    """Something to do for the hooks; returns how many pods there will be."""
    size: int = 3 - cluster.spec["sandbox"]["warmPoolSize"]
    cluster.apply(pool_of(size))
    return 1 + size


def children(cluster: Cluster) -> dict[str, str]:
    """The revision of each; of pods the uid, since the kubelet writes their status."""
    revisions = {key: value for key, value in cluster.revisions().items() if not key.startswith("CliMcp")}
    return revisions | {f"Pod {name}": pod["metadata"]["uid"] for name, pod in cluster.pods().items()}


# Metacontroller asks customize before sync, and only if the instance has changed.
@pytest.mark.parametrize("path", ["/sync", "/customize"])
@pytest.mark.parametrize("fault", FAULTS)
def test_while_a_hook_gives_it_nothing_is_touched_and_then_they_catch_up(
    fault: str, path: str, cluster: Cluster, proxy: FaultyProxy
) -> None:
    before = children(cluster)
    proxy.faults, proxy.faulty_path, proxy.fault = 0, path, FAULTS[fault]
    try:
        pods = resize_the_pool(cluster)
        eventually(lambda: proxy.faults >= TRIES)
        assert children(cluster) == before
    finally:
        proxy.fault = None
    eventually(lambda: len(cluster.pods()) == pods, RECOVERY_SECONDS)
    assert f"Pod {CLAIMED}" in before.keys() & children(cluster).keys()
    assert children(cluster)[f"Pod {CLAIMED}"] == before[f"Pod {CLAIMED}"]


def test_hooks_that_restart_all_the_time_take_no_session(cluster: Cluster, operator: Operator) -> None:
    claimed = cluster.pods()[CLAIMED]["metadata"]["uid"]
    for _ in range(5):
        pods = resize_the_pool(cluster)
        operator.stop("hooks")
        operator.start_hooks()
    eventually(lambda: len(cluster.pods()) == pods, RECOVERY_SECONDS)
    assert cluster.pods()[CLAIMED]["metadata"]["uid"] == claimed


def test_a_session_is_served_while_the_hooks_are_down(cluster: Cluster, operator: Operator) -> None:
    operator.stop("hooks")
    try:
        container = json.loads(kubectl("-n", cluster.namespace, "get", "pod", CLAIMED, "-o", "json"))
        assert container["status"]["containerStatuses"][0]["restartCount"] == 0
        output = kubectl("-n", cluster.namespace, "exec", CLAIMED, "-c", "sandbox", "--", "echo", "alive")
        assert output.strip() == "alive"
    finally:
        operator.start_hooks()


@pytest.mark.parametrize("fault", ["nothing", "another program's JSON", "half an answer"])
def test_an_instance_does_not_end_on_garbage(fault: str, operator: Operator, proxy: FaultyProxy) -> None:
    with new_cluster() as cluster:
        cluster.apply(pool_of(1))
        cluster.wait_for("Ready")
        before = children(cluster)
        proxy.faults, proxy.faulty_path, proxy.fault = 0, "/finalize", FAULTS[fault]
        try:
            kubectl("-n", cluster.namespace, "delete", "climcpinstance", "demo", "--wait=false")
            eventually(lambda: proxy.faults >= TRIES)
            assert children(cluster) == before
        finally:
            proxy.fault = None
        eventually(lambda: not get(cluster.namespace, "climcpinstance", "demo"), RECOVERY_SECONDS)
        assert cluster.pods() == {}
