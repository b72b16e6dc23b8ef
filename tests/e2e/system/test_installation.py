"""The operator as pods: two replicas of which one works, closed to the network, images from one place."""

from __future__ import annotations

import os
import time

import pytest

from tests.e2e.instances import Instance, is_ready
from tests.e2e.operator import NAMESPACE, Object, eventually, get, kubectl, objects
from tests.hooks.world import ALLOWLIST

pytestmark = pytest.mark.skipif(
    os.environ.get("E2E_OPERATOR") == "processes", reason="no pods of the operator"
)

TAKE_OVER_SECONDS = 60
# A new pod is open for a moment on some network plugins.
POLICY_LAG_SECONDS = 2
METRICS_PORT, HOOKS_PORT, HOOKS_METRICS_PORT = 9999, 8070, 9090
PROXY_PORT, PROXY_METRICS_PORT, AGENT_PORT = 8080, 9090, 8090


@pytest.fixture(scope="module")
def ready(instance: Instance) -> Instance:
    instance.create({"sandbox": {"warmPoolSize": 1}, "proxy": ALLOWLIST})
    instance.wait_for("Ready", 60)
    return instance


@pytest.fixture(scope="module")
def stray(ready: Instance) -> str:
    """Any other pod of the namespace, by its name."""
    ready.make_stray_pod("stray")
    time.sleep(POLICY_LAG_SECONDS)
    return "stray"


def operator_pods() -> list[Object]:
    pods = objects(NAMESPACE, "pods", "app.kubernetes.io/name=metacontroller")
    return [it for it in pods if "deletionTimestamp" not in it["metadata"]]


def leader() -> str:
    lease = get(NAMESPACE, "lease", "cli-mcp-metacontroller")
    assert lease is not None
    return str(lease["spec"]["holderIdentity"]).partition("_")[0]


def test_pods_have_the_images_of_the_installation(ready: Instance) -> None:
    image, sandbox_image = os.environ["E2E_IMAGE"], os.environ["E2E_SANDBOX_IMAGE"]
    expected = {"server": image, "proxy": image, "sandbox": sandbox_image}
    for component, wanted in expected.items():
        pods = ready.component(component)
        assert {container["image"] for it in pods for container in it["spec"]["containers"]} == {wanted}


def test_nothing_of_the_operator_is_open_to_pods(ready: Instance, stray: str) -> None:
    operator = Instance(NAMESPACE)
    for pod in operator_pods():
        for port in (METRICS_PORT, HOOKS_PORT, HOOKS_METRICS_PORT):
            assert operator.connects(pod["metadata"]["name"], "127.0.0.1", port), "the positive control"
            assert not ready.connects(stray, pod["status"]["podIP"], port), port


def test_a_stray_pod_reaches_of_an_instance_what_is_meant_to_be_open(ready: Instance, stray: str) -> None:
    (proxy, *_), (sandbox, *_) = ready.component("proxy"), ready.component("sandbox")
    proxy_ip, sandbox_ip = proxy["status"]["podIP"], sandbox["status"]["podIP"]
    assert ready.connects(stray, proxy_ip, PROXY_METRICS_PORT), "the positive control"
    assert not ready.connects(stray, proxy_ip, PROXY_PORT)
    assert not ready.connects(stray, sandbox_ip, AGENT_PORT)


def test_the_other_replica_takes_over_when_the_one_that_works_is_gone(ready: Instance) -> None:
    eventually(lambda: sum(map(is_ready, operator_pods())) == 2, 60)
    before = leader()
    kubectl("-n", NAMESPACE, "delete", "pod", before, "--force", "--grace-period=0")
    ready.apply({**ready.spec, "sandbox": {**ready.spec["sandbox"], "warmPoolSize": 2}})
    eventually(lambda: len(ready.component("sandbox")) == 2, TAKE_OVER_SECONDS)
    assert leader() != before
