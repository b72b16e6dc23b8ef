"""Tests of the installed system share one installation; each module has a namespace of its own.

KUBECONFIG, E2E_IMAGE and E2E_SANDBOX_IMAGE (known to the cluster) say where and of what; with E2E_INSTALLED
it is there already (`make deploy`), and stays.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.e2e.installation import MISSING, install, uninstall
from tests.e2e.instances import Instance, new_namespace

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="package")
def system() -> Iterator[None]:
    if MISSING:
        pytest.skip(f"not set: {', '.join(MISSING)}")
    if os.environ.get("E2E_INSTALLED"):
        yield
        return
    install()
    yield
    assert "warning" not in uninstall()


@pytest.fixture(scope="module")
def instance(
    system: None, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Instance]:
    """`demo`, not applied yet, in a namespace named after the module."""
    topic = request.module.__name__.rpartition("test_")[2].replace("_", "-")
    with new_namespace(tmp_path_factory.mktemp(topic), topic) as made:
        yield made
