"""The real Metacontroller as a process of this machine, with Python hooks and its requests recorded.

Metacontroller --HTTP--> Tracer --HTTP--> kubectl proxy --HTTPS--> API server
               --HTTP--> hook server --> Hooks of the world that the path names
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import time
from collections import defaultdict
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import yaml
from aiohttp import ClientSession, TCPConnector, web

from tests.e2e.background import in_background
from tests.e2e.kube_client import KubeClient, eventually
from tests.kube.connection import Call
from tests.kube.routes import parse
from tests.kube.worlds import PART_OF

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from pathlib import Path

    from tests.kube.worlds import Hooks

VERBS = {"GET": "get", "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
HOLD_SECONDS = 0.02
EXIT_SECONDS = 10
MAX_BODY_BYTES = 64 * 1024 * 1024
# Headers of one connection, which do not belong to the next (RFC 9110, section 7.6.1).
HOP_BY_HOP = frozenset(("connection", "transfer-encoding", "content-length", "host", "keep-alive"))
FLAGS = (
    "--discovery-interval=1s",
    "--client-go-qps=200",
    "--client-go-burst=400",
    "--metrics-address=0",
    "--health-probe-bind-address=0",
    "--zap-log-level=2",
    f"--target-label-selector=app.kubernetes.io/part-of={PART_OF}",
)


class Tracer:
    """A proxy in front of an API server: it keeps a journal of writes, and can act before each request.

    `held` are the plurals of which no watch gets anything for the time being.
    """

    def __init__(self, upstream: str) -> None:
        self.before: dict[str, Callable[[Call], None] | None] = {}
        self.held: set[str] = set()
        self._upstream = upstream
        self._journal: dict[str, list[str]] = defaultdict(list)
        self._last_activity: dict[str, float] = {}
        self._seen: set[str] = set()
        self._session: ClientSession | None = None

    def quiet_seconds(self, namespace: str) -> float:
        """How long nothing has happened in the namespace."""
        return time.monotonic() - self._last_activity[namespace]

    def has_seen(self, namespace: str) -> bool:
        """Whether Metacontroller has asked for anything there."""
        return namespace in self._seen

    def note(self, namespace: str) -> None:
        """Something happened in the namespace."""
        self._last_activity[namespace] = time.monotonic()

    def take(self, namespace: str) -> list[str]:
        """The writes since the last call."""
        return self._journal.pop(namespace, [])

    async def handle(self, request: web.Request) -> web.StreamResponse:
        if self._session is None:
            self._session = ClientSession(
                connector=TCPConnector(limit=0),
                auto_decompress=False,
                skip_auto_headers=("Accept", "Accept-Encoding", "User-Agent"),
            )
        route = parse(request.path)
        # Events are how Metacontroller reports errors; they are not part of what it does.
        namespace = route.namespace if route and route.plural != "events" else ""
        watched = route.plural if route and "watch" in request.query else ""
        body = await request.read()
        if route and namespace and (route.name or request.method == "POST"):
            self.note(namespace)
            self._seen.add(namespace)
            name = route.name or json.loads(body)["metadata"].get("name", "")
            plural = f"{route.plural}/{route.subresource}" if route.subresource else route.plural
            call = Call(VERBS[request.method], plural, namespace, name)
            act = self.before.get(namespace)
            if act:
                await asyncio.get_running_loop().run_in_executor(None, act, call)
        headers = {key: value for key, value in request.headers.items() if key.lower() not in HOP_BY_HOP}
        url = self._upstream + request.path_qs
        async with self._session.request(request.method, url, data=body or None, headers=headers) as answer:
            if namespace and route and request.method != "GET":
                self._journal[namespace].append(f"{call.verb} {call.resource} {call.name} {answer.status}")
                self.note(namespace)
            kept = {key: value for key, value in answer.headers.items() if key.lower() not in HOP_BY_HOP}
            response = web.StreamResponse(status=answer.status, headers=kept)
            await response.prepare(request)
            with suppress(ConnectionResetError):
                async for chunk in answer.content.iter_any():
                    while watched in self.held:
                        await asyncio.sleep(HOLD_SECONDS)
                    await response.write(chunk)
            return response

    async def close(self, app: web.Application) -> None:
        if self._session is not None:
            await self._session.close()


@dataclass
class Metacontroller:
    """`hooks` by the name of their world."""

    tracer: Tracer
    api_url: str
    hook_url: str = ""
    hooks: dict[str, Hooks] = field(default_factory=dict)

    async def handle_hook(self, request: web.Request) -> web.Response:
        world, name = request.match_info["world"], request.match_info["hook"]
        if world not in self.hooks:
            return web.Response(status=404)
        self.tracer.note(world)
        body = await request.read()
        call = self.hooks[world].call
        answer = await asyncio.get_running_loop().run_in_executor(None, call, name, body)  # type: ignore[arg-type]
        self.tracer.note(world)
        return web.Response(status=answer.code, body=answer.body, content_type="application/json")


@contextmanager
def running(binary: Path, manifests: Path, api_url: str, folder: Path) -> Iterator[Metacontroller]:
    """Metacontroller on the API server at `api_url`; `manifests` has its CRDs, `folder` is for its files."""
    install_crds(KubeClient(api_url), manifests)
    metacontroller = Metacontroller(Tracer(api_url), api_url)
    config, log = folder / "kubeconfig", folder / "metacontroller.log"
    with in_background(_serving(metacontroller)) as url, log.open("wb") as output:
        config.write_text(yaml.safe_dump(_kubeconfig(url)))
        command = [str(binary), f"--kubeconfig={config}", *FLAGS]
        process = subprocess.Popen(command, stdout=output, stderr=output)
        try:
            yield metacontroller
            assert process.poll() is None, f"Metacontroller ended early: {log.read_text()[-2000:]}"
        finally:
            process.terminate()
            process.wait(EXIT_SECONDS)


@asynccontextmanager
async def _serving(metacontroller: Metacontroller) -> AsyncIterator[str]:
    """One port for both: hooks below /hooks/, everything else goes to the API server. Gives the URL."""
    app = web.Application(client_max_size=MAX_BODY_BYTES)
    app.router.add_post("/hooks/{world}/{hook}", metacontroller.handle_hook)
    app.router.add_route("*", "/{path:.*}", metacontroller.tracer.handle)
    app.on_cleanup.append(metacontroller.tracer.close)
    # A watch whose client has gone must end.
    runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        metacontroller.hook_url = f"{url}/hooks"
        yield url
    finally:
        await runner.cleanup()


def _kubeconfig(url: str) -> dict[str, object]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "it",
        "clusters": [{"name": "it", "cluster": {"server": url}}],
        "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
        "users": [{"name": "it", "user": {}}],
    }


def install_crds(kube: KubeClient, manifests: Path) -> None:
    """The CustomResourceDefinitions among the manifests."""
    for path in sorted(manifests.glob("*.yaml")):
        for document in yaml.safe_load_all(path.read_text()):
            if document and document.get("kind") == "CustomResourceDefinition":
                assert kube.create(document).code in (201, 409)
    eventually(lambda: kube.list("CompositeController").code == 200)
