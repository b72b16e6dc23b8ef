"""What can be reached from a place: one program, run in a sandbox, in another pod or on this machine."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass

from tests.e2e.operator import kubectl

# Longer than any refusal takes, and an answer comes in milliseconds.
ANSWER_SECONDS = 3
# A question for an address; servers of other protocols answer whatever they answer.
_QUERY = b"\x12\x34\x01\0\0\x01\0\0\0\0\0\0\x0akubernetes\x07default\x03svc\x07cluster\x05local\0\0\x01\0\x01"

# Standard library only, and nothing of this repository: sandboxes run it.
_PROGRAM = """
import json, socket, sys
from concurrent.futures import ThreadPoolExecutor

def reached(target):
    kinds = {"tcp": socket.SOCK_STREAM, "udp": socket.SOCK_DGRAM}
    try:
        family, *_, address = socket.getaddrinfo(target["host"], target["port"])[0]
        with socket.socket(family, kinds[target["protocol"]]) as probe:
            probe.settimeout(asked["seconds"])
            probe.connect(address)
            if target["protocol"] == "udp":
                probe.send(bytes.fromhex(asked["question"]))
                probe.recv(1)
    except OSError:
        return False
    return True

asked = json.loads(sys.argv[1])
with ThreadPoolExecutor(32) as threads:
    found = zip(asked["targets"], threads.map(reached, asked["targets"]))
    print(json.dumps([target["name"] for target, is_reached in found if is_reached]))
"""


@dataclass(frozen=True, slots=True)
class Target:
    """Reached when a connection is made (`tcp`), or when something comes back (`udp`)."""

    name: str
    host: str
    port: int
    protocol: str = "tcp"


RunPython = Callable[[str, str], str]
"""Runs a program with an argument somewhere, and returns what it printed."""


def reached(run: RunPython, targets: Iterable[Target]) -> set[str]:
    """The names of those that answer to the place where `run` runs."""
    asked = {
        "targets": [asdict(it) for it in targets],
        "question": _QUERY.hex(),
        "seconds": ANSWER_SECONDS,
    }
    return set(json.loads(run(_PROGRAM, json.dumps(asked))))


def in_pod(namespace: str, pod: str) -> RunPython:
    """A pod whose image has python3."""

    def run(program: str, argument: str) -> str:
        return kubectl("-n", namespace, "exec", "-i", pod, "--", "python3", "-", argument, given=program)

    return run


ECHO = """
import socket, sys, threading
from socketserver import BaseRequestHandler, ThreadingTCPServer, ThreadingUDPServer

class Accepts(BaseRequestHandler):
    def handle(self):
        pass

class Echoes(BaseRequestHandler):
    def handle(self):
        data, answering = self.request
        answering.sendto(data, self.client_address)

ThreadingTCPServer.address_family = ThreadingUDPServer.address_family = socket.AF_INET6
ThreadingTCPServer.allow_reuse_address = True
servers = [kind(("::", int(port)), handler)
           for port in sys.argv[1:]
           for kind, handler in ((ThreadingTCPServer, Accepts), (ThreadingUDPServer, Echoes))]
for server in servers:
    threading.Thread(target=server.serve_forever).start()
"""
"""A program that listens at the ports of its arguments: TCP, and UDP which it echoes; IPv4 and IPv6."""
