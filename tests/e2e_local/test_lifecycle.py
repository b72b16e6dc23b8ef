"""Starting, ending and being killed: what `cli-mcp local` leaves behind, and what it finds again."""

import json
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from local_runtime import cgroups
from local_runtime.state import exchange_in_memory
from tests.e2e_local.harness import Answer, Server, command_line, instance, running
from tests.local_runtime.users import UNPRIVILEGED_UID, passable_directory

MARK = "sleep 31.4159"


def until(condition: Callable[[], bool], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def marked() -> list[str]:
    """The processes of sandboxes that a test started, by their unusual command line."""
    return subprocess.run(["pgrep", "-f", f"^{MARK}"], capture_output=True, text=True).stdout.split()


def sandboxes_of(server: Server) -> list[str]:
    """Host pids of bubblewrap below the server."""
    return subprocess.run(["pgrep", "-P", str(server.pid)], capture_output=True, text=True).stdout.split()


def test_the_printed_curl_line_works_as_it_is(server: Server) -> None:
    line = next(line for line in server.screen.splitlines() if line.startswith("  curl "))
    answer = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=30)
    assert "hello from sandbox" in answer.stdout


def test_the_printed_configurations_have_what_a_client_needs(server: Server) -> None:
    lines = server.screen.splitlines()
    assert any("claude mcp add" in line and line.endswith("--stdio") for line in lines)
    (over_http,) = (line for line in lines if '"type": "http"' in line)
    for needed in (server.url, f"Bearer {server.token}", "X-Session-ID"):
        assert needed in over_http
    assert server.screen.count(server.token) == 1


def test_it_says_what_of_the_file_is_not_used() -> None:
    with running(image="example.com/image:1", nodeSelector={"a": "b"}) as server:
        assert "spec.sandbox.image" in server.screen and "spec.sandbox.nodeSelector" in server.screen


def test_the_token_and_the_state_are_private(server: Server) -> None:
    assert (server.state / "token").stat().st_mode & 0o777 == 0o600
    assert server.state.stat().st_mode & 0o777 == 0o711
    server.call("a", "true")
    assert all(path.stat().st_mode & 0o777 == 0o700 for path in server.workspaces())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_everything(unprivileged: bool, number: signal.Signals) -> None:
    with running(unprivileged=unprivileged, warmPoolSize=1) as server:
        server.call("a", f"{MARK} & setsid {MARK} & disown -a")
        assert marked()
        assert server.stop(number) == 0
        assert marked() == []
        assert not list((server.state / "pool").iterdir())
        assert not exchange_in_memory(server.state, server.state.stat().st_uid).exists()


def test_a_running_command_may_finish_after_the_first_signal(unprivileged: bool) -> None:
    with running(unprivileged=unprivileged) as server:
        answers: list[Answer] = []
        call = threading.Thread(
            target=lambda: answers.append(server.call("a", "touch on; sleep 2; echo finished"))
        )
        server.call("a", "true")
        call.start()
        until(lambda: (server.workspaces()[0] / "on").exists())
        assert server.stop() == 0
        call.join()
        assert answers[0].stdout == "finished\n"


def test_the_second_signal_does_not_wait() -> None:
    with running() as server:
        server.call("a", "true")
        answers: list[str] = []

        def call() -> None:
            try:
                answers.append(server.call("a", "touch on; sleep 60").text)
            except OSError as error:  # the connection may be closed instead
                answers.append(str(error))

        thread = threading.Thread(target=call)
        thread.start()
        until(lambda: (server.workspaces()[0] / "on").exists())
        server.process.send_signal(signal.SIGTERM)
        time.sleep(0.3)
        started = time.monotonic()
        server.stop()
        assert time.monotonic() - started < 8
        thread.join()


def test_a_server_started_by_nohup_stays_and_its_sandboxes_ignore_no_signal() -> None:
    """nohup(1) and a script's `&` start it with signals ignored, which programs inherit from each other."""
    ignored = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGHUP, signal.SIGINT)}
    try:
        running_server = running()
        server = running_server.__enter__()
    finally:
        for number, handler in ignored.items():
            signal.signal(number, handler)
    with ExitStack() as stack:
        stack.push(running_server)
        server.process.send_signal(signal.SIGHUP)
        ignored_mask = server.call("a", "grep SigIgn /proc/self/status").stdout.split()[1]
        # Those from 32 on are the C library's own; make(1) leaves them ignored.
        assert int(ignored_mask, 16) & 0x7FFFFFFF == 0
        assert server.process.poll() is None


