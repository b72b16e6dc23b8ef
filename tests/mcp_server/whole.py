"""The whole server as a process: an API server in memory with the hooks' objects, real agents on loopback."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import httpx2
import yaml
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from cli_mcp.names import AGENT_PORT
from tests.hooks.world import ALLOWLIST, NAMESPACE, World
from tests.kube.rbac import User, service_account
from tests.kube.server import Server
from tests.mcp_server.agents.fake_agent import key_pair, write_keys
from tests.mcp_server.certificates import MountedSecret, Pair, self_signed, trusting

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator
    from pathlib import Path

    from mcp.client.client import ConnectMode

    from tests.kube.objects import Object

CLIENT = "token-of-the-client"
OTHER_CLIENT = "token-of-another-client"
STRANGER = "token-of-a-stranger"
TOKENS = {
    "token-of-the-server": service_account(NAMESPACE, "cli-mcp-demo", "uid-server"),
    CLIENT: service_account(NAMESPACE, "cli-mcp-demo-client", "uid-client"),
    OTHER_CLIENT: User("somebody", "uid-other", ("system:authenticated", "clients")),
    STRANGER: service_account(NAMESPACE, "stranger", "uid-stranger"),
}
# Loopback addresses of this process's own, so that no two agents meet on AGENT_PORT.
_ADDRESSES = (f"127.{os.getpid() >> 8 & 255}.{os.getpid() & 255}.{host}" for host in range(1, 255))
_START = "import sys; from cli_mcp.cli import main; sys.exit(main())"


@dataclass
class WholeServer:
    world: World
    port: int
    process: asyncio.subprocess.Process
    tls: MountedSecret
    certificates: list[Pair]
    agents: dict[str, asyncio.subprocess.Process] = field(default_factory=dict)
    log: list[str] = field(default_factory=list)
    audit: list[str] = field(default_factory=list)

    @property
    def origin(self) -> str:
        return f"https://localhost:{self.port}"

    def http(self, token: str | None = CLIENT, session: str = "s1", **headers: str) -> httpx2.AsyncClient:
        """A client that trusts every certificate the server has had."""
        headers = {"X-Session-ID": session, **headers}
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        context: ssl.SSLContext = trusting(*self.certificates)
        return httpx2.AsyncClient(
            base_url=self.origin, headers=headers, verify=context, trust_env=False, timeout=60
        )

    @asynccontextmanager
    async def client(
        self, mode: ConnectMode = "legacy", token: str = CLIENT, session: str = "s1"
    ) -> AsyncIterator[Client]:
        async with (
            self.http(token, session) as http,
            Client(streamable_http_client(f"{self.origin}/mcp", http_client=http), mode=mode) as client,
        ):
            yield client

    async def started(self) -> None:
        """Return once it is ready."""
        health = "no answer yet"
        try:
            async with asyncio.timeout(30):
                while not (found := re.search(r"serving MCP on port (\d+)", "\n".join(self.log))):
                    assert self.process.returncode is None
                    await asyncio.sleep(0.05)
                self.port = int(found[1])
                async with self.http(None) as http:
                    while (answer := await http.get("/health")).status_code != 200:
                        health = answer.text
                        await asyncio.sleep(0.05)
        except (TimeoutError, AssertionError):
            raise AssertionError(f"{health}: {self.log}") from None

    async def metrics(self) -> str:
        async with self.http() as http:
            return (await http.get("/metrics")).text

    def pod_of(self, session: str) -> Object | None:
        for pod in self.world.pods().values():
            if pod["metadata"]["labels"].get("cli-mcp.redhat.com/session-id") == session:
                return pod
        return None


def client_binding() -> list[Object]:
    """The clients' Role of the hooks for one more group."""
    return [
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": {"name": "more-clients", "namespace": NAMESPACE},
            "roleRef": {
                "apiGroup": "rbac.authorization.k8s.io",
                "kind": "Role",
                "name": "cli-mcp-demo-client",
            },
            "subjects": [{"kind": "Group", "name": "clients"}],
        }
    ]


