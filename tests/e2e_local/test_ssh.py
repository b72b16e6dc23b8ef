"""The second way in: `cli-mcp local --ssh`, with real sandboxes, OpenSSH's own clients and the SDK's."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client

from tests.e2e_local.conftest import USERS
from tests.e2e_local.harness import Server, running
from tests.local_runtime.users import UNPRIVILEGED_UID, passable_directory
from tests.mcp_shell_cases import Mode

SSH = shutil.which("ssh")
pytestmark = pytest.mark.skipif(
    SSH is None, reason="OpenSSH's client is not installed; tests/ssh_gateway covers the gateway without it"
)

ROUTES = {
    "routes": [
        {"username": "alice", "authorizedKeysSecret": "agents"},
        {"usernamePattern": "^agent-[a-z0-9]+$", "authorizedKeysSecret": "agents"},
    ]
}
INITIALIZE: dict[str, Any] = {
    "id": 0,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    },
}


@dataclass
class Door:
    """A server with SSH, and a client's files for it."""

    server: Server
    files: Path

    def ssh(self, *arguments: str, user: str = "alice", key: str = "id") -> list[str]:
        """The command of a client; its host is called `gateway`."""
        return ["ssh", "-F", str(self.files / f"config-{key}"), "-l", user, *arguments]

    def ssh_config(self, *arguments: str) -> str:
        """What `cli-mcp ssh-config` prints."""
        run = (sys.executable, "-c", "import sys; from cli_mcp.cli import main; sys.exit(main())")
        command = [*run, "ssh-config", "test", "--state-dir", str(self.files / "state"), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    def run(self, command: Sequence[str], *messages: dict[str, Any]) -> subprocess.CompletedProcess[str]:
        """Run a client with these messages, after a handshake, as its input."""
        handshake = [INITIALIZE, {"method": "notifications/initialized"}]
        lines = [json.dumps({"jsonrpc": "2.0", **message}) for message in (*handshake, *messages)]
        return subprocess.run(
            command, input="".join(f"{line}\n" for line in lines), capture_output=True, text=True, timeout=60
        )

    def audit(self) -> list[dict[str, Any]]:
        lines = (self.server.state / "audit.jsonl").read_text().splitlines()
        return [record for line in lines if (record := json.loads(line))["event"].startswith("ssh-")]

    def last(self, event: str) -> dict[str, Any]:
        """The last audit record of this event; empty when there is none."""
        return next((record for record in reversed(self.audit()) if record["event"] == event), {})

    def until(self, condition: Callable[[], bool]) -> None:
        """Wait for what the server does after a client has ended."""
        deadline = time.monotonic() + 30
        while not condition():
            assert time.monotonic() < deadline, self.audit()[-5:]
            time.sleep(0.1)

    def parameters(self, user: str) -> StdioServerParameters:
        command, *arguments = self.ssh("gateway", user=user)
        return StdioServerParameters(command=command, args=arguments)


def call(request_id: int, command: str, **more: Any) -> dict[str, Any]:
    arguments = {"command": command, **more}
    return {"id": request_id, "method": "tools/call", "params": {"name": "bash", "arguments": arguments}}


def answers(ran: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    assert ran.stdout, ran.stderr
    return [json.loads(line) for line in ran.stdout.splitlines()]


def stdout_of(ran: subprocess.CompletedProcess[str]) -> str:
    return str(answers(ran)[-1]["result"]["structuredContent"]["stdout"])


@contextmanager
def open_door(*, unprivileged: bool = False, root: Path | None = None, **sandbox: Any) -> Iterator[Door]:
    """A server and a client that may log in, with the configuration that `cli-mcp ssh-config` prints."""
    if root is None:
        owner = UNPRIVILEGED_UID if unprivileged and os.geteuid() == 0 else None
        with (
            passable_directory(owner) as made,
            open_door(unprivileged=unprivileged, root=made, **sandbox) as door,
        ):
            yield door
        return
    for name in ("id", "stranger"):
        if not (root / name).exists():
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", root / name], check=True)
    secret = root / "secrets" / "agents"
    secret.mkdir(parents=True, exist_ok=True)
    (secret / "authorized_keys").write_bytes((root / "id.pub").read_bytes())
    arguments = ("--ssh", "127.0.0.1:0", "--secrets-dir", str(root / "secrets"))
    with running(unprivileged=unprivileged, root=root, arguments=arguments, ssh=ROUTES, **sandbox) as server:
        door = Door(server, root)
        (root / "known_hosts").write_text(door.ssh_config("--format", "known-hosts"))
        for key in ("id", "stranger"):
            block = door.ssh_config("--format", "ssh-config", "--identity", str(root / key))
            named = block.replace("Host cli-mcp-test", "Host gateway")
            (root / f"config-{key}").write_text(f"{named}    UserKnownHostsFile {root}/known_hosts\n")
        yield door


@pytest.fixture(scope="module", params=USERS)
def door(request: pytest.FixtureRequest) -> Iterator[Door]:
    with open_door(unprivileged=request.param == "user") as opened:
        yield opened


def test_two_user_names_are_two_sandboxes_that_keep_their_state(door: Door) -> None:
    for user in ("alice", "agent-7"):
        ran = door.run(
            door.ssh("gateway", user=user), call(1, f"echo {user} > mine; export WHO={user}; id -un")
        )
        assert stdout_of(ran) == "sandbox\n"
        assert ran.returncode == 0
    for user in ("alice", "agent-7"):
        ran = door.run(door.ssh("gateway", user=user), call(1, "cat mine; echo $WHO; ls"))
        assert stdout_of(ran) == f"{user}\n{user}\nmine\n"
        assert answers(ran)[-1]["result"]["structuredContent"]["session"] == "continued"


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_the_sdks_client_completes_a_session(door: Door, mode: Mode) -> None:
    async with Client(stdio_client(door.parameters(f"agent-{mode}")), mode=mode) as client:
        names = {tool.name for tool in (await client.list_tools()).tools}
        assert {"bash", "read_file", "process_start", "tail_log"} <= names
        result = await client.call_tool("bash", {"command": "export STATE=kept; echo hi"})
        assert result.structured_content is not None
        assert result.structured_content["stdout"] == "hi\n"
        assert (await client.call_tool("bash", {"command": "(exit 3)"})).is_error
    async with Client(stdio_client(door.parameters(f"agent-{mode}")), mode=mode) as client:
        result = await client.call_tool("bash", {"command": "echo $STATE"})
        assert result.structured_content is not None
        assert result.structured_content["stdout"] == "kept\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ["gateway"],
        ["gateway", "rm -rf /"],
        ["-s", "gateway", "mcp"],
        ["-T", "gateway"],
        ["-A", "gateway"],
        ["-X", "gateway"],
    ],
    ids=lambda arguments: " ".join(arguments),
)
def test_the_mcp_server_answers_whatever_is_asked_for(door: Door, arguments: list[str]) -> None:
    ran = door.run(door.ssh(*arguments), call(1, "echo hi; env | grep -i ssh; ls /tmp"))
    assert stdout_of(ran) == "hi\n"
    assert ran.returncode == 0


