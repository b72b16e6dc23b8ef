"""No process of a session answers for the shell, takes its commands unnoticed, or leaves it broken.

As in a pod: the agent is pid 1, and what it starts has its uid and no capability.
"""

import os
from collections.abc import AsyncIterator

import pytest

from cli_mcp.agent_api import Finished
from tests.forged_results import LOOK, NOTHING, THIEVES
from tests.sandbox_agent.running_agent import SignedClient
from tests.sandbox_agent.test_agent_attacks import agent_as_pid_one

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0, reason="making a pid namespace and becoming another user takes root"
)


@pytest.fixture
async def client() -> AsyncIterator[SignedClient]:
    with agent_as_pid_one() as agent:
        async with SignedClient(agent) as client:
            yield client


async def test_shell_and_supervisor_are_out_of_reach_also_after_the_shell_and_then_both_ended(
    client: SignedClient,
) -> None:
    assert await client.out(LOOK) == NOTHING
    await client.last_event("(sleep 60; :) & exit")
    assert await client.out(LOOK) == NOTHING
    await client.last_event("kill -9 $PPID")
    await client.last_event("true")
    assert await client.out(LOOK) == NOTHING


@pytest.mark.parametrize("thief", THIEVES.values(), ids=THIEVES.keys())
async def test_each_command_runs_once_or_says_that_it_did_not(client: SignedClient, thief: str) -> None:
    await client.last_event("STATE=kept")
    await client.last_event(thief)
    for number in range(4):
        event = await client.last_event(f"echo {number} >>ran; echo $STATE {number}; (exit 7)", 15)
        assert isinstance(event, Finished), event
        outcome = event.outcome
        if outcome.exit_code != 7:
            assert outcome.exit_code == 137 and "flooded" in " ".join(outcome.notes)
            continue
        assert outcome.stdout.head == b"kept %d\n" % number
        if outcome.shell_restarted:
            assert "ended" in " ".join(outcome.notes)
    ran = (await client.out("cat ran")).split()
    assert ran == sorted(set(ran)) and len(ran) >= 3


async def test_programs_of_the_sandbox_may_trace_each_other(client: SignedClient) -> None:
    traces = """
import ctypes, os, subprocess
other = subprocess.Popen(["sleep", "60"])
c = ctypes.CDLL(None, use_errno=True)
print(c.ptrace(0x4206, other.pid, None, None), len(os.listdir(f"/proc/{other.pid}/fd")) > 0)
other.kill()
"""
    assert await client.out(f"python3 - <<'END'\n{traces}\nEND") == "0 True\n"
