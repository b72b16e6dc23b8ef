"""What sandboxes reach in a test: TLS servers on loopback, on a thread of their own, that write down what
they receive, and a server of local mode that lets its sandboxes out to them.

Clients take no proxy for `localhost`, so most servers have names of the reserved domain `test` (RFC 6761).
The instance's upstream proxy, also one of the test, leads to them.
"""

import asyncio
import base64
import json
import mimetypes
import os
import shutil
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest
import yaml
from aiohttp import web

from tests.cred_proxy.origin import Origin, PrivateAuthority, Received, Respond
from tests.e2e_local.harness import Server, running
from tests.kube import server as kube
from tests.local_runtime.users import UNPRIVILEGED_UID, passable_directory

TOKEN = "real-token-of-the-kubeconfig"
ROTATED_TOKEN = "real-token-after-the-rotation"
FILES, API = "files.test", "api.test"
LIMITS = {"memory": "2Gi", "ephemeral-storage": "2Gi"}
DEADLINE_SECONDS = 20.0

T = TypeVar("T")


class OriginThread:
    """An event loop for servers, beside tests that wait for a sandbox."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(DEADLINE_SECONDS)

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


class UpstreamProxy:
    """A plain CONNECT proxy that knows by `ports` which of our servers a target is."""

    def __init__(self) -> None:
        self.ports: dict[str, int] = {}
        self.targets: list[str] = []
        self.url = ""
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            target = (await reader.readuntil(b"\r\n\r\n")).split(b" ")[1].decode()
            self.targets.append(target)
            origin_reader, origin_writer = await asyncio.open_connection("127.0.0.1", self.ports[target])
            writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
            await asyncio.gather(_copy(reader, origin_writer), _copy(origin_reader, writer))


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()


class RecordingApi(kube.Server):
    """The API server in memory, which writes down every request, and has logs and a schema of pods."""

    def __init__(self) -> None:
        super().__init__()
        self.requests: list[Received] = []
        self._lines: set[asyncio.Queue[bytes]] = set()

    def app(self) -> web.Application:
        app = super().app()
        app.middlewares.append(self._record)
        return app

    @web.middleware
    async def _record(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        self.requests.append(
            Received(f"{request.method} {request.path_qs} HTTP/1.1", list(request.headers.items()), b"", 0)
        )
        if request.path in SCHEMAS:
            return web.json_response(SCHEMAS[request.path])
        if request.path.endswith("/log"):
            return await self._log(request)
        return await handler(request)

    async def _log(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/plain"})
        await response.prepare(request)
        await response.write(b"first line\n")
        if request.query.get("follow") != "true":
            return response
        lines: asyncio.Queue[bytes] = asyncio.Queue()
        self._lines.add(lines)
        try:
            while True:
                await response.write(await lines.get())
        except ConnectionError:
            return response
        finally:
            self._lines.discard(lines)

    async def log(self, line: str) -> None:
        """Send a line to all who follow a log."""
        for lines in self._lines:
            lines.put_nowait(f"{line}\n".encode())

    @property
    def followers(self) -> int:
        return len(self._lines)


_POD = {"group": "", "kind": "Pod", "version": "v1"}
_CONFIG_MAP = {"group": "", "kind": "ConfigMap", "version": "v1"}
SCHEMAS: Mapping[str, Any] = {
    "/openapi/v3": {"paths": {"api/v1": {"serverRelativeURL": "/openapi/v3/api/v1?hash=1"}}},
    "/openapi/v3/api/v1": {
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": "v1.34.0"},
        "paths": {
            "/api/v1/pods": {"get": {"x-kubernetes-group-version-kind": _POD}},
            # By this kubectl sees that the server validates, and asks for no schema.
            "/api/v1/namespaces/{namespace}/configmaps/{name}": {
                "patch": {
                    "parameters": [{"name": "fieldValidation", "in": "query"}],
                    "x-kubernetes-group-version-kind": _CONFIG_MAP,
                }
            },
        },
        "components": {
            "schemas": {
                "io.k8s.api.core.v1.Pod": {
                    "description": "A group of containers.",
                    "type": "object",
                    "properties": {"spec": {"type": "object", "description": "What it runs."}},
                    "x-kubernetes-group-version-kind": [_POD],
                }
            }
        },
    },
}


def kubectl_of_host() -> Path:
    """The one of the tests in a cluster, which is of a known version, or the one in PATH."""
    cached = Path.home() / ".cache/cli-mcp-cluster/bin/kubectl"
    found = str(cached) if cached.exists() else shutil.which("kubectl")
    if found is None:
        pytest.skip("kubectl is not installed here")
    return Path(found)


def files(content: Mapping[str, bytes]) -> Respond:
    """Answers with the file of the path, whatever the query."""

    async def respond(request: Received, writer: asyncio.StreamWriter) -> None:
        path = request.target.partition("?")[0]
        body = content.get(path)
        status = "404 Not Found" if body is None else "200 OK"
        kind = "text/html" if path.endswith("/") else mimetypes.guess_type(path)[0] or "application/json"
        head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body or b'')}\r\n\r\n"
        writer.write(head.encode() + (b"" if request.line.startswith("HEAD") else body or b""))

    return respond


@dataclass
class World:
    """A server of local mode and what its sandboxes reach."""

    server: Server
    thread: OriginThread
    upstream: UpstreamProxy
    files: Origin
    api: RecordingApi
    api_url: str
    direct: Mapping[str, Origin]
    """By their endpoints, origins that the proxy reaches without another proxy."""
    authority: PrivateAuthority
    secrets: Path

    def workspace(self, session: str) -> Path:
        (path,) = (path for path in self.server.workspaces() if path.name.startswith(f"{session}-"))
        return path

    def install(self, session: str, name: str, program: Path) -> None:
        """Copy a program of this host into the workspace of a session, where its PATH finds it."""
        self.server.call(session, "mkdir -p bin; export PATH=/workspace/bin:${PATH#/workspace/bin:}")
        copy = self.workspace(session) / "bin" / name
        if not copy.exists():
            shutil.copy(program, copy)

    def audit(self) -> list[dict[str, Any]]:
        """What was asked of the proxy."""
        return [record for record in self._records() if record["event"] != "call"]

    def calls(self) -> list[dict[str, Any]]:
        return [record for record in self._records() if record["event"] == "call"]

    def _records(self) -> list[dict[str, Any]]:
        lines = (self.server.state / "audit.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]

    def rotate(self, content: str) -> None:
        """Replace the kubeconfig as editors and deployment tools do, by its name."""
        replace_file(self.secrets / "cli-mcp-test-kubeconfig" / "kubeconfig", content)

    def kubeconfig(self, token: str) -> str:
        return kubeconfig(self.authority, token, self.api_url)


def replace_file(path: Path, content: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.parent.chmod(0o755)
    new = path.with_name(".new")
    new.write_text(content)
    new.chmod(0o644)
    new.rename(path)


def kubeconfig(authority: PrivateAuthority, token: str, server: str) -> str:
    """One context that the proxy can serve, and one that it cannot."""
    ca = base64.b64encode(authority.pem.encode()).decode()
    return yaml.safe_dump(
        {
            "clusters": [{"name": "c", "cluster": {"server": server, "certificate-authority-data": ca}}],
            "users": [
                {"name": "u", "user": {"token": token}},
                {"name": "admin", "user": {"client-certificate-data": "eA==", "client-key-data": "eA=="}},
            ],
            "contexts": [
                {"name": "x", "context": {"cluster": "c", "user": "u", "namespace": "default"}},
                {"name": "admin", "context": {"cluster": "c", "user": "admin"}},
            ],
            "current-context": "x",
        }
    )


@contextmanager
def world(*, unprivileged: bool = False, direct: bool = False, **sandbox: Any) -> Iterator[World]:
    """With `direct` there is no upstream proxy, and all targets are servers on addresses of loopback."""
    owner = UNPRIVILEGED_UID if unprivileged and os.geteuid() == 0 else None
    thread = OriginThread()
    upstream, authority, api = UpstreamProxy(), PrivateAuthority(), RecordingApi()
    named = Origin(FILES)
    addressed = [Origin("localhost"), Origin("127.0.0.2"), Origin("::1")] if direct else []
    stack = AsyncExitStack()
    with passable_directory(owner) as root:

        async def start() -> None:
            await upstream.start()
            api_host = "127.0.0.1" if direct else API
            await stack.enter_async_context(api.running(authority.server_context(api_host, root)))
            await named.start(authority.server_context(FILES, root))
            for origin in addressed:
                address = "127.0.0.1" if origin.host == "localhost" else origin.host
                await origin.start(authority.server_context(origin.host, root), address)
            upstream.ports[f"{API}:443"] = int(api.url.rpartition(":")[2])
            upstream.ports[f"{FILES}:443"] = named.port

        async def stop() -> None:
            await stack.aclose()
            for origin in (named, *addressed):
                await origin.stop()
            await upstream.stop()

        thread.run(start())
        api_url = api.url if direct else f"https://{API}"
        secrets = root / "secrets"
        secrets.mkdir()
        secrets.chmod(0o755)
        replace_file(
            secrets / "cli-mcp-test-kubeconfig" / "kubeconfig", kubeconfig(authority, TOKEN, api_url)
        )
        endpoints = {_endpoint(origin): origin for origin in addressed}
        targets: list[dict[str, Any]] = [{"type": "allowlist", "domains": [*endpoints] or [FILES]}]
        proxy: dict[str, Any] = {
            "targets": [{"type": "kubernetes"}, *targets],
            "upstream": {
                "caBundle": authority.pem,
                **({} if direct else {"httpProxy": upstream.url}),
            },
        }
        try:
            with running(
                unprivileged=unprivileged,
                root=root,
                arguments=("--secrets-dir", str(secrets)),
                proxy=proxy,
                **{"resources": {"limits": LIMITS}, **sandbox},
            ) as server:
                yield World(server, thread, upstream, named, api, api_url, endpoints, authority, secrets)
        finally:
            thread.run(stop())
            thread.close()


def _endpoint(origin: Origin) -> str:
    return f"[{origin.host}]:{origin.port}" if ":" in origin.host else origin.endpoint


def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "it did not come about in time"
        time.sleep(0.02)
