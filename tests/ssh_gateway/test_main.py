"""`cli-mcp ssh` as a process: an API server in memory with the hooks' objects, real agents, SSH clients."""

from __future__ import annotations

import asyncio
import json
import re
import signal
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import asyncssh
import pytest

from ssh_gateway.host_key import load_or_make_host_key
from ssh_gateway.main import Arguments, main, parse_arguments
from ssh_gateway.routes import session_key
from tests.hooks.world import ALLOWLIST, NAMESPACE, World
from tests.kube.server import Server
from tests.mcp_server.agents.fake_agent import key_pair, write_keys
from tests.mcp_server.whole import TOKENS, agent, collect, kubeconfig_for, move, running
from tests.ssh_gateway.harness import KEY, OTHER_KEY, SECRET, LineClient, log_in, public, speaking

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from contextlib import AbstractAsyncContextManager

# Not the loopback addresses of the tests of the HTTP server, whose agents have the same port.
_NETWORK = "127.77.0"
SPEC: dict[str, Any] = {
    "proxy": ALLOWLIST,
    "sandbox": {"warmPoolSize": 2, "isolationTest": False},
    "ssh": {"routes": [{"usernamePattern": "^agent-[a-z0-9]+$", "authorizedKeysSecret": SECRET}]},
}


@dataclass
class WholeGateway:
    world: World
    directory: Path
    process: asyncio.subprocess.Process
    public_host_key: str
    port: int = 0
    log: list[str] = field(default_factory=list)
    audit: list[str] = field(default_factory=list)

    async def connect(self, username: str, key: asyncssh.SSHKey = KEY) -> asyncssh.SSHClientConnection:
        known_hosts = f"[127.0.0.1]:{self.port} {self.public_host_key}"
        return await log_in("127.0.0.1", self.port, username, key, known_hosts)

    def client(self, username: str) -> AbstractAsyncContextManager[LineClient]:
        return speaking(self.connect(username))

    def events(self) -> list[str]:
        return [json.loads(line)["event"] for line in self.audit]


@asynccontextmanager
async def whole_gateway(directory: Path) -> AsyncIterator[WholeGateway]:
    world = World()
    world.admin_secrets()
    world.secret(SECRET, {"authorized_keys": public(KEY)})
    world.apply(SPEC)
    world.run()
    key = key_pair()
    public_keys = directory / "public-keys"
    public_keys.mkdir()
    (public_keys / f"{key.kid}.pem").write_text(key.public_key)
    write_keys(directory / "session-keys.json", key)
    (directory / "keys" / SECRET).mkdir(parents=True)
    (directory / "keys" / SECRET / "authorized_keys").write_text(public(KEY))
    config_map = world.get("configmaps", "cli-mcp-demo-ssh")
    (directory / "ssh-routes.json").write_text(config_map["data"]["ssh-routes.json"])
    host_key = load_or_make_host_key(directory / "host_key")
    async with AsyncExitStack() as stack:
        for number, pod in enumerate(world.pods().values(), 1):
            address, uid = f"{_NETWORK}.{number}", pod["metadata"]["uid"]
            move(world, pod, address)
            await stack.enter_async_context(agent(directory / f"agent-{number}", address, uid, public_keys))
        api = await stack.enter_async_context(Server(world.api, TOKENS, collects_garbage=False).running())
        (directory / "kubeconfig").write_text(json.dumps(kubeconfig_for(api.url)))
        process = await stack.enter_async_context(
            running(
                *("ssh", "--instance", "demo", "--namespace", NAMESPACE, "--listen", "127.0.0.1:0"),
                *("--routes", str(directory / "ssh-routes.json")),
                *("--authorized-keys-dir", str(directory / "keys")),
                *("--host-key", str(directory / "host_key")),
                *("--session-keys", str(directory / "session-keys.json")),
                *("--kubeconfig", str(directory / "kubeconfig")),
            )
        )
        gateway = WholeGateway(world, directory, process, host_key.public_key)
        assert process.stdout is not None
        assert process.stderr is not None
        stack.callback(asyncio.create_task(collect(process.stdout, gateway.audit)).cancel)
        stack.callback(asyncio.create_task(collect(process.stderr, gateway.log)).cancel)
        async with asyncio.timeout(30):
            while not (found := re.search(r"serving SSH on port (\d+)", "\n".join(gateway.log))):
                assert process.returncode is None, gateway.log
                await asyncio.sleep(0.05)
        gateway.port = int(found[1])
        assert host_key.fingerprint in "\n".join(gateway.log)
        yield gateway


