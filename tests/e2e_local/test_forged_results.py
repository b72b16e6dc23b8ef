"""In local mode, as root and as anybody: no process of a session answers for its shell or takes its lines."""

import pytest

from tests.e2e_local.harness import Server
from tests.e2e_local.test_isolation import needs_python
from tests.forged_results import LOOK, NOTHING, THIEVES


@needs_python
def test_shell_and_supervisor_are_out_of_reach(server: Server) -> None:
    assert server.call("look", LOOK).stdout == NOTHING
    server.call("look", "(sleep 60; :) & exit")
    assert server.call("look", LOOK).stdout == NOTHING


@needs_python
@pytest.mark.parametrize("thief", THIEVES)
def test_each_command_runs_once_or_says_that_it_did_not(server: Server, thief: str) -> None:
    session = f"robbed-by-{thief.replace('_', '-')}"
    server.call(session, "STATE=kept")
    server.call(session, THIEVES[thief])
    for number in range(3):
        answer = server.call(session, f"echo {number} >>ran; echo $STATE {number}; (exit 7)", timeout=15)
        assert (answer.exit_code, answer.stdout) == (7, f"kept {number}\n") or "flooded" in answer.text
    ran = server.call(session, "cat ran").stdout.split()
    assert ran == sorted(set(ran)) and len(ran) >= 2
    server.end(session)
