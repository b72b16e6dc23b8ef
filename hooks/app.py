"""The edge: Metacontroller's webhooks over HTTP, a clock, and metrics.

Anything but a whole, checked answer is a 500, upon which Metacontroller changes nothing and tries again.
"""

import hmac
import logging
from collections.abc import Callable
from datetime import datetime
from typing import Any

import orjson
from flask import Flask, Response, request
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Histogram, generate_latest

from hooks.customize import customize
from hooks.finalize import finalize
from hooks.keys import KeyGenerator
from hooks.reconcile import sync
from hooks.settings import Settings
from hooks.wire import MalformedRequest, Manifest

# A thousand pods are some 12 MB; this is where a request stops being plausible.
MAX_REQUEST_BYTES = 256 * 1024 * 1024
_SECONDS = (0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)

_log = logging.getLogger(__name__)


def create_app(
    settings: Settings,
    keygen: KeyGenerator,
    clock: Callable[[], datetime],
    expected_token: Callable[[], str] | None = None,
    registry: CollectorRegistry | None = None,
) -> Flask:
    """The hooks, their health and metrics. With `expected_token`, asked at every request, hooks answer only
    to that bearer. Metrics are added to `registry`."""
    registry = registry or CollectorRegistry()
    app = Flask(__name__, static_folder=None)
    app.config["MAX_CONTENT_LENGTH"] = MAX_REQUEST_BYTES
    requests = Counter(
        "cli_mcp_hook_requests_total", "Hook requests by outcome.", ("hook", "outcome"), registry=registry
    )
    seconds = Histogram(
        "cli_mcp_hook_seconds",
        "Time to answer a hook request.",
        ("hook",),
        buckets=_SECONDS,
        registry=registry,
    )

    def answered(hook: str, handle: Callable[[Any], Manifest]) -> Response:
        if expected_token is not None and not _is_bearer(
            request.headers.get("Authorization"), expected_token()
        ):
            requests.labels(hook, "unauthorized").inc()
            return _refusal(401, "a bearer token is needed that the hooks know")
        try:
            with seconds.labels(hook).time():
                body = orjson.dumps(handle(_json(request.get_data(cache=False))))
        except MalformedRequest as error:
            requests.labels(hook, "malformed").inc()
            _log.error("%s: not a request of Metacontroller: %s", hook, error)
            return _refusal(500, str(error))
        except Exception:  # noqa: BLE001 - whatever went wrong, no answer is the one that does no harm
            requests.labels(hook, "failed").inc()
            _log.exception("%s failed", hook)
            return _refusal(500, "failed; the log of the hooks says why")
        requests.labels(hook, "ok").inc()
        return Response(body, content_type="application/json")

    @app.post("/sync")
    def sync_hook() -> Response:
        return answered("sync", lambda body: sync(body, settings, clock(), keygen))

    @app.post("/finalize")
    def finalize_hook() -> Response:
        return answered("finalize", lambda body: finalize(body, clock()))

    @app.post("/customize")
    def customize_hook() -> Response:
        return answered("customize", customize)

    @app.get("/healthz")
    def healthz() -> Response:
        return Response("ok\n", content_type="text/plain")

    @app.get("/metrics")
    def metrics() -> Response:
        return Response(generate_latest(registry), content_type=CONTENT_TYPE_LATEST)

    return app


def _json(body: bytes) -> Any:
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise MalformedRequest("the body is no JSON") from error


def _is_bearer(header: str | None, expected: str) -> bool:
    scheme, _, token = (header or "").partition(" ")
    matches = hmac.compare_digest(token.strip().encode(), expected.encode())
    return scheme.lower() == "bearer" and bool(expected) and matches


def _refusal(code: int, text: str) -> Response:
    return Response(orjson.dumps({"error": text}), status=code, content_type="application/json")
