"""The uninstall script against what it may find. It takes everything of cli-mcp out of the cluster."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from cli_mcp import names
from tests.e2e.installation import NEEDS_NO_OPERATOR, install, uninstall
from tests.e2e.instances import Instance, new_namespace
from tests.e2e.operator import NAMESPACE, eventually, get, kubectl, objects
from tests.hooks.world import ALLOWLIST

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = NEEDS_NO_OPERATOR

CRD = f"{names.PLURAL}.{names.GROUP}"


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[Instance]:
    """Ready, with a session in which a command runs, in a system of its own."""
    install()
    with new_namespace(tmp_path, "uninstall") as made:
        made.create({"sandbox": {"warmPoolSize": 1}, "proxy": ALLOWLIST})
        made.wait_for("Ready", 60)
        assert made.client().bash("s1", "sleep 300 & echo started").stdout == "started\n"
        yield made
    uninstall()


def nothing_is_left(instance: Instance) -> bool:
    cluster_wide = "clusterroles,clusterrolebindings,validatingadmissionpolicies,namespaces"
    found = kubectl("get", cluster_wide, "-l", "app.kubernetes.io/part-of=cli-mcp", "-o", "name")
    crd = kubectl("get", "crd", CRD, "--ignore-not-found", "-o", "name")
    pods = objects(instance.namespace, "pods,deployments,networkpolicies", names.LABEL_INSTANCE)
    return not (found or crd or pods)


def stop_metacontroller() -> None:
    kubectl("-n", NAMESPACE, "scale", "deployment", "metacontroller", "--replicas=0")
    eventually(lambda: not objects(NAMESPACE, "pods"), 60)


def test_all_of_it_goes_while_sessions_run(instance: Instance) -> None:
    assert "warning" not in uninstall()
    eventually(lambda: nothing_is_left(instance), 60)
    assert "done" in uninstall(), "again, with nothing there"


def test_instances_that_nobody_finalizes_any_more_are_released_with_a_warning(instance: Instance) -> None:
    stop_metacontroller()
    assert f"warning: {instance.namespace}/demo" in uninstall()
    eventually(lambda: nothing_is_left(instance), 60)


def test_a_namespace_that_is_deleted_meanwhile_goes_too(instance: Instance) -> None:
    kubectl("delete", "namespace", instance.namespace, "--wait=false")
    time.sleep(1)
    uninstall()
    assert get("", "crd", CRD) is None
    # The namespace controller looks again after half of the longest grace period that it saw, here 330 s.
    eventually(lambda: not kubectl("get", "namespace", instance.namespace, "--ignore-not-found"), 400)


def test_kept_instances_serve_on_and_are_looked_after_by_the_next_installation(instance: Instance) -> None:
    uninstall("--keep-instances")
    assert get("", "namespace", NAMESPACE) is None
    assert instance.client().bash("s1", "jobs").exit_code == 0
    install()
    instance.apply({**instance.spec, "sandbox": {**instance.spec["sandbox"], "warmPoolSize": 2}})
    eventually(lambda: len(instance.component("sandbox")) == 3, 60)
    assert instance.client().bash("s1", "jobs").stdout.endswith("sleep 300 &\n")
