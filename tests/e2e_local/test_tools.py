"""The typed tools through MCP, in real sandboxes: what they do, and that no path leads out."""

import time
from collections.abc import Iterator
from functools import partial

import pytest
import requests

from tests.e2e_local.conftest import USERS
from tests.e2e_local.harness import Answer, Server, running
from tests.path_escapes import try_to_escape

GROUPS = ("bash", "files", "processes")


@pytest.fixture(scope="module", params=USERS)
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    with running(unprivileged=request.param == "user", tools=GROUPS) as started:
        yield started


def ok(answer: Answer) -> Answer:
    assert not answer.is_error, answer.text
    return answer


def test_files_are_written_read_listed_moved_and_deleted(server: Server) -> None:
    first = ok(server.tool("files", "write_file", path="src/main.py", content="print('ä')\n", mode="0755"))
    assert first.structured["session"] == "new" and first.structured["created"]
    assert (
        server.call("files", "cat src/main.py; stat -c %a,%u src/main.py").stdout == "print('ä')\n755,1000\n"
    )
    read = ok(server.tool("files", "read_file", path="/workspace/src/main.py"))
    assert read.structured["content"] == "print('ä')\n"
    ok(server.tool("files", "move_file", source="src/main.py", destination="lib/app.py"))
    listed = ok(server.tool("files", "list_directory", path="lib"))
    assert [entry["name"] for entry in listed.structured["entries"]] == ["app.py"]
    assert server.tool("files", "delete_file", path="lib").is_error
    ok(server.tool("files", "delete_file", path="lib", recursive=True))
    assert server.tool("files", "read_file", path="lib/app.py").is_error


def test_no_path_leads_out_or_holds_up_a_call(server: Server) -> None:
    try_to_escape(partial(server.call, "escape"), partial(server.tool, "escape"))


def test_hard_links_to_what_is_outside_cannot_be_made(server: Server) -> None:
    targets = "/etc/passwd /usr/bin/env /run/cli-mcp /tmp/own /opt/cli-mcp/tools.pyz /proc/version"
    made = server.call("links", f"touch /tmp/own; for t in {targets}; do ln $t l && echo made $t; done; ls")
    assert made.stdout == ""


def test_names_swapped_for_links_in_a_loop_never_lead_out(server: Server) -> None:
    server.call("swap", "mkdir -p d /tmp/out; echo mine > d/f; echo secret > /tmp/out/f; ln -s /tmp/out l")
    swap = (
        "while :; do mv -T d s; mv -T s d; mv -T l s; mv -T s l; "
        "ln -sfn /tmp/out/f g; echo mine > h; mv h g; done"
    )
    server.call("swap", f"({swap}) > /dev/null 2>&1 &")
    for number in range(60):
        for path in ("s/f", "g"):
            read = server.tool("swap", "read_file", path=path)
            assert read.is_error or read.structured["content"] in ("mine\n", "theirs", ""), read.text
        server.tool("swap", "write_file", path="s/f", content="theirs", atomic=number % 2 == 0)
        server.tool("swap", "write_file", path="g", content="theirs", atomic=number % 2 == 0)
        server.tool("swap", "delete_file", path="s/f")
    assert server.call("swap", "kill %1; ls -A /tmp/out; cat /tmp/out/f").stdout == "f\nsecret\n"


def test_a_process_survives_its_client_and_keeps_its_exit_code(server: Server) -> None:
    """Each call is a connection of its own, so every one of them finds the session anew."""
    command = "for i in 1 2 3; do echo $i; sleep 0.3; done; exit 7"
    ok(server.tool("proc", "process_start", name="job", command=command))
    first = ok(server.tool("proc", "tail_log", name="job", offset=0, follow=20))
    with pytest.raises(requests.exceptions.RequestException):  # a client that is gone in the middle of a call
        waiting = _request("shell_exec", command="sleep 30")
        requests.post(server.url, json=waiting, headers=server.headers("proc"), timeout=0.5)
    text, offset = first.structured["content"], first.structured["next_offset"]
    for _ in range(10):
        piece = ok(server.tool("proc", "tail_log", name="job", offset=offset, follow=20))
        text, offset = text + piece.structured["content"], piece.structured["next_offset"]
        if piece.structured["state"] == "exited" and not piece.structured["content"]:
            break
    assert text == "1\n2\n3\n" and piece.structured["exit_code"] == 7
    (listed,) = ok(server.tool("proc", "process_list")).structured["processes"]
    assert (listed["state"], listed["exit_code"]) == ("exited", 7)
    killed = ok(server.tool("proc", "process_kill", name="job"))
    assert killed.structured["exit_code"] == 7