def test_nothing_outlives_a_killed_server(unprivileged: bool) -> None:
    with running(unprivileged=unprivileged, warmPoolSize=1) as server:
        server.call("a", f"{MARK} & setsid {MARK} & disown -a")
        server.call("b", f"trap '' HUP TERM INT; {MARK} &")
        sandboxes = sandboxes_of(server)
        assert marked() and sandboxes
        server.stop(signal.SIGKILL)
        until(lambda: not marked())
        until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in sandboxes))


def test_after_a_kill_a_session_is_resumed_and_leftovers_are_removed(unprivileged: bool) -> None:
    owner = UNPRIVILEGED_UID if unprivileged and os.geteuid() == 0 else None
    with passable_directory(owner) as root:
        with running(unprivileged=unprivileged, root=root, warmPoolSize=2) as server:
            server.call("a", "echo kept > file; export LOST=1")
            token = server.token
            uids = [path.stat().st_uid for path in server.workspaces()]
            server.stop(signal.SIGKILL)
            left = control_groups(server)
        with running(unprivileged=unprivileged, root=root, warmPoolSize=2) as server:
            assert server.token == token
            answer = server.call("a", "cat file; echo ${LOST-gone}; touch new")
            assert answer.stdout == "kept\ngone\n"
            assert answer.structured["session"] == "resumed"
            assert [path.stat().st_uid for path in server.workspaces()] == uids
            # And one that is made ahead, where it takes time to make one.
            until(lambda: len(list((server.state / "pool").iterdir())) == 2 + server.has_file_systems)
            until(lambda: not list((server.state / "trash").iterdir()))
            assert not left & control_groups(server)
        assert not control_groups(server)


def control_groups(server: Server) -> set[Path]:
    """The groups of the server's sandboxes that exist now."""
    return set(Path("/sys/fs/cgroup").glob(f"**/{cgroups.group_name(server.state)}/*/"))


def test_two_servers_cannot_share_a_state_directory() -> None:
    with passable_directory() as root, running(root=root):
        second = command_line(root / "instance.yaml", unprivileged=False, root=root, arguments=())
        refused = subprocess.run(second, capture_output=True, text=True, timeout=30)
        assert refused.returncode == 1
        assert "in use by another server" in refused.stderr


def test_no_authentication_takes_an_explicit_flag() -> None:
    with running(arguments=("--no-auth",)) as server:
        line = next(line for line in server.screen.splitlines() if line.startswith("  curl "))
        assert "Authorization" not in server.screen
        answer = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=30)
        assert "hello from sandbox" in answer.stdout


def test_an_idle_session_ends_and_comes_back_with_its_files(unprivileged: bool) -> None:
    with running(unprivileged=unprivileged, idleTimeout="1s") as server:
        server.call("a", f"echo kept > file; {MARK} > /dev/null 2>&1 &")
        until(lambda: not marked())
        answer = server.call("a", "cat file")
        assert (answer.stdout, answer.structured["session"]) == ("kept\n", "resumed")
        assert server.call("a", "sleep 3; echo slept").stdout == "slept\n"
        assert server.call("a", "pwd").structured["session"] == "continued"


def test_a_sandbox_that_reached_its_lifetime_ends_even_while_a_command_runs() -> None:
    with running(maxLifetime="2s") as server:
        answer = server.call("a", "sleep 30")
        assert answer.is_error and "lifetime" in answer.text


def test_the_number_of_sessions_is_limited() -> None:
    with running(maxSessions=2) as server:
        server.call("a", "true")
        server.call("b", "true")
        refused = server.call("c", "true")
        assert refused.is_error and "2 sessions" in refused.text
        assert server.end("a") == 204
        assert server.call("c", "echo now").stdout == "now\n"


