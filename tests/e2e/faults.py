"""A proxy between Metacontroller and the hooks that answers wrongly in their stead when it is told to."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, TypeAlias

import requests

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

WEBHOOK_TIMEOUT_SECONDS = 2
FORWARD_SECONDS = 60


Fault: TypeAlias = "Callable[[Handler, bytes], None]"


class Handler(BaseHTTPRequestHandler):
    """One request of Metacontroller."""

    server: FaultyProxy

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        fault = self.server.fault
        if fault is None or self.path != self.server.faulty_path:
            self.answer(*self.server.forward(self.path, body))
            return
        self.server.faults += 1
        fault(self, body)

    def answer(self, code: int, body: bytes, content_length: int | None = None) -> None:
        """`content_length` when it is to be a lie."""
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body) if content_length is None else content_length))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        """Metacontroller's log says it all."""


class FaultyProxy(ThreadingHTTPServer):
    """`fault`, while it is set, answers at `faulty_path` instead of the hooks; `faults` counts."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.hooks_port = 0
        self.fault: Fault | None = None
        self.faulty_path = ""
        self.faults = 0

    def forward(self, path: str, body: bytes) -> tuple[int, bytes]:
        """502 when the hooks are not there."""
        try:
            answer = requests.post(f"http://127.0.0.1:{self.hooks_port}{path}", body, timeout=FORWARD_SECONDS)
        except requests.ConnectionError:
            return 502, b""
        return answer.status_code, answer.content


@contextmanager
def faulty_proxy() -> Iterator[FaultyProxy]:
    """One that listens until the end."""
    with FaultyProxy() as proxy:
        thread = threading.Thread(target=proxy.serve_forever, daemon=True)
        thread.start()
        yield proxy
        proxy.shutdown()
        thread.join()


def is_too_slow(handler: Handler, body: bytes) -> None:
    """The right answer, when nobody waits for it any more."""
    answer = handler.server.forward(handler.path, body)
    time.sleep(WEBHOOK_TIMEOUT_SECONDS + 1)
    with suppress(BrokenPipeError):
        handler.answer(*answer)


def is_cut_off(handler: Handler, body: bytes) -> None:
    """The first half of the right answer, as if it were all."""
    code, answer = handler.server.forward(handler.path, body)
    handler.answer(code, answer[: len(answer) // 2])


def breaks_off(handler: Handler, body: bytes) -> None:
    """The connection ends in the middle of the right answer."""
    code, answer = handler.server.forward(handler.path, body)
    handler.answer(code, answer[: len(answer) // 2], content_length=len(answer))
    handler.close_connection = True


def closes(handler: Handler, body: bytes) -> None:
    """No answer at all."""
    handler.close_connection = True


FAULTS: dict[str, Fault] = {
    "an error": lambda handler, body: handler.answer(500, b'{"error":"failed"}'),
    "an error page": lambda handler, body: handler.answer(502, b"<html>Bad Gateway</html>"),
    "HTML": lambda handler, body: handler.answer(200, b"<html>Welcome</html>"),
    "nothing": lambda handler, body: handler.answer(200, b""),
    "half an answer": is_cut_off,
    "an answer that breaks off": breaks_off,
    "another program's JSON": lambda handler, body: handler.answer(200, b'{"message":"hello"}'),
    "no answer in time": is_too_slow,
    "a closed connection": closes,
}
