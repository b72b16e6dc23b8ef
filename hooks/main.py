"""`cli-mcp hooks`: the webhooks under gunicorn, one process with threads.

By default on loopback, for a Metacontroller in the same pod. Elsewhere it needs TLS and a bearer token, since
requests carry the contents of Secrets. Metrics carry none, and can have a listener and threads of their own.
"""

from __future__ import annotations

import gc
import ipaddress
import os
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gunicorn.app.base import BaseApplication
from prometheus_client import CollectorRegistry, start_http_server

from cli_mcp.arguments import ArgumentParser
from cli_mcp.program import CannotStart, listen_address
from hooks.app import create_app
from hooks.keys import RandomKeys
from hooks.settings import InvalidSettings, settings_from

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable

    from flask import Flask

Address = tuple[str, int]
"""An IP address, "" for all of them, and a port."""

DEFAULT_LISTEN = "127.0.0.1:8070"
# As many as Metacontroller has workers for one controller, and some for probes and metrics.
THREADS = 12
# Longer than the webhooks' own timeout, so that a slow answer is Metacontroller's to give up.
_REQUEST_TIMEOUT_SECONDS = 60
_KEEP_ALIVE_SECONDS = 75
_GC_THRESHOLD_CONTAINERS = 500_000


class HookServer(BaseApplication):
    """gunicorn without its own command line and configuration files. `on_start` is called in the worker."""

    def __init__(self, app: Flask, options: dict[str, Any], on_start: Callable[[], None]) -> None:
        self._app = app
        self._options = options
        self._on_start = on_start
        super().__init__()

    def load_config(self) -> None:
        for name, value in self._options.items():
            self.cfg.set(name, value)

    def load(self) -> Any:
        self._on_start()
        return self._app


def main(arguments: list[str]) -> int:
    options = _parser().parse_args(arguments)
    try:
        _check(options)
        settings = settings_from(os.environ)
    except (CannotStart, InvalidSettings) as error:
        print(f"cli-mcp hooks: {error}", file=sys.stderr)
        return 2
    token_file, registry = options.token_file, CollectorRegistry()
    app = create_app(
        settings,
        RandomKeys(),
        lambda: datetime.now(UTC),
        expected_token=(lambda: token_file.read_text().strip()) if token_file else None,
        registry=registry,
    )

    def serve_metrics() -> None:
        if options.metrics_listen:
            # Not gunicorn's threads: whoever is slow there must not keep Metacontroller waiting.
            host, port = options.metrics_listen
            start_http_server(port, host or "0.0.0.0", registry=registry)  # noqa: S104 - asked for

    collect_garbage_rarely()
    HookServer(app, gunicorn_options(options.listen, options.tls_cert, options.tls_key), serve_metrics).run()
    return 0


def _check(options: Namespace) -> None:
    """Raises CannotStart."""
    host, _ = options.listen
    has_guards = options.tls_cert and options.tls_key and options.token_file
    if not _is_loopback(host) and not has_guards:
        raise CannotStart(
            f"--listen {host or 'any address'} is not loopback, and requests carry Secrets; give --tls-cert, "
            "--tls-key and --token-file, or listen on 127.0.0.1"
        )


def collect_garbage_rarely() -> None:
    """A large request is half a million containers without a cycle among them, which Python's collector
    would walk over and over while they are read: half of the time of a sync."""
    gc.freeze()
    gc.set_threshold(_GC_THRESHOLD_CONTAINERS, 10, 10)


def _is_loopback(host: str) -> bool:
    return bool(host) and ipaddress.ip_address(host).is_loopback


def gunicorn_options(listen: Address, tls_cert: Path | None, tls_key: Path | None) -> dict[str, Any]:
    host, port = listen
    tls = {"certfile": str(tls_cert), "keyfile": str(tls_key)} if tls_cert and tls_key else {}
    return {
        "bind": f"[{host}]:{port}" if ":" in host else f"{host}:{port}",
        "worker_class": "gthread",
        "workers": 1,
        "threads": THREADS,
        "timeout": _REQUEST_TIMEOUT_SECONDS,
        "keepalive": _KEEP_ALIVE_SECONDS,
        "accesslog": None,
        "errorlog": "-",
        **tls,
    }


def _parser() -> ArgumentParser:
    parser = ArgumentParser(prog="cli-mcp hooks", description="The reconcile webhooks.")
    parser.add_argument(
        "--listen",
        type=listen_address,
        default=listen_address(DEFAULT_LISTEN),
        metavar="[HOST]:PORT",
        help=f"where Metacontroller asks (default {DEFAULT_LISTEN})",
    )
    parser.add_argument(
        "--metrics-listen",
        type=listen_address,
        metavar="[HOST]:PORT",
        help="another address, for metrics alone, without TLS",
    )
    parser.add_argument("--tls-cert", type=Path, metavar="FILE", help="its certificate and chain")
    parser.add_argument("--tls-key", type=Path, metavar="FILE")
    parser.add_argument("--token-file", type=Path, metavar="FILE", help="the bearer token to ask for")
    return parser
