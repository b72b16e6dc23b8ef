"""Faults of a cluster on demand.

E2E_FAULTS is a command that takes `policy-off` and `policy-on`, NetworkPolicies without effect, and
`apiserver-restart`, after which the API server is back.
"""

from __future__ import annotations

import os
import shlex
import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

COMMAND = shlex.split(os.environ.get("E2E_FAULTS", ""))
NEEDS_FAULTS = pytest.mark.skipif(not COMMAND, reason="not set: E2E_FAULTS")


@contextmanager
def unenforced_policies() -> Iterator[None]:
    _run("policy-off")
    try:
        yield
    finally:
        _run("policy-on")


def restart_api_server() -> None:
    _run("apiserver-restart")


def _run(fault: str) -> None:
    subprocess.run([*COMMAND, fault], check=True, capture_output=True, timeout=120)
