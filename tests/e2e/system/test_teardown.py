"""Instances that go while their sessions run: alone, with their namespace, and with the operator away."""

from __future__ import annotations

import os
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from cli_mcp import names
from tests.e2e.cluster import ALL_CHILDREN
from tests.e2e.instances import Instance, new_namespace
from tests.e2e.operator import NAMESPACE, Object, eventually, get, kubectl, objects
from tests.e2e.running_call import running_call
from tests.hooks.world import ALLOWLIST
from tests.ssh_gateway.harness import KEY, public

if TYPE_CHECKING:
    from collections.abc import Iterator

ANSWER_SECONDS = 60
GONE_SECONDS = 90
# The namespace controller looks again after half of the longest grace period that it saw, here 330 s.
NAMESPACE_GONE_SECONDS = 400
SPEC: Object = {"replicas": 2, "sandbox": {"warmPoolSize": 1}, "proxy": ALLOWLIST}
WITH_SSH: Object = {
    **SPEC,
    "ssh": {"routes": [{"usernamePattern": "^agent-[a-z]+$", "authorizedKeysSecret": "agents"}]},
}


@contextmanager
def serving(folder: Any, topic: str, spec: Object = SPEC) -> Iterator[Instance]:
    """Ready, with a session that keeps something."""
    with new_namespace(folder, topic) as instance:
        instance.make_secret("agents", {"authorized_keys": public(KEY)})
        instance.create(spec)
        instance.wait_for("Ready", 60)
        assert instance.client().bash("idle", "KEPT=yes").exit_code == 0
        yield instance


@pytest.fixture(scope="module")
def doomed_namespace(system: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Any]]:
    """A namespace that is deleted while a command runs there, and the command's answer. It takes minutes to
    go, in which other tests run."""
    with serving(tmp_path_factory.mktemp("doomed"), "doomed") as instance:
        with running_call(instance, instance.client(), "busy", "sleep 250") as answer:
            kubectl("delete", "namespace", instance.namespace, "--wait=false")
            ended = answer.result(ANSWER_SECONDS)
        yield instance.namespace, ended


@pytest.mark.usefixtures("doomed_namespace")
def test_callers_end_before_sandboxes_and_whoever_waits_is_told(tmp_path: Any, system: None) -> None:
    with serving(tmp_path, "teardown", WITH_SSH) as instance:
        with running_call(instance, instance.client(), "busy", "sleep 250") as answer:
            sandboxes = len(instance.component("sandbox"))
            delete(instance)
            eventually(lambda: len(instance.component("sandbox")) < sandboxes)
            who_was_left = instance.component("server") + instance.component("ssh")
            ended = answer.result(ANSWER_SECONDS)
        assert who_was_left == []
        assert is_clear(ended), ended.text
        eventually(lambda: is_gone(instance), GONE_SECONDS)


def delete(instance: Instance, *arguments: str) -> None:
    command = ("delete", "climcpinstance", instance.name, "--wait=false", *arguments)
    kubectl("-n", instance.namespace, *command)


def is_clear(ended: Any) -> bool:
    """An error that says what became of the session, and nothing of the cluster's inside."""
    return bool(ended.is_error) and "ession" in ended.text and "10." not in ended.text


def is_gone(instance: Instance) -> bool:
    """The instance and all that was made for it."""
    left = objects(instance.namespace, ALL_CHILDREN, names.LABEL_CONTROLLER_UID)
    return get(instance.namespace, "climcpinstance", instance.name) is None and left == []


def test_foreground_deletion_leaves_nothing_either(tmp_path: Any, system: None) -> None:
    """The garbage collector takes sandboxes and servers in any order then."""
    with serving(tmp_path, "foreground") as instance:
        with running_call(instance, instance.client(), "busy", "sleep 250") as answer:
            delete(instance, "--cascade=foreground")
            ended = answer.result(ANSWER_SECONDS)
        assert is_clear(ended), ended.text
        eventually(lambda: is_gone(instance), GONE_SECONDS)


@contextmanager
def operator_away() -> Iterator[None]:
    deployment = get(NAMESPACE, "deployment", "metacontroller")
    assert deployment is not None
    scale = ("-n", NAMESPACE, "scale", "deployment", "metacontroller")
    kubectl(*scale, "--replicas=0")
    eventually(lambda: not objects(NAMESPACE, "pods", "app.kubernetes.io/name=metacontroller"), 60)
    try:
        yield
    finally:
        kubectl(*scale, f"--replicas={deployment['spec']['replicas']}")
        kubectl("-n", NAMESPACE, "rollout", "status", "deployment", "metacontroller", "--timeout=120s")


@pytest.mark.skipif(os.environ.get("E2E_OPERATOR") == "processes", reason="no pods of the operator")
def test_without_the_operator_sessions_go_on_until_it_is_back(tmp_path: Any, system: None) -> None:
    with serving(tmp_path, "away") as instance:
        with operator_away():
            delete(instance)
            time.sleep(3)
            assert instance.client().bash("idle", "echo $KEPT").stdout == "yes\n"
            assert instance.instance()["metadata"]["deletionTimestamp"]
        eventually(lambda: is_gone(instance), GONE_SECONDS)


def test_a_namespace_goes_with_all_that_runs_in_it(doomed_namespace: tuple[str, Any]) -> None:
    namespace, ended = doomed_namespace
    assert is_clear(ended), ended.text
    eventually(lambda: get("", "namespace", namespace) is None, NAMESPACE_GONE_SECONDS)
