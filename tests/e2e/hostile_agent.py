"""An agent that obeys nobody: a program for a sandbox's image, with the standard library alone.

The command of a call names what it does (BEHAVIOURS). It prints each request as a line of JSON.
"""

from __future__ import annotations

import gzip
import json
import os
import socket
import struct
import time
from collections.abc import Callable
from socketserver import StreamRequestHandler, ThreadingTCPServer
from typing import Any

SECRET = "text-of-the-agent"
PORT = 8090
BOOT = "0" * 32
ME = {"podUid": os.environ.get("CLI_MCP_POD_UID", ""), "boot": BOOT}
NOBODY = {"podUid": "00000000-0000-4000-8000-000000000000", "boot": BOOT}
EMPTY: dict[str, Any] = {"head": "", "tail": "", "totalBytes": 0, "file": None, "fileBytes": 0}
OUTCOME: dict[str, Any] = {
    "exitCode": 0,
    "stdout": EMPTY,
    "stderr": EMPTY,
    "durationMs": 1,
    "cwd": "/",
    "timedOut": False,
    "background": [],
    "shellRestarted": False,
    "notes": [],
}


def finished(**changes: object) -> dict[str, Any]:
    return {"finished": {"outcome": {**OUTCOME, **changes}, "first": True}}


FINISHED = finished()
PROGRESS = {"progress": {"elapsedSeconds": 1, "outputBytes": 1, "lastLine": SECRET, "queued": False}}

Send = Callable[[bytes], object]
Behaviour = Callable[[Send], object]


def head(status: str = "200 OK", kind: str = "application/x-ndjson", **fields: object) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Type: {kind}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in fields.items()]
    return "\r\n".join([*lines, "", ""]).encode()


def line(event: object) -> bytes:
    return json.dumps(event).encode() + b"\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


STREAM = head(Transfer_Encoding="chunked")
BEGUN = STREAM + chunk(line({"accepted": ME}))


def says(data: bytes) -> Behaviour:
    return lambda send: send(data)


def tells(*events: object) -> Behaviour:
    return says(STREAM + b"".join(chunk(line(it)) for it in events) + chunk(b""))


def for_ever(first: bytes, piece: bytes, pause_seconds: float = 0) -> Behaviour:
    def behave(send: Send) -> None:
        send(first)
        while True:
            send(piece)
            time.sleep(pause_seconds)

    return behave


def resets(send: Send) -> None:
    send(BEGUN)
    raise ConnectionResetError


FLOODS: dict[str, Behaviour] = {
    "bytes": for_ever(BEGUN, chunk(SECRET.encode() * 4000)),
    "progress": for_ever(BEGUN, chunk(line(PROGRESS) * 500)),
    "headers": for_ever(STREAM[:-2], f"X: {SECRET}\r\n".encode() * 1000),
    "small pieces": for_ever(BEGUN, chunk(b" ") * 1000),
    "informational answers": for_ever(b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 1000),
    "more than was said": for_ever(head(Content_Length=10), b"x" * 65536),
    "as much as was said": for_ever(head(Content_Length=10**15), b"x" * 65536),
    "compressed": says(
        head(Content_Encoding="gzip", Transfer_Encoding="chunked")
        + chunk(gzip.compress(bytes(10_000_000)))
        + chunk(b"")
    ),
}
SLOW: dict[str, Behaviour] = {
    "drips": for_ever(BEGUN, chunk(b" "), 0.5),
    "silence": for_ever(b"", b"", 1),
    "silence after the beginning": for_ever(BEGUN, b"", 1),
}
LIES: dict[str, Behaviour] = {
    "a redirect": says(head("307 Temporary Redirect", Location="/followed", Content_Length=0)),
    "a reset": resets,
    "another pod": tells({"accepted": NOBODY}, FINISHED),
    "another boot": tells({"accepted": {**ME, "boot": "f" * 32}}, FINISHED),
    "nothing accepted": tells(FINISHED),
    "two outcomes": tells({"accepted": ME}, FINISHED, FINISHED),
    "lengths": tells({"accepted": ME}, finished(stdout={**EMPTY, "head": "eA=="})),
    "an unknown event": tells({"accepted": ME}, {SECRET: {}}),
    "another protocol": says(f"220 {SECRET} ESMTP\r\n".encode()),
    "a password": says(head("401 Unauthorized", WWW_Authenticate="Basic", Content_Length=0)),
}
HONEST = "honest"
BEHAVIOURS = {**FLOODS, **SLOW, **LIES, HONEST: tells({"accepted": ME}, FINISHED)}


class Agent(StreamRequestHandler):
    """Says that it is well, and does to a command what the command says."""

    def handle(self) -> None:
        while request := self.rfile.readline().decode().split():
            fields: dict[str, str] = {}
            while pair := self.rfile.readline().decode().strip():
                name, _, value = pair.partition(": ")
                fields[name.lower()] = value
            body = self.rfile.read(int(fields.get("content-length", 0))).decode()
            seen = {"path": request[1], "authorization": fields.get("authorization"), "body": body}
            print(json.dumps(seen), flush=True)
            if request[1] == "/health":
                well = json.dumps({"versions": [1], **ME, "detail": ""}).encode()
                self.wfile.write(head(kind="application/json", Content_Length=len(well)) + well)
            elif request[1] == "/v1/run":
                BEHAVIOURS[json.loads(body)["command"]](self.wfile.write)
            else:
                return


class Server(ThreadingTCPServer):
    allow_reuse_address = daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        request.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


if __name__ == "__main__":
    Server(("", PORT), Agent).serve_forever()
