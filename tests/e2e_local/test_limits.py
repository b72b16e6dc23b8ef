"""Sessions that take all they can get: each stays within its limits, and the others are served."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e_local.harness import Answer, Server
from tests.e2e_local.test_isolation import PYTHON, needs_python

MEBIBYTE = 1 << 20
DISK_LIMIT_BYTES = 64 * MEBIBYTE


@pytest.fixture(autouse=True)
def another_session_is_served(server: Server) -> Iterator[None]:
    yield
    assert server.call("bystander", "echo $((6 * 7))").stdout == "42\n"


def as_root(server: Server) -> bool:
    return Path(f"/proc/{server.process.pid}").stat().st_uid == 0


def has_memory_groups(server: Server) -> bool:
    return not any("no control group for memory" in line for line in server.log)


def until(condition: object, seconds: float = 20) -> None:
    assert callable(condition)
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_a_fork_bomb_stops_neither_its_neighbours_nor_new_sessions(server: Server) -> None:
    bomb = "bomb() { bomb | bomb & }; bomb; sleep 4"
    answers: list[Answer] = []
    thread = threading.Thread(target=lambda: answers.append(server.call("bomb", bomb, timeout=6)))
    thread.start()
    for number in range(5):
        assert server.call(f"beside-bomb-{number}", "echo started").stdout == "started\n"
    thread.join()
    answer = server.call("bomb", "echo alive", timeout=60)
    assert answer.text.startswith("alive") or answer.is_error
    assert server.end("bomb") == 204
    assert server.call("bomb", "echo again").stdout == "again\n"


def test_a_command_that_takes_all_memory_is_killed_and_the_limit_is_named(server: Server) -> None:
    if not has_memory_groups(server):
        pytest.skip("this user has no control groups for memory; see the test of the limit per process")
    answer = server.call("hog", "head -c 1G /dev/zero | tail | wc -c; echo ${PIPESTATUS[1]}")
    assert answer.stdout.endswith("137\n")
    assert "memory" in answer.text and "256 MiB" in answer.text
    assert server.call("hog", "echo alive").stdout == "alive\n"


def test_a_process_that_takes_all_memory_fails(server: Server) -> None:
    answer = server.call("hog2", "head -c 1G /dev/zero | tail | wc -c; echo ${PIPESTATUS[1]}")
    assert answer.stdout.split()[-1] in ("1", "137")
    assert server.call("hog2", "echo alive").stdout == "alive\n"


@pytest.mark.parametrize("directory", ["/tmp", "/dev/shm", "/var/tmp"])
def test_temporary_directories_have_a_size(server: Server, directory: str) -> None:
    fill = f"for i in 1 2 3; do head -c 60M /dev/zero > {directory}/big$i; done; du -bc {directory} | tail -1"
    answer = server.call("tmp", f"{fill} | cut -f1; rm {directory}/big*")
    assert "No space left" in answer.text
    assert int(answer.stdout) < 129 * MEBIBYTE
    assert server.call("tmp", f"echo y > {directory}/small && echo fine").stdout == "fine\n"


def used_bytes(server: Server, session: str) -> int:
    workspace = next(path for path in server.workspaces() if path.name.startswith(f"{session}-"))
    return sum(file.lstat().st_blocks * 512 for file in workspace.rglob("*"))


def test_one_file_cannot_outgrow_the_workspace(server: Server) -> None:
    server.call("bigfile", "head -c 1G /dev/zero > big")
    assert used_bytes(server, "bigfile") <= DISK_LIMIT_BYTES + MEBIBYTE
    server.end("bigfile", workspace=True)


def test_a_workspace_with_a_file_system_of_its_own_takes_no_more_and_says_so(server: Server) -> None:
    if not server.has_file_systems:
        pytest.skip("here it is measured; see the next test")
    fill = "for i in {1..30}; do head -c 4M /dev/zero > part$i; done; echo after"
    answer = server.call("full", fill, timeout=60)
    assert "No space left" in answer.text and "its limit is 64 MiB" in answer.text
    assert answer.stdout == "after\n"
    assert used_bytes(server, "full") < DISK_LIMIT_BYTES * 1.15
    assert server.call("full", "rm part*; echo freed").text == "freed\n"
    assert server.call("full", "head -c 1M /dev/zero > new && echo written").text == "written\n"
    server.end("full", workspace=True)


def test_a_full_workspace_stops_what_fills_it_and_says_so(server: Server) -> None:
    if server.has_file_systems:
        pytest.skip("here the kernel refuses; see the test before")
    fill = (
        "sleep 300 & i=0; while :; do head -c 4M /dev/zero > part$i; i=$((i+1)); sleep 0.02; done; echo after"
    )
    answer = server.call("full", fill, timeout=60)
    assert answer.is_error
    assert "over its limit of 64 MiB" in answer.text
    assert "after" not in answer.stdout
    assert not answer.structured["timed_out"]
    # Without room, a command that writes is stopped again, and one that does not is not.
    again = server.call("full", "head -c 8M /dev/zero > more; sleep 5; echo wrote", timeout=30)
    assert "over its limit" in again.text
    assert used_bytes(server, "full") < DISK_LIMIT_BYTES * 4
    assert server.call("full", "ls | wc -l; pgrep sleep").stdout.strip().isdigit()
    freed = server.call("full", "rm part* more; echo freed")
    assert freed.stdout == "freed\n"
    final = server.call("full", "head -c 1M /dev/zero > new && echo written")
    assert final.stdout == "written\n"
    assert "limit" not in final.text
    server.end("full", workspace=True)


def test_a_background_job_cannot_fill_the_workspace_either(server: Server) -> None:
    fill = "i=0; while :; do head -c 4M /dev/zero > part$i; i=$((i+1)); sleep 0.02; done"
    answer = server.call("background", f"({fill}) > /dev/null 2>&1 & echo started")
    assert answer.stdout == "started\n"
    if not server.has_file_systems:
        until(lambda: not server.call("background", "jobs -r").stdout, 30)
    time.sleep(3)
    assert used_bytes(server, "background") < DISK_LIMIT_BYTES * 4
    server.end("background", workspace=True)


DELETED = """
import os, time
files = []
for number in range(40):
    files.append(open(str(number), "wb"))
    os.unlink(str(number))
    files[-1].write(b"x" * (8 << 20))
    files[-1].flush()
    time.sleep(0.1)
