"""The system as a user installs it: the real images, by the overlay, Metacontroller and hooks as pods."""

from __future__ import annotations

import os
import subprocess

import pytest

from tests.e2e.operator import ROOT

NEEDED = ("KUBECONFIG", "E2E_IMAGE", "E2E_SANDBOX_IMAGE")
MISSING = [name for name in NEEDED if name not in os.environ]
NEEDS_A_SYSTEM = pytest.mark.skipif(bool(MISSING), reason=f"not set: {', '.join(MISSING)}")
# Tests that install and uninstall by themselves.
NEEDS_NO_OPERATOR = [
    NEEDS_A_SYSTEM,
    pytest.mark.skipif(
        os.environ.get("E2E_OPERATOR", "pods") != "pods",
        reason="the operator is not installed by these tests",
    ),
]
SCRIPT_SECONDS = 400

# Variables of config/deploy.sh, by the names that they have for tests.
_IMAGES = {
    "IMAGE": "E2E_IMAGE",
    "SANDBOX_IMAGE": "E2E_SANDBOX_IMAGE",
    "METACONTROLLER_IMAGE": "E2E_METACONTROLLER_IMAGE",
}


def install(**environment: str) -> str:
    """What the script printed; `environment` counts before the images under test."""
    images = {name: os.environ[source] for name, source in _IMAGES.items() if source in os.environ}
    return run_script("config/deploy.sh", images | environment)


def uninstall(*arguments: str) -> str:
    return run_script("config/uninstall.sh", {}, *arguments)


def run_script(path: str, environment: dict[str, str], *arguments: str) -> str:
    """Output and errors of a script that has to succeed."""
    done = subprocess.run(
        [str(ROOT / path), *arguments],
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SCRIPT_SECONDS,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout
