"""`cli-mcp hooks`: the webhooks under gunicorn, one process with threads.

By default on loopback, for a Metacontroller in the same pod. Elsewhere it needs TLS and a bearer token, since
requests carry the contents of Secrets.
"""

import argparse
import gc
import ipaddress
import os
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from flask import Flask
from gunicorn.app.base import BaseApplication

from hooks.app import create_app
from hooks.keys import RandomKeys
from hooks.settings import InvalidSettings, settings_from

DEFAULT_LISTEN = "127.0.0.1:8070"
# As many as Metacontroller has workers for one controller, and some for probes and metrics.
THREADS = 12
# Longer than the webhooks' own timeout, so that a slow answer is Metacontroller's to give up.
_REQUEST_TIMEOUT_SECONDS = 60
_KEEP_ALIVE_SECONDS = 75
_GC_THRESHOLD_CONTAINERS = 500_000


class HookServer(BaseApplication):
    """gunicorn without its own command line and configuration files."""

    def __init__(self, app: Flask, options: dict[str, Any]) -> None:
        self._app = app
        self._options = options
        super().__init__()

    def load_config(self) -> None:
        for name, value in self._options.items():
            self.cfg.set(name, value)

    def load(self) -> Any:
        return self._app


def main(arguments: list[str]) -> int:
    options = _parser().parse_args(arguments)
    if not _is_loopback(options.listen) and not (options.tls_cert and options.tls_key and options.token_file):
        print(
            f"cli-mcp hooks: {options.listen} is not loopback, and requests carry Secrets; give --tls-cert, "
            "--tls-key and --token-file, or listen on 127.0.0.1",
            file=sys.stderr,
        )
        return 2
    try:
        settings = settings_from(os.environ)
    except InvalidSettings as error:
        print(f"cli-mcp hooks: {error}", file=sys.stderr)
        return 2
    token_file = options.token_file
    app = create_app(
        settings,
        RandomKeys(),
        lambda: datetime.now(UTC),
        expected_token=(lambda: token_file.read_text().strip()) if token_file else None,
    )
    collect_garbage_rarely()
    HookServer(app, gunicorn_options(options.listen, options.tls_cert, options.tls_key)).run()
    return 0


def collect_garbage_rarely() -> None:
    """A large request is half a million containers without a cycle among them, which Python's collector
    would walk over and over while they are read: half of the time of a sync."""
    gc.freeze()
    gc.set_threshold(_GC_THRESHOLD_CONTAINERS, 10, 10)


def _is_loopback(listen: str) -> bool:
    host = listen.rpartition(":")[0].strip("[]")
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False  # another name, which may mean any address


def gunicorn_options(listen: str, tls_cert: Path | None, tls_key: Path | None) -> dict[str, Any]:
    tls = {"certfile": str(tls_cert), "keyfile": str(tls_key)} if tls_cert and tls_key else {}
    return {
        "bind": listen,
        "worker_class": "gthread",
        "workers": 1,
        "threads": THREADS,
        "timeout": _REQUEST_TIMEOUT_SECONDS,
        "keepalive": _KEEP_ALIVE_SECONDS,
        "accesslog": None,
        "errorlog": "-",
        **tls,
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="cli-mcp hooks", description="The reconcile webhooks.")
    parser.add_argument("--listen", default=DEFAULT_LISTEN, help="host:port (default %(default)s)")
    parser.add_argument("--tls-cert", type=Path, metavar="FILE")
    parser.add_argument("--tls-key", type=Path, metavar="FILE")
    parser.add_argument("--token-file", type=Path, metavar="FILE", help="the bearer token to ask for")
    return parser
