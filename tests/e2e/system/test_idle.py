"""When sessions end by themselves: idle ones within exact bounds, busy ones never, old ones always."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from tests.e2e.instances import Instance, new_namespace
from tests.e2e.session_ends import SessionEnds, watched_sessions
from tests.hooks.world import ALLOWLIST

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.e2e.mcp_client import McpClient

IDLE_SECONDS = 6
# max(idleTimeout / 6, 60 s): by so much a stamp of activity may be late.
MARGIN_SECONDS = 60
# From the moment at which a pod is due to the one at which it is seen to retire; half a second without load.
SYNC_SECONDS = 30
LONGEST_IDLE_SECONDS = IDLE_SECONDS + MARGIN_SECONDS + SYNC_SECONDS
LIFETIME_SECONDS = 60
SLOW = pytest.mark.skipif("CLI_MCP_SOAK" not in os.environ, reason="takes five minutes: CLI_MCP_SOAK=1")


@pytest.fixture(scope="module")
def ready(instance: Instance) -> Instance:
    instance.create({"sandbox": {"idleTimeout": f"{IDLE_SECONDS}s", "warmPoolSize": 3}, "proxy": ALLOWLIST})
    instance.wait_for("Ready", 120)
    return instance


@pytest.fixture
def ends(ready: Instance) -> Iterator[SessionEnds]:
    with watched_sessions(ready.namespace) as watched:
        yield watched


def use(client: McpClient, session: str) -> float:
    """The moment at which the session was last active."""
    answer = client.bash_once_started(session, "COUNT=$((COUNT + 1))")
    assert answer.exit_code == 0, answer.text
    return time.monotonic()


def test_sessions_end_when_they_have_been_idle_for_their_time_and_not_while_they_are_used(
    ready: Instance, ends: SessionEnds
) -> None:
    client = ready.client()
    with ThreadPoolExecutor() as threads:
        busy = threads.submit(
            ready.client().bash, "busy", f"sleep {LONGEST_IDLE_SECONDS + 15}; echo done", 120
        )
        last_used = {}
        for session in ("idle-1", "idle-2"):
            last_used[session] = use(client, session)
            time.sleep(2.5)
        began = time.monotonic()
        while time.monotonic() < began + LONGEST_IDLE_SECONDS + 10:
            use(client, "used")
            time.sleep(IDLE_SECONDS)
        for session, last in last_used.items():
            idle = ends.wait_for(session, 0) - last
            print(f"\n{session}: ended after {idle:.1f} s")
            assert IDLE_SECONDS <= idle <= LONGEST_IDLE_SECONDS
        assert busy.result().stdout == "done\n"
    assert not ends.has_ended("used")
    assert not ends.has_ended("busy")
    assert client.bash("used", "echo $COUNT").stdout != "1\n"


def test_a_session_that_has_ended_begins_anew_and_says_so(ready: Instance, ends: SessionEnds) -> None:
    client = ready.client()
    use(client, "again")
    ends.wait_for("again", LONGEST_IDLE_SECONDS)
    answer = client.bash("again", "echo [$COUNT]")
    assert answer.stdout == "[]\n"
    assert answer.structured["session"] == "new"
    assert "new" in answer.text


@SLOW
def test_a_command_of_five_minutes_outlives_an_idle_timeout_of_one(
    ready: Instance, ends: SessionEnds
) -> None:
    ready.apply({**ready.spec, "sandbox": {**ready.spec["sandbox"], "idleTimeout": "1m"}})
    ready.wait_for("Ready")
    answer = ready.client().bash("patient", "sleep 295; echo done", timeout=300)
    assert answer.stdout == "done\n"
    assert not ends.has_ended("patient")
    assert ready.client().bash("patient", "echo still here").structured["session"] == "continued"


def test_a_sandbox_ends_at_its_maximum_age_even_in_the_middle_of_a_command(
    system: None, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with new_namespace(tmp_path_factory.mktemp("lifetime"), "lifetime") as instance:
        sandbox = {"maxLifetime": f"{LIFETIME_SECONDS}s", "warmPoolSize": 0}
        instance.create({"sandbox": sandbox, "proxy": ALLOWLIST})
        instance.wait_for("Ready", 120)
        client = instance.client()
        with watched_sessions(instance.namespace) as ends, ThreadPoolExecutor() as threads:
            asked = time.monotonic()
            use(client, "old")
            made = time.monotonic()
            cut_off = threads.submit(instance.client().bash, "old", "sleep 200", 250)
            ended = ends.wait_for("old", LIFETIME_SECONDS + SYNC_SECONDS)
            assert ended >= asked + LIFETIME_SECONDS - 1, "creation times are whole seconds"
            assert ended <= made + LIFETIME_SECONDS + SYNC_SECONDS
            answer = cut_off.result()
        assert answer.is_error
        assert "greatest lifetime: 60 seconds" in answer.text
        assert client.bash("old", "echo hi").structured["session"] == "new"
