"""Floods of the MCP server in local mode, out of sandboxes and from callers, and what a bystander notices."""

import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from mcp_server.serving import MAX_CONNECTIONS
from tests.attack.bystander import Figures, assert_unharmed, calling, quiet
from tests.e2e.greedy import GREED
from tests.e2e_local.harness import Server, running

_SECONDS = 8
# Into every pipe of every process that the session can see, that of its tools among them.
_ALL_PIPES = (
    "for fd in /proc/[0-9]*/fd/*; do [ -p $fd ] && "
    "(exec timeout {seconds} sh -c 'yes 12345678 >'$fd) 2>/dev/null & done; sleep {seconds}"
)
_POST = """
import sys, time, urllib.request, urllib.error
url, token, session, seconds, shape = sys.argv[1:]
size = 4 * 1024 * 1024 - 100
unit = {"numbers": b"1,", "keys": b'"a":1,', "lists": b"[],", "nested": b"["}[shape]
body = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"x":[' + unit * (size // len(unit))
headers = {
    "Authorization": f"Bearer {token}", "X-Session-ID": session, "Content-Type": "application/json",
    "Accept": "application/json, text/event-stream",
}
until = time.monotonic() + float(seconds)
while time.monotonic() < until:
    try:
        urllib.request.urlopen(urllib.request.Request(url, body, headers)).read()
    except urllib.error.HTTPError as refused:
        refused.read()
"""
_END_OF_HEAD = b"\r\n\r\n"
PIPES = {"the shell's": GREED["the pipes of its shell"].program, "all": _ALL_PIPES}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running(tools=("bash", "files", "processes"), resources={"limits": {"memory": "512Mi"}}) as started:
        started.call("bystander", "true")
        yield started


def calls_of_a_bystander(server: Server) -> Figures:
    return quiet(lambda: server.call("bystander", "true"))


@contextmanager
def beside(server: Server, seconds: float = _SECONDS) -> Iterator[Figures]:
    with calling(lambda: server.call("bystander", "true")) as figures:
        yield figures
        time.sleep(seconds)


@pytest.mark.parametrize("attackers", [1, 6])
@pytest.mark.parametrize("pipes", PIPES)
def test_floods_of_the_pipes_that_a_session_can_write_to(server: Server, pipes: str, attackers: int) -> None:
    sessions = [f"attacker-{number}" for number in range(attackers)]
    for session in sessions:
        server.tool(session, "list_directory", path=".")  # so that its tools run
    before = calls_of_a_bystander(server)
    command = PIPES[pipes].replace("{seconds}", str(_SECONDS))
    for session in sessions:
        server.call(session, f"({command}) >/dev/null 2>&1 &")
    with beside(server) as figures:
        pass
    for session in sessions:
        server.end(session)
    assert_unharmed(f"{pipes} pipes", before, figures, attackers=attackers)


@pytest.mark.parametrize("attackers", [1, 6])
@pytest.mark.parametrize("shape", ["numbers", "keys", "lists", "nested"])
def test_floods_of_large_bodies(server: Server, shape: str, attackers: int) -> None:
    before = calls_of_a_bystander(server)
    with ExitStack() as stack:
        for number in range(attackers):
            arguments = (server.url, server.token, f"body-{number}", str(_SECONDS), shape)
            program = [sys.executable, "-c", _POST, *arguments]
            stack.enter_context(subprocess.Popen(program))
        figures = stack.enter_context(beside(server, _SECONDS - 1))
    assert_unharmed(f"bodies of {shape}", before, figures, attackers=attackers)


@pytest.mark.parametrize(
    "says", [b"", b"POST /mcp HTTP/1.1\r\nHost: ", b"GET /live HTTP/1.1\r\nHost: localhost\r\n\r\n"]
)
def test_connections_on_which_nothing_is_asked_keep_nobody_out(server: Server, says: bytes) -> None:
    """More than the server takes: silent ones, half a head, kept alive after an answer."""
    before = calls_of_a_bystander(server)
    port = int(server.url.split(":")[2].split("/")[0])
    with ExitStack() as stack, beside(server, 3) as figures:
        for _ in range(MAX_CONNECTIONS + 20):
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            connection.sendall(says)
            if says.endswith(_END_OF_HEAD):
                connection.recv(4096)
    assert_unharmed(f"silent connections ({json.dumps(says.decode())})", before, figures)
