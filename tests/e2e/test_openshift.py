"""The overlay for OpenShift; elsewhere with stand-ins for what it does to pods, accounts and certificates."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from tests.e2e import openshift
from tests.e2e.installation import NEEDS_NO_OPERATOR, install, uninstall
from tests.e2e.instances import (
    INVESTIGATOR,
    READ_CONFIG_MAPS,
    SMALL,
    Instance,
    is_ready,
    merged,
    new_namespace,
)
from tests.e2e.node import nodes
from tests.e2e.operator import NAMESPACE, Object, apply, eventually, kubectl, objects
from tests.e2e.ssh_client import client, stdout
from tests.hooks.world import ALLOWLIST, KUBERNETES
from tests.ssh_gateway.harness import KEY, public

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = NEEDS_NO_OPERATOR
READY_SECONDS = 60
SSH = {"routes": [{"username": "agent", "authorizedKeysSecret": "agents"}]}


@pytest.fixture(scope="module")
def platform() -> Iterator[None]:
    with openshift.admission():
        apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
        openshift.constrain(NAMESPACE)
        install(OVERLAY="openshift")
        yield
        assert "warning" not in uninstall()


@pytest.fixture(scope="module")
def ready(platform: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Instance]:
    """Applied with the Secret of the credential alone: the platform makes that of the certificate."""
    with new_namespace(tmp_path_factory.mktemp("openshift"), "openshift") as instance:
        openshift.constrain(instance.namespace)
        instance.make_kubeconfig(instance.make_identity(INVESTIGATOR, READ_CONFIG_MAPS))
        instance.make_secret("agents", {"authorized_keys": public(KEY)})
        apply_on_openshift(instance, {"sandbox": {"warmPoolSize": 1}, "proxy": KUBERNETES, "ssh": SSH})
        yield instance


def apply_on_openshift(instance: Instance, spec: Object) -> None:
    """Return once it is Ready."""
    instance.apply(merged(SMALL, spec))
    for component in ("-sandbox", "", "-proxy"):
        openshift.add_pull_secret(instance, f"cli-mcp-{instance.name}{component}")
    openshift.trust_server_certificate(instance)
    instance.wait_for("Ready", READY_SECONDS)


def users(pods: list[Object]) -> set[int]:
    return {it["securityContext"]["runAsUser"] for pod in pods for it in pod["spec"]["containers"]}


def test_a_user_id_of_our_own_is_refused(ready: Instance) -> None:
    """The positive control: with the generic overlay's pods nothing would start."""
    ready.make_identity("maker", [{"apiGroups": [""], "resources": ["pods"], "verbs": ["create"]}])
    spec = {"securityContext": {"runAsUser": 1000}, "containers": [{"name": "it", "image": "any"}]}
    metadata = {"name": "refused", "namespace": ready.namespace}
    pod = json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
    with pytest.raises(AssertionError, match=r"security context constraint.*runAsUser.*must be in"):
        kubectl("create", "-f", "-", f"--as=system:serviceaccount:{ready.namespace}:maker", given=pod)


def test_what_the_platform_adds_is_left_alone(ready: Instance) -> None:
    before = {it["metadata"]["uid"] for it in objects(ready.namespace, "pods")}
    ready.apply(merged(ready.spec, {"sandbox": {"idleTimeout": "40m"}}))
    ready.wait_for("Ready", READY_SECONDS)
    account = ready.child("serviceaccount", f"cli-mcp-{ready.name}-sandbox")
    assert {"name": openshift.PULL_SECRET} in account["imagePullSecrets"]
    service = ready.child("service", f"cli-mcp-{ready.name}")
    assert openshift.SIGNED_BY in service["metadata"]["annotations"]
    assert {it["metadata"]["uid"] for it in objects(ready.namespace, "pods")} == before


def test_all_pods_run_with_the_user_id_of_the_platform(ready: Instance) -> None:
    operator = objects(NAMESPACE, "pods", "app.kubernetes.io/name=metacontroller")
    pods = [it for name in ("server", "proxy", "sandbox", "ssh") for it in ready.component(name)]
    assert len(pods) == 4
    assert users(operator) == {openshift.user_of(NAMESPACE)}
    assert users(pods) == {openshift.user_of(ready.namespace)}
    eventually(lambda: all(map(is_ready, objects(ready.namespace, "pods"))), 30)


