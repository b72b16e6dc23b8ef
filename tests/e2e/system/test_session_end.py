"""`DELETE /sessions/{id}` at one replica, whatever happens at the others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.e2e.operator import eventually
from tests.e2e.running_call import running_call
from tests.hooks.world import ALLOWLIST

if TYPE_CHECKING:
    from tests.e2e.instances import Instance

ANSWER_SECONDS = 30


@pytest.fixture(scope="module")
def ready(instance: Instance) -> Instance:
    instance.create({"replicas": 2, "sandbox": {"warmPoolSize": 1}, "proxy": ALLOWLIST})
    instance.wait_for("Ready", 60)
    eventually(lambda: len(instance.replicas()) == 2, 30)
    return instance


def test_a_command_that_runs_at_the_other_replica_is_told(ready: Instance) -> None:
    here, there = ready.replicas()
    there.bash("s1", "KEPT=yes")
    with running_call(ready, here, "s1", "sleep 200") as answer:
        assert there.end("s1").status_code == 204
        ended = answer.result(ANSWER_SECONDS)
    assert ended.is_error and ended.text.startswith("session ended by DELETE"), ended.text
    for client in (here, there):
        assert client.bash("s1", "echo [$KEPT]").stdout == "[]\n", "another sandbox"
    assert len(ready.session_pods("s1")) == 1


def test_ending_it_at_both_at_once_ends_it_once(ready: Instance) -> None:
    here, there = ready.replicas()
    with running_call(ready, here, "s2", "sleep 200") as answer:
        assert [it.end("s2").status_code for it in (there, there)] == [204, 204]
        assert answer.result(ANSWER_SECONDS).is_error
    assert there.end("never-was").status_code == 204
    eventually(lambda: ready.session_pods("s2") == [], 30)
