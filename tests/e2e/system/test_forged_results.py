"""In a pod: no process of a session answers for its shell, takes its commands unnoticed, or outlives them."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest

from tests.forged_results import HEADLESS, LOOK, NOTHING, THIEVES, python
from tests.hooks.world import ALLOWLIST

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.e2e.instances import Instance
    from tests.e2e.mcp_client import McpClient

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def client(instance: Instance) -> McpClient:
    instance.create({"sandbox": {"warmPoolSize": 1}, "proxy": ALLOWLIST}, ())
    instance.wait_for("Ready", 120)
    return instance.client()


@pytest.fixture
def session(client: McpClient) -> Iterator[str]:
    """A session of the test's own; it ends with it."""
    name = f"robbed-{next(_numbers)}"
    yield name
    client.end(name)


def test_shell_and_supervisor_are_out_of_reach(client: McpClient, session: str) -> None:
    assert client.bash(session, LOOK).stdout == NOTHING
    client.bash(session, "(sleep 60; :) & exit")
    assert client.bash(session, LOOK).stdout == NOTHING
    client.bash(session, "kill -9 $PPID")
    client.bash(session, "true")
    assert client.bash(session, LOOK).stdout == NOTHING


@pytest.mark.parametrize("thief", THIEVES)
def test_each_command_runs_once_or_says_that_it_did_not(client: McpClient, session: str, thief: str) -> None:
    client.bash(session, "STATE=kept")
    client.bash(session, THIEVES[thief])
    for number in range(3):
        answer = client.bash(session, f"echo {number} >>ran; echo $STATE {number}; (exit 7)", timeout=15)
        assert (answer.exit_code, answer.stdout) == (7, f"kept {number}\n") or "flooded" in answer.text
    ran = client.bash(session, "cat ran").stdout.split()
    assert ran == sorted(set(ran)) and len(ran) >= 2


def test_a_process_without_its_first_thread_is_listed_and_ends_with_its_command(
    client: McpClient, session: str
) -> None:
    client.bash(session, python(HEADLESS).replace("python3 - ", "cat >headless.py"))
    listed = client.bash(session, "python3 headless.py & sleep 1; echo $!")
    assert int(listed.stdout) in listed.structured["background"]
    client.bash(session, f"kill -9 {listed.stdout}")
    ended = client.bash(session, "python3 headless.py & echo $!; sleep 60", timeout=2)
    assert client.bash(session, f"cat /proc/{ended.stdout.strip()}/status").exit_code != 0