async def test_user_names_get_pods_of_their_own_and_the_audit_log_joins_key_and_pod(tmp_path: Path) -> None:
    async with whole_gateway(tmp_path) as gateway:
        async with gateway.client("agent-1") as one, gateway.client("agent-2") as two:
            assert (await one.run("export WHO=one"))["structuredContent"]["session"] == "new"
            assert (await two.run("echo [$WHO]"))["structuredContent"]["stdout"] == "[]\n"
            assert (await one.run("echo $WHO"))["structuredContent"]["stdout"] == "one\n"
        sessions = {
            pod["metadata"]["labels"].get("cli-mcp.redhat.com/session-id")
            for pod in gateway.world.pods().values()
        }
        assert {session_key("agent-1").id, session_key("agent-2").id} <= sessions
        async with gateway.client("agent-1") as again:
            assert (await again.run("echo $WHO"))["structuredContent"]["stdout"] == "one\n"
        with pytest.raises(asyncssh.PermissionDenied):
            await gateway.connect("agent-1", OTHER_KEY)
        async with asyncio.timeout(10):
            while "ssh-refused-login" not in gateway.events():
                await asyncio.sleep(0.05)
        calls = [json.loads(line) for line in gateway.audit if '"call"' in line]
        logins = [json.loads(line) for line in gateway.audit if '"ssh-login"' in line]
        assert calls[0]["owner"] == "ssh:agent-1"
        assert calls[0]["session"] == logins[0]["session"] == session_key("agent-1").id
        assert logins[0]["key"] == KEY.get_fingerprint()


async def test_a_signal_lets_the_command_end_and_then_the_process(tmp_path: Path) -> None:
    async with whole_gateway(tmp_path) as gateway, gateway.client("agent-1") as client:
        await client.run("true")
        client.call("sleep 1; echo done")
        await asyncio.sleep(0.3)
        gateway.process.send_signal(signal.SIGTERM)
        answer = await client.read()
        assert answer["result"]["structuredContent"]["stdout"] == "done\n"
        assert await client.exit_status() == 0
        async with asyncio.timeout(20):
            assert await gateway.process.wait() == 0


def test_the_arguments_of_the_deployment_are_understood() -> None:
    world = World()
    world.admin_secrets()
    world.secret(SECRET, {"authorized_keys": public(KEY)})
    world.apply(SPEC)
    world.run()
    (container,) = world.get("deployments.apps", "cli-mcp-demo-ssh")["spec"]["template"]["spec"]["containers"]
    command, *arguments = container["args"]
    assert command == "ssh"
    assert parse_arguments(arguments) == Arguments(
        instance="demo",
        namespace=None,
        listen=("", 2222),
        routes=Path("/etc/cli-mcp/ssh/ssh-routes.json"),
        authorized_keys_dir=Path("/etc/cli-mcp/ssh-authorized-keys"),
        host_key=Path("/etc/cli-mcp/ssh-host-key/ssh_host_ed25519_key"),
        session_keys=Path("/etc/cli-mcp/session-key/session-keys.json"),
        kubeconfig=None,
    )


def test_what_is_missing_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--instance", "demo", "--routes", "r", "--authorized-keys-dir", "k", "--session-keys", "s"]
    assert main([*arguments, "--host-key", str(tmp_path / "none")]) == 1
    assert "host key" in capsys.readouterr().err


def test_a_kubeconfig_that_cannot_be_used_is_said_without_a_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_keys(tmp_path / "session-keys.json", key_pair())
    load_or_make_host_key(tmp_path / "host_key")
    config = kubeconfig_for("http://127.0.0.1:9")
    config["users"][0]["user"] = {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "aws"}}
    (tmp_path / "kubeconfig").write_text(json.dumps(config))
    arguments = ["--instance", "demo", "--routes", "r", "--authorized-keys-dir", "k"]
    for option, name in (("--session-keys", "session-keys.json"), ("--host-key", "host_key")):
        arguments += [option, str(tmp_path / name)]
    assert main([*arguments, "--kubeconfig", str(tmp_path / "kubeconfig")]) == 1
    error = capsys.readouterr().err
    assert error.startswith("cli-mcp ssh: ")
    assert "use a token" in error
