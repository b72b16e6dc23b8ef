"""Liveness, readiness and metrics, on a port of their own that no sandbox can reach."""

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from cred_proxy.proxy import CredentialProxy


def health_application(proxy: CredentialProxy) -> web.Application:
    async def live(request: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def ready(request: web.Request) -> web.Response:
        # Ready also with files that became invalid: the state before them still serves, and says so here.
        return web.json_response({"status": "ready", "problems": proxy.problems})

    async def metrics(request: web.Request) -> web.Response:
        return web.Response(
            body=generate_latest(proxy.metrics.registry), headers={"Content-Type": CONTENT_TYPE_LATEST}
        )

    application = web.Application()
    application.add_routes([web.get("/live", live), web.get("/ready", ready), web.get("/metrics", metrics)])
    return application