def test_ending_a_session_is_quick_and_tells_the_running_call(server: Server) -> None:
    server.call("ended", "touch kept")
    answers: list[Answer] = []
    call = threading.Thread(target=lambda: answers.append(server.call("ended", f"trap '' TERM INT; {MARK}")))
    call.start()
    until(lambda: bool(marked()))
    started = time.monotonic()
    assert server.end("ended") == 204
    assert time.monotonic() - started < 5
    call.join()
    assert answers[0].is_error and "session ended by DELETE" in answers[0].text
    assert marked() == []
    assert server.call("ended", "ls").stdout == "kept\n"
    assert server.end("ended", workspace=True) == 204
    answer = server.call("ended", "ls")
    assert (answer.stdout, answer.structured["session"]) == ("", "new")


def test_values_come_from_files_in_place_of_secrets(tmp_path: Path) -> None:
    (tmp_path / "credentials").mkdir()
    (tmp_path / "credentials" / "greeting").write_text("hello\nworld\n")
    reference = {"secretKeyRef": {"name": "credentials", "key": "greeting"}}
    variables = [
        {"name": "GREETING", "valueFrom": reference},
        {"name": "HOME", "value": "/elsewhere"},
        {"name": "PLACE", "value": "$(GREETING)!"},
    ]
    with running(arguments=("--secrets-dir", str(tmp_path)), env=variables) as server:
        answer = server.call("a", 'echo "$GREETING|$HOME|$PLACE"')
        assert answer.stdout == "hello\nworld|/workspace|hello\nworld!\n"
        command_lines = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True).stdout
        assert "hello\nworld" not in command_lines


def test_what_is_missing_is_said_and_nothing_is_started(tmp_path: Path) -> None:
    import yaml

    variables = [{"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "credentials", "key": "greeting"}}}]
    file = tmp_path / "instance.yaml"
    file.write_text(yaml.safe_dump(instance(env=variables)))
    command = command_line(file, unprivileged=False, root=tmp_path, arguments=())
    refused = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert refused.returncode == 1
    assert "--secrets-dir" in refused.stderr
    assert re.search("credentials/greeting", refused.stderr)
    assert "Traceback" not in refused.stderr


LIMITED: dict[str, Any] = {"commandTimeout": {"default": 2, "max": "3s"}, "outputLimit": 1000}


def test_an_instance_chooses_the_times_of_commands_and_the_size_of_their_output() -> None:
    with running(arguments=("--log-commands",), **LIMITED) as server:
        began = time.monotonic()
        # What it started ignores signals, too.
        late = server.tool("a", "bash", 20, command="trap '' INT TERM; echo started; sleep 30; sleep 30")
        assert time.monotonic() - began < 1.5 + 5
        assert (late.stdout, late.exit_code, late.structured["timed_out"]) == ("started\n", 124, True)
        assert late.structured["notes"][0].startswith("timed out after 1.5 s")
        assert "timeout 600 s is too long: 3 s was used" in server.call("a", "true", 600).structured["notes"]
        long = server.call("b", "seq 1000", 3)
        lines = long.stdout.splitlines()
        assert len(long.stdout) < 1_100
        assert all(line.isdecimal() for line in lines if "left out" not in line)
        assert (lines[0], lines[-1]) == ("1", "1000")
        (note, _) = long.structured["notes"]
        assert note == f"stdout: 3,893 bytes, all in {long.structured['output_file']}"
        assert f"[{note}]" in long.text
        records = [json.loads(line) for line in (server.state / "audit.jsonl").read_text().splitlines()]
        assert [record["command"] for record in records if record["event"] == "call"][-1] == "seq 1000"


def test_whoever_shows_the_structure_alone_hears_everything(server: Server) -> None:
    new = server.call("structure", "(sleep 0.5; echo late) & echo now", 600)
    assert new.structured["notes"][0] == "timeout 600 s is too long: 300 s was used"
    assert new.structured["notes"][-1] == "new session"
    assert any("background.stdout" in note for note in new.structured["notes"])
    assert new.structured["background"] and "in the background: " not in new.text
    binary = server.call("structure", r"printf 'caf\xe9\n'")
    assert "stdout in readable form: caf\ufffd\n" in binary.structured["notes"]
    assert server.call("structure", "true").structured["notes"] == []