REFUSED = [
    (["-tt", "gateway"], "PTY allocation request failed", "a terminal was asked for"),
    (["-s", "gateway", "sftp"], "subsystem request failed", "the subsystem 'sftp' was asked for"),
    (["-W", "127.0.0.1:22", "gateway"], "administratively prohibited", "forwarding was asked for"),
    (
        ["-o", "ClearAllForwardings=no", "-o", "ExitOnForwardFailure=yes", "-R", "0:127.0.0.1:22", "gateway"],
        "remote port forwarding failed",
        "remote forwarding was asked for",
    ),
]


@pytest.mark.parametrize(("arguments", "said", "reason"), REFUSED, ids=lambda value: str(value)[:40])
def test_what_is_not_for_anybody_is_refused(door: Door, arguments: list[str], said: str, reason: str) -> None:
    ran = door.run(door.ssh(*arguments), call(1, "echo hi"))
    assert said in ran.stderr
    assert ran.stdout == ""
    assert ran.returncode != 0
    door.until(lambda: reason in [record.get("reason") for record in door.audit()])


@pytest.mark.parametrize("forward", ["-L", "-D"])
def test_a_forwarded_port_leads_nowhere(door: Door, forward: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    target = f"127.0.0.1:{port}" if forward == "-D" else f"127.0.0.1:{port}:127.0.0.1:22"
    before = forwardings(door)
    command = door.ssh("-o", "ClearAllForwardings=no", forward, target, "gateway")
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as client:
        with connected(port) as connection:
            if forward == "-D":  # RFC 1928: no authentication, connect to 127.0.0.1 port 22
                connection.sendall(b"\x05\x01\x00")
                assert connection.recv(2) == b"\x05\x00"
                connection.sendall(b"\x05\x01\x00\x01\x7f\x00\x00\x01\x00\x16")
            assert connection.recv(100)[:1] in (b"", b"\x05")
        client.kill()
    door.until(lambda: forwardings(door) == before + 1)


def forwardings(door: Door) -> int:
    return [record.get("reason") for record in door.audit()].count("forwarding was asked for")


def connected(port: int) -> socket.socket:
    """A connection to the port, once somebody listens there."""
    deadline = time.monotonic() + 20
    while True:
        try:
            connection = socket.create_connection(("127.0.0.1", port), timeout=20)
        except ConnectionRefusedError:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        else:
            return connection


@pytest.mark.parametrize("program", ["scp", "sftp"])
def test_files_are_not_copied(door: Door, program: str) -> None:
    (door.files / "loot").write_text("x")
    what = ["gateway"] if program == "sftp" else [str(door.files / "loot"), "gateway:/tmp/loot"]
    command = [program, "-F", str(door.files / "config-id"), *what]
    copied = subprocess.run(command, capture_output=True, text=True, timeout=60, input="")
    assert copied.returncode != 0
    assert "subsystem request failed" in copied.stderr


def test_scp_of_old_is_told_what_it_talks_to(door: Door) -> None:
    (door.files / "loot").write_text("x")
    command = ["scp", "-O", "-F", str(door.files / "config-id"), str(door.files / "loot"), "gateway:loot"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as client:
        assert client.stderr is not None
        assert "this is an MCP server" in client.stderr.readline()
        client.kill()
    assert (
        stdout_of(door.run(door.ssh("gateway"), call(1, "ls loot 2>&1 | wc -l; ls | grep -c loot")))
        == "1\n0\n"
    )


@pytest.mark.parametrize(
    ("user", "key", "options"),
    [
        ("alice", "stranger", []),
        ("bob", "id", []),
        ("root", "id", []),
        ("agent-", "id", []),
        ("alice", "id", ["-o", "BatchMode=no", "-o", "PreferredAuthentications=password"]),
        ("alice", "id", ["-o", "BatchMode=no", "-o", "PreferredAuthentications=keyboard-interactive"]),
        ("alice", "id", ["-o", "PubkeyAuthentication=no"]),
    ],
)
def test_whoever_has_no_key_of_the_route_stays_out(
    door: Door, user: str, key: str, options: list[str]
) -> None:
    ran = door.run(door.ssh(*options, "gateway", user=user, key=key), call(1, "echo hi"))
    assert ran.returncode == 255
    assert "Permission denied (publickey)" in ran.stderr
    assert ran.stdout == ""
    door.until(lambda: door.last("ssh-refused-login").get("user") == user)


def test_the_host_key_stays_over_a_restart_and_another_one_is_not_trusted() -> None:
    with open_door() as door:
        first = door.ssh_config("--format", "known-hosts").split()[1:]
        door.server.stop()
        key_file = door.server.state / "ssh_host_ed25519_key"
        assert key_file.stat().st_mode & 0o777 == 0o600
        with open_door(root=door.files) as again:
            assert again.ssh_config("--format", "known-hosts").split()[1:] == first
            assert stdout_of(again.run(again.ssh("gateway"), call(1, "echo hi"))) == "hi\n"
            port = (door.files / "known_hosts").read_text().split()[0]
            stranger = (door.files / "stranger.pub").read_text()
            (door.files / "known_hosts").write_text(f"{port} {stranger}")
            ran = again.run(again.ssh("gateway"), call(1, "echo hi"))
            assert "Host key verification failed" in ran.stderr
            assert ran.stdout == ""


def test_an_open_connection_keeps_the_session_and_a_closed_one_lets_it_go() -> None:
    with open_door(idleTimeout="2s") as door:
        client = subprocess.Popen(
            door.ssh("gateway"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        assert client.stdin is not None
        assert client.stdout is not None

        to_server, from_server = client.stdin, client.stdout

        def ask(message: dict[str, Any]) -> dict[str, Any]:
            to_server.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
            answer: dict[str, Any] = json.loads(from_server.readline())
            return dict(answer["result"])

        ask(INITIALIZE)
        assert ask(call(1, "export KEPT=yes"))["structuredContent"]["session"] == "new"
        time.sleep(4)
        kept = ask(call(2, "echo $KEPT"))["structuredContent"]
        assert (kept["session"], kept["stdout"]) == ("continued", "yes\n")
        client.send_signal(signal.SIGKILL)
        client.wait()
        door.until(lambda: bool(door.last("ssh-logout")))
        time.sleep(4)
        resumed = answers(door.run(door.ssh("gateway"), call(1, "echo $KEPT")))[-1]["result"]
        assert resumed["structuredContent"]["session"] == "resumed"
        assert resumed["structuredContent"]["stdout"] == "\n"