def delegator(subject: Object) -> list[Object]:
    """What system:auth-delegator is in a real cluster."""
    head = {"apiVersion": "rbac.authorization.k8s.io/v1", "metadata": {"name": "system:auth-delegator"}}
    rules = [
        {"apiGroups": [f"{group}.k8s.io"], "resources": [resource], "verbs": ["create"]}
        for group, resource in (("authentication", "tokenreviews"), ("authorization", "subjectaccessreviews"))
    ]
    reference = {
        "apiGroup": "rbac.authorization.k8s.io",
        "kind": "ClusterRole",
        "name": "system:auth-delegator",
    }
    return [
        {**head, "kind": "ClusterRole", "rules": rules},
        {**head, "kind": "ClusterRoleBinding", "roleRef": reference, "subjects": [subject]},
    ]


@asynccontextmanager
async def whole_server(
    directory: Path, pool: int = 2, arguments: tuple[str, ...] = ()
) -> AsyncIterator[WholeServer]:
    """`cli-mcp server` on a free port, with `pool` warm pods whose agents are processes of this machine."""
    world = World()
    world.admin_secrets()
    world.apply({"proxy": ALLOWLIST, "sandbox": {"warmPoolSize": pool, "isolationTest": False}})
    world.run()
    account = {"kind": "ServiceAccount", "name": "cli-mcp-demo", "namespace": NAMESPACE}
    for it in (*client_binding(), *(delegator(account) if "--token-review" in arguments else ())):
        world.api.create(it)
    keys, public_keys = directory / "session-keys.json", directory / "public-keys"
    key = key_pair()
    write_keys(keys, key)
    public_keys.mkdir()
    (public_keys / f"{key.kid}.pem").write_text(key.public_key)
    first = self_signed("first")
    tls = MountedSecret(directory / "tls", first)
    async with AsyncExitStack() as stack:
        agents = {}
        for number, pod in enumerate(world.pods().values(), 1):
            address, uid = next(_ADDRESSES), pod["metadata"]["uid"]
            move(world, pod, address)
            agents[uid] = await stack.enter_async_context(
                agent(directory / f"agent-{number}", address, uid, public_keys)
            )
        api = await stack.enter_async_context(Server(world.api, TOKENS, collects_garbage=False).running())
        kubeconfig = directory / "kubeconfig"
        kubeconfig.write_text(yaml.safe_dump(kubeconfig_for(api.url)))
        process = await stack.enter_async_context(
            running(
                "server",
                "--instance",
                "demo",
                "--namespace",
                NAMESPACE,
                "--listen",
                "127.0.0.1:0",
                "--tls-dir",
                str(tls.path),
                "--session-keys",
                str(keys),
                "--kubeconfig",
                str(kubeconfig),
                *arguments,
            )
        )
        server = WholeServer(world, 0, process, tls, [first], agents)
        assert process.stdout is not None
        assert process.stderr is not None
        stack.callback(asyncio.create_task(collect(process.stdout, server.audit)).cancel)
        stack.callback(asyncio.create_task(collect(process.stderr, server.log)).cancel)
        await server.started()
        yield server


def kubeconfig_for(url: str) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "it",
        "clusters": [{"name": "it", "cluster": {"server": url}}],
        "users": [{"name": "it", "user": {"token": "token-of-the-server"}}],
        "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it", "namespace": "nowhere"}}],
    }


def move(world: World, pod: Object, address: str) -> None:
    """Give the pod the address where its agent listens."""
    current = world.get("pods", pod["metadata"]["name"])
    status = {**current["status"], "podIP": address, "podIPs": [{"ip": address}]}
    world.api.update({**current, "status": status}, "status")


@asynccontextmanager
async def agent(
    directory: Path, address: str, pod_uid: str, public_keys: Path
) -> AsyncIterator[asyncio.subprocess.Process]:
    for name in ("state", "workspace"):
        (directory / name).mkdir(parents=True)
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-I", "-m", "sandbox_agent.main", "--listen", f"{address}:{AGENT_PORT}"),
        *("--public-keys", str(public_keys), "--state-dir", str(directory / "state")),
        *("--workspace", str(directory / "workspace")),
        env={"CLI_MCP_POD_UID": pod_uid, "HOME": str(directory), "PATH": os.environ["PATH"]},
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        yield process
    finally:
        await end(process)


@asynccontextmanager
async def running(*arguments: str, **environment: Any) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        _START,
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, **environment},
    )
    try:
        yield process
    finally:
        await end(process)


async def end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is not None:
        return
    for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGKILL):
        process.send_signal(number)
        try:
            async with asyncio.timeout(5):
                await process.wait()
                return
        except TimeoutError:
            continue


async def collect(stream: asyncio.StreamReader, lines: list[str]) -> None:
    async for line in stream:
        lines.append(line.decode().rstrip())
