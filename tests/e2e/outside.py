"""A host outside the cluster, for what sandboxes may reach and may not.

E2E_OUTSIDE is a command that runs another one there, and E2E_OUTSIDE_HOST the name by which pods know it.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from tests.e2e.operator import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

COMMAND = shlex.split(os.environ.get("E2E_OUTSIDE", ""))
HOST = os.environ.get("E2E_OUTSIDE_HOST", "")
NEEDS_OUTSIDE = pytest.mark.skipif(not (COMMAND and HOST), reason="not set: E2E_OUTSIDE, E2E_OUTSIDE_HOST")

# https://cloud.google.com/compute/docs/metadata, and the same in other clouds
METADATA_ADDRESS = "169.254.169.254"

_LISTENS = "import socket, sys; socket.create_connection(('127.0.0.1', int(sys.argv[1])), 1)"


@contextmanager
def running(*program: str, port: int) -> Iterator[subprocess.Popen[str]]:
    """`program` outside, once it listens on its `port`; its output is in `stdout`."""
    with subprocess.Popen(
        [*COMMAND, *program], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            eventually(lambda: _run([sys.executable, "-c", _LISTENS, str(port)]) == 0, 30)
            yield process
        finally:
            process.terminate()


@contextmanager
def metadata_service() -> Iterator[None]:
    """Something at the address at which the nodes of clouds get their credentials. Where the machine's own
    route to it cannot be changed the test is skipped."""
    route = ["ip", "route", "replace", METADATA_ADDRESS, "via", address()]
    if _run(["ip", "address", "replace", METADATA_ADDRESS, "dev", "lo"]) != 0:
        pytest.skip("the outside host takes no other address")
    try:
        if subprocess.run(route, capture_output=True).returncode != 0:
            pytest.skip("routes of this machine cannot be changed")
        with running(sys.executable, "-m", "http.server", "80", port=80):
            yield
    finally:
        subprocess.run(["ip", "route", "delete", METADATA_ADDRESS], capture_output=True)
        _run(["ip", "address", "delete", METADATA_ADDRESS, "dev", "lo"])


def address() -> str:
    """Of the outside host."""
    route = [*COMMAND, "ip", "-json", "-4", "route", "get", "1.1.1.1"]
    found = json.loads(subprocess.run(route, capture_output=True, check=True).stdout)
    return str(found[0]["prefsrc"])


def _run(program: Sequence[str]) -> int:
    return subprocess.run([*COMMAND, *program], capture_output=True).returncode
