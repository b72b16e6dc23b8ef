"""Liveness, readiness, targets and metrics, on a port of their own that no sandbox can reach."""

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from cli_mcp.path_report import TargetStates
from cred_proxy.proxy import CredentialProxy
from cred_proxy.target_checks import TargetChecks


def health_application(proxy: CredentialProxy, checks: TargetChecks) -> web.Application:
    async def live(request: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def ready(request: web.Request) -> web.Response:
        # Ready also with files that became invalid: the state before them still serves, and says so here.
        return web.json_response({"status": "ready", "problems": proxy.problems})

    async def targets(request: web.Request) -> web.Response:
        states = TargetStates(targets=checks.states)
        return web.json_response(text=states.model_dump_json(by_alias=True))

    async def metrics(request: web.Request) -> web.Response:
        return web.Response(
            body=generate_latest(proxy.metrics.registry), headers={"Content-Type": CONTENT_TYPE_LATEST}
        )

    application = web.Application()
    application.add_routes(
        [
            web.get("/live", live),
            web.get("/ready", ready),
            web.get("/targets", targets),
            web.get("/metrics", metrics),
        ]
    )
    return application