def test_a_warm_pod_is_claimed_and_reads_the_cluster_by_the_proxy(ready: Instance) -> None:
    answer = ready.client().bash("s1", "id -u; kubectl get configmaps -o name")
    assert answer.exit_code == 0, answer.text
    assert answer.stdout.startswith(f"{openshift.user_of(ready.namespace)}\n")
    assert "configmap/kube-root-ca.crt" in answer.stdout
    (pod,) = ready.session_pods("s1")
    assert pod["metadata"]["name"].startswith(f"cli-mcp-{ready.name}-pool-")


def test_the_workspace_and_the_home_of_that_user_can_be_written(ready: Instance) -> None:
    answer = ready.client().bash(
        "s1", "git init -q repo && touch ~/file /tmp/file && ls ~; python3 -c 'print(1)'"
    )
    assert (answer.exit_code, answer.stdout) == (0, "file\nrepo\n1\n"), answer.text


def test_a_session_beyond_the_pool_gets_a_pod_of_the_servers(ready: Instance) -> None:
    sessions = [f"burst-{number}" for number in range(3)]
    with ThreadPoolExecutor(len(sessions)) as callers:
        answers = list(callers.map(lambda it: ready.client().bash_once_started(it, "id -u"), sessions))
    assert [it.stdout for it in answers] == [f"{openshift.user_of(ready.namespace)}\n"] * 3
    pods = [pod for it in sessions for pod in ready.session_pods(it)]
    assert any(pod["metadata"]["name"].startswith(f"cli-mcp-{ready.name}-s-") for pod in pods)


def test_a_shell_comes_back_with_its_state_after_a_restart_of_its_container(ready: Instance) -> None:
    caller = ready.client()
    caller.bash("s1", "export KEPT=yes; cd /tmp")
    (pod,) = ready.session_pods("s1")
    with nodes() as node:
        node.kill(pod)
    answer = caller.bash("s1", 'echo "$KEPT in $PWD"')
    assert answer.structured["shell_restarted"]
    assert answer.stdout == "yes in /tmp\n", answer.text


async def test_an_agent_comes_in_by_ssh(ready: Instance) -> None:
    async with client(ready, "agent") as one:
        assert await stdout(one, "id -u") == f"{openshift.user_of(ready.namespace)}\n"


@pytest.mark.skipif("E2E_FOREIGN_IMAGE" not in os.environ, reason="not set: E2E_FOREIGN_IMAGE")
def test_an_image_with_a_user_of_its_own_runs_with_that_of_the_platform(
    platform: None, tmp_path: Path
) -> None:
    image = os.environ["E2E_FOREIGN_IMAGE"]
    with new_namespace(tmp_path, "openshift-image") as instance:
        openshift.constrain(instance.namespace)
        apply_on_openshift(instance, {"sandbox": {"image": image, "warmPoolSize": 1}, "proxy": ALLOWLIST})
        assert instance.client().bash("s1", "id -u").stdout == f"{openshift.user_of(instance.namespace)}\n"


def test_a_workspace_on_a_volume_is_found_again(platform: None, tmp_path: Path) -> None:
    classes = objects("", "storageclasses")
    if not classes:
        pytest.skip("the cluster provisions no volumes")
    workspace = {"persistent": True, "size": "64Mi", "storageClassName": classes[0]["metadata"]["name"]}
    with new_namespace(tmp_path, "openshift-volume") as instance:
        openshift.constrain(instance.namespace)
        sandbox = {"warmPoolSize": 1, "workspace": workspace}
        apply_on_openshift(instance, {"sandbox": sandbox, "proxy": ALLOWLIST})
        assert instance.client().bash("s1", "echo kept > ~/file; cat ~/file").stdout == "kept\n"
        instance.client().end("s1").raise_for_status()
        assert instance.client().bash_once_started("s1", "cat ~/file").stdout == "kept\n"
