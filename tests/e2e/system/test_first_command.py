"""From `kubectl apply` of one file to a command of a session that reads the cluster."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from tests.e2e.operator import kubectl
from tests.hooks.world import KUBERNETES

if TYPE_CHECKING:
    from tests.e2e.instances import Instance

READY_SECONDS = 60


@pytest.fixture(scope="module")
def ready(instance: Instance) -> Instance:
    begin = time.monotonic()
    instance.create({"replicas": 2, "sandbox": {"warmPoolSize": 1}, "proxy": KUBERNETES})
    instance.wait_for("Ready", READY_SECONDS)
    print(f"\nReady {time.monotonic() - begin:.1f} s after it was applied")
    return instance


def test_a_caller_reads_what_the_investigation_identity_may_read(ready: Instance) -> None:
    kubectl("-n", ready.namespace, "create", "configmap", "seen", "--from-literal=answer=42")
    answer = ready.client().bash("s1", "kubectl get configmaps -o name")
    assert answer.exit_code == 0, answer.text
    assert "configmap/seen" in answer.stdout.splitlines()
