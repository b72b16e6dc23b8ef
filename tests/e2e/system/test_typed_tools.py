"""The typed tools in pods: at any replica, in the same workspace as the shell, and nowhere else."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from tests.e2e.operator import eventually
from tests.hooks.world import ALLOWLIST
from tests.path_escapes import try_to_escape

if TYPE_CHECKING:
    from tests.e2e.instances import Instance
    from tests.e2e.mcp_client import McpClient
    from tests.e2e_local.harness import Answer


@pytest.fixture(scope="module")
def ready(instance: Instance) -> Instance:
    spec = {
        "replicas": 2,
        "sandbox": {"warmPoolSize": 2},
        "proxy": ALLOWLIST,
        "tools": ["bash", "files", "processes"],
    }
    instance.create(spec)
    instance.wait_for("Ready", 60)
    eventually(lambda: len(instance.replicas()) == 2, 30)
    return instance


@pytest.fixture
def replicas(ready: Instance) -> list[McpClient]:
    return ready.replicas()


def ok(answer: Answer) -> Answer:
    assert not answer.is_error, answer.text
    return answer


def test_what_one_replica_writes_the_shell_and_the_other_replica_read(replicas: list[McpClient]) -> None:
    here, there = replicas
    content = "print('ä')\n" * 20_000
    written = ok(here.tool("files", "write_file", path="src/main.py", content=content, mode="0755"))
    assert written.structured["session"] == "new" and written.structured["created"]
    assert there.bash("files", "wc -c <src/main.py; stat -c %a src/main.py").stdout == "240000\n755\n"
    ok(there.tool("files", "move_file", source="src/main.py", destination="lib/app.py"))
    read = ok(here.tool("files", "read_file", path="/workspace/lib/app.py", limit=12))
    assert read.structured["content"] == "print('ä')\n"
    assert read.structured["session"] == "continued"
    ok(here.tool("files", "delete_file", path="lib", recursive=True))
    assert there.bash("files", "ls").stdout == "src\n"
    assert here.end("files").status_code == 204


def test_a_process_goes_on_whichever_replica_is_asked(replicas: list[McpClient]) -> None:
    here, there = replicas
    command = "for n in 1 2 3; do echo $n; sleep 0.5; done; exit 7"
    ok(here.tool("processes", "process_start", name="job", command=command))
    eventually(lambda: state_of(there, "job") == "exited")
    log = ok(there.tool("processes", "tail_log", name="job", offset=0))
    assert (log.structured["content"], log.structured["exit_code"]) == ("1\n2\n3\n", 7)
    ok(here.tool("processes", "process_start", name="server", command="sleep 600"))
    assert there.bash("processes", "pgrep -c sleep").stdout == "1\n"
    ok(there.tool("processes", "process_kill", name="server"))
    assert state_of(here, "server") == "exited"
    assert here.end("processes").status_code == 204


def state_of(client: McpClient, process: str) -> str:
    found = ok(client.tool("processes", "process_list")).structured["processes"]
    (state,) = (it["state"] for it in found if it["name"] == process)
    return str(state)


def test_no_path_leads_out_or_holds_up_a_call(replicas: list[McpClient]) -> None:
    client = replicas[0]

    def tool(name: str, **arguments: Any) -> Answer:
        return client.tool("escape", name, 60, **arguments)

    try_to_escape(partial(client.bash, "escape"), tool)
    assert client.end("escape").status_code == 204


def test_tools_of_somebody_elses_session_are_refused(ready: Instance, replicas: list[McpClient]) -> None:
    ok(replicas[0].tool("mine", "write_file", path="secret", content="mine"))
    stranger = ready.client(ready.make_caller("stranger"))
    answer = stranger.tool("mine", "read_file", path="secret")
    assert answer.is_error and "belongs to another caller" in answer.text
    assert replicas[0].end("mine").status_code == 204


def test_groups_that_are_not_asked_for_are_not_there(ready: Instance) -> None:
    client = ready.client()
    ready.apply({**ready.spec, "tools": ["bash"]})
    eventually(lambda: client.post("s", "read_file", path="x").json().get("error") is not None, 60)
    assert "Unknown tool" in client.post("s", "read_file", path="x").text
    assert client.bash("s", "echo still here").stdout == "still here\n"