time.sleep(30)
"""


@needs_python
def test_deleted_files_that_are_still_open_count(server: Server) -> None:
    answer = server.call("deleted", f"{PYTHON} - <<'E'\n{DELETED}\nE", timeout=60)
    assert ("No space left" if server.has_file_systems else "over its limit of 64 MiB") in answer.text
    assert server.call("deleted", "echo x > new && cat new").stdout == "x\n"
    server.end("deleted", workspace=True)


def test_space_cannot_be_reserved_in_an_instant(server: Server) -> None:
    assert "not supported" in server.call("reserve", "fallocate -l 1M reserved").text
    assert used_bytes(server, "reserve") == 0


def test_a_shell_that_fills_the_workspace_without_a_command_is_stopped(server: Server) -> None:
    fill = "for k in {1..400}; do head -c 4M /dev/zero > part$k; sleep 0.1; done"
    server.call("idle", f"i=0; PROMPT_COMMAND='if ((i++ == 1)); then {fill}; fi'")
    time.sleep(10)
    sizes = [used_bytes(server, "idle")]
    time.sleep(3)
    sizes.append(used_bytes(server, "idle"))
    assert sizes[0] == sizes[1] < DISK_LIMIT_BYTES * 4
    server.end("idle", workspace=True)


def test_millions_of_empty_files_count_as_well(server: Server) -> None:
    make = "/usr/bin/python3 -c 'for i in range(1000000): open(str(i), \"x\")'"
    answer = server.call("inodes", make, timeout=60)
    assert ("No space left" if server.has_file_systems else "over its limit") in answer.text
    server.end("inodes", workspace=True)


# Programs so small that memory does not run out first.
FORK = """
import os
children = []
try:
    while True:
        child = os.fork()
        if not child:
            os.execv("/bin/sleep", ["sleep", "60"])
        children.append(child)
except OSError:
    print(len(children))
for child in children:
    os.kill(child, 9)
"""


def test_the_number_of_processes_is_limited(server: Server) -> None:
    answer = server.call("many", f"/usr/bin/python3 - <<'E'\n{FORK}\nE")
    assert 900 < int(answer.stdout or 0) <= 1024, answer.text