def test_processes_share_the_sandbox_with_the_shell_and_end_with_the_session(server: Server) -> None:
    script = "import http.server as h; h.test(h.SimpleHTTPRequestHandler, port=8000, bind='127.0.0.1')"
    mark = "sleep 47.11"
    ok(server.tool("web", "write_file", path="index.html", content="hello from the process"))
    ok(server.tool("web", "process_start", name="web", command=f'python3 -c "{script}" || {mark}; {mark}'))
    fetch = (
        "for i in $(seq 50); do curl -sf --noproxy '*' http://127.0.0.1:8000/ && break; "
        "exec 3<>/dev/tcp/127.0.0.1/8000 && break; sleep 0.2; done 2>/dev/null; true"
    )
    result = server.call("web", f"{fetch}; pgrep -fc 'port=8000'")
    assert not result.is_error, result.text
    assert server.end("web") == 204
    listed = ok(server.tool("web", "process_list"))
    assert listed.structured["processes"] == [] and listed.structured["session"] == "resumed"


def test_a_timeout_of_the_shell_ends_no_started_process(server: Server) -> None:
    ok(server.tool("timeout", "process_start", name="job", command="sleep 60"))
    result = server.call("timeout", "sleep 30", timeout=0.5)
    assert result.exit_code == 124
    (job,) = ok(server.tool("timeout", "process_list")).structured["processes"]
    assert job["state"] == "running"
    assert server.call("timeout", "true").structured["background"] == []


def test_files_can_be_read_while_a_command_runs(server: Server) -> None:
    server.call("busy", "echo content > file; (sleep 20; echo done) > log &")
    started = time.monotonic()
    ok(server.tool("busy", "process_start", name="p", command="true"))
    assert ok(server.tool("busy", "read_file", path="file")).structured["content"] == "content\n"
    assert time.monotonic() - started < 15


@pytest.mark.parametrize(
    "kill",
    [
        "pkill -9 python",
        "pkill -9 -f python",
        "kill -9 -1",
        "kill -9 -1; (sleep 0.3 &)",  # as what was killed may still be there for a moment
    ],
)
def test_the_tools_come_back_when_the_sandbox_kills_them(server: Server, kill: str) -> None:
    session = f"kill-{len(kill)}"
    ok(server.tool(session, "write_file", path="file", content="kept"))
    server.call(session, f"export VARIABLE=kept; {kill}; true")
    # A call that comes before the death was noticed says that it may not have taken effect.
    answers = [server.tool(session, "read_file", path="file") for _ in range(2)]
    assert ok(answers[-1]).structured["content"] == "kept"
    assert not answers[0].is_error or "was killed" in answers[0].text
    assert server.call(session, "echo $VARIABLE").stdout == "kept\n"


def test_answers_that_a_process_of_the_sandbox_makes_up_are_told_from_real_ones(server: Server) -> None:
    """It has the same user as what serves the tools, so that it can write into the pipe."""
    ok(server.tool("fake", "list_directory"))
    lie = r'{"id": 99999, "result": {}}\nnonsense\n'
    forge = (
        "for f in /proc/[0-9]*/fd/*; do case $(readlink $f) in pipe:*) "
        f"{{ printf '{lie}' > $f; }} 2>/dev/null & ;; esac; done; sleep 0.5; kill $(jobs -p); true"
    )
    server.call("fake", forge, timeout=20)
    answers = [server.tool("fake", "list_directory") for _ in range(3)]
    assert any(not answer.is_error for answer in answers), [answer.text for answer in answers]
    assert server.call("fake", "echo fine").stdout == "fine\n"


def test_what_fills_the_workspace_is_stopped_and_the_tools_stay(server: Server) -> None:
    ok(server.tool("full", "process_start", name="filler", command="cat /dev/zero > big"))
    deadline = time.monotonic() + 60
    while True:
        listed = server.tool("full", "process_list")
        if not listed.is_error and all(one["state"] != "running" for one in listed.structured["processes"]):
            break
        assert time.monotonic() < deadline
        time.sleep(0.3)
    ok(server.tool("full", "delete_file", path="big"))
    server.call("full", "true")
    ok(server.tool("full", "write_file", path="small", content="fits again"))


def test_without_the_groups_there_is_bash_alone_and_no_helper() -> None:
    with running() as server:
        request = _request("read_file", path="x")
        answer = requests.post(server.url, json=request, headers=server.headers("a"), timeout=30)
        assert "Unknown tool" in answer.text
        assert "helper" not in server.call("a", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '; ls /opt").stdout


def _request(name: str, **arguments: object) -> dict[str, object]:
    return {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "tools/call",
        "params": {"name": name, "arguments": arguments},
    }
