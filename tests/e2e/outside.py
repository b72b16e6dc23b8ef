"""A host outside the cluster, for what sandboxes may reach and may not.

E2E_OUTSIDE is a command that runs another one there, and E2E_OUTSIDE_HOST the name by which pods know it.
"""

from __future__ import annotations

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


def _run(program: Sequence[str]) -> int:
    return subprocess.run([*COMMAND, *program], capture_output=True).returncode
