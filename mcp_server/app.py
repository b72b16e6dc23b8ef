"""The HTTP application: what is served under which path, and what stands in front of it."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from prometheus_client import CollectorRegistry
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from mcp_server.authentication import Authenticator
from mcp_server.backend import Readiness, SandboxBackend
from mcp_server.calls import RunningCalls
from mcp_server.catalogue import Offering, offer
from mcp_server.endpoint import McpEndpoint
from mcp_server.guards import Guards
from mcp_server.metrics import CONTENT_TYPE, Metrics
from mcp_server.sessions import session_routes
from mcp_server.settings import ServerSettings
from mcp_server.tool_calls import ToolCalls, internal_error


def build_app(
    backend: SandboxBackend,
    settings: ServerSettings,
    authenticator: Authenticator,
    registry: CollectorRegistry | None = None,
    notice: Callable[[], str] = lambda: "",
    offering: Callable[[], Offering] = Offering,
) -> Starlette:
    """The application, for `serving.serve`. Its /metrics show what else is in `registry`, too, and its
    /health what an operator should know though it serves: `notice`. `offering` is asked at each
    call and list of tools."""
    calls = RunningCalls()
    metrics = Metrics(
        registry,
        sessions=backend.session_count,
        warm_sandboxes=backend.warm_count,
        running_calls=calls.__len__,
    )
    tool_calls = ToolCalls(
        backend, calls, metrics, progress_interval_seconds=settings.progress_interval_seconds
    )
    endpoint = McpEndpoint(tool_calls, settings, offer(offering), lambda: offering().default_session)

    async def live(request: Request) -> Response:
        return JSONResponse({"live": True})

    async def health(request: Request) -> Response:
        readiness = backend.readiness() if calls.accepting else Readiness(False, "shutting down")
        detail = "; ".join(filter(None, (readiness.detail, notice())))
        return JSONResponse({"ready": readiness.ready, "detail": detail}, 200 if readiness.ready else 503)

    async def expose_metrics(request: Request) -> Response:
        return Response(metrics.exposition(), media_type=CONTENT_TYPE)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with endpoint.running():
            yield

    app = Starlette(
        routes=[
            Route("/mcp", endpoint),
            Route("/mcp/", endpoint),
            *session_routes(backend),
            Route("/live", live),
            Route("/health", health),
            Route("/metrics", expose_metrics),
        ],
        middleware=[
            Middleware(
                Guards, settings=settings, authenticator=authenticator, on_refusal=metrics.request_refused
            )
        ],
        exception_handlers={404: _not_found, 405: _method_not_allowed, Exception: _failed},
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False
    app.state.calls = calls
    app.state.tool_calls = tool_calls
    return app


def calls_of(app: Starlette) -> RunningCalls:
    """The calls that run in an application of `build_app`."""
    calls = app.state.calls
    assert isinstance(calls, RunningCalls)
    return calls


def tool_calls_of(app: Starlette) -> ToolCalls:
    """What runs the calls of an application of `build_app`, for a second way in beside it."""
    tool_calls = app.state.tool_calls
    assert isinstance(tool_calls, ToolCalls)
    return tool_calls


async def _not_found(request: Request, error: Exception) -> Response:
    return JSONResponse({"error": "There is nothing here. MCP clients connect to /mcp."}, 404)


async def _method_not_allowed(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return JSONResponse({"error": "This path has no such method."}, 405, headers=error.headers)


async def _failed(request: Request, error: Exception) -> Response:
    return JSONResponse({"error": internal_error(error)}, 500)
