"""An API server whose answers get lost, are late, or come after somebody else was faster."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from aiohttp import web

from tests.mcp_server.cluster.harness import cluster

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from tests.kube.server import Server
    from tests.mcp_server.cluster.harness import Cluster


class Faults:
    """Stands before the API server's handler: `answer` may drop, delay or replace what it says."""

    def __init__(self, server: Server) -> None:
        self._handle = server._handle
        self.silent = asyncio.Event()
        self.lost = 0
        self.lose: Callable[[web.Request], bool] = lambda request: False
        self.refuse: Callable[[web.Request], web.Response | None] = lambda request: None

    async def handle(self, request: web.Request) -> web.StreamResponse:
        refused = self.refuse(request)
        if refused is not None:
            return refused
        if self.silent.is_set():
            await asyncio.Event().wait()
        answer = await self._handle(request)
        if self.lose(request):
            self.lost += 1
            assert request.transport is not None
            request.transport.close()
        return answer


@asynccontextmanager
async def faulty_cluster(pool: int = 2, **sandbox: object) -> AsyncIterator[tuple[Cluster, Faults, str]]:
    """A cluster, and a second address of its API server at which things go wrong."""
    async with cluster(pool, **sandbox) as demo:
        faults = Faults(demo.server)
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", faults.handle)
        runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
        await runner.setup()
        try:
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            host, port = runner.addresses[0][:2]
            yield demo, faults, f"http://{host}:{port}"
        finally:
            await runner.cleanup()


def before(method: str, resource: str, act: Callable[[], object]) -> Callable[[web.Request], None]:
    """For `refuse`: `act` once, just before the first such request is answered as always."""
    acts = [act]

    def meddle(request: web.Request) -> None:
        if acts and request.method == method and f"/{resource}" in request.path:
            acts.pop()()

    return meddle
