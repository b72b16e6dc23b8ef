"""Tests of the installed system share one installation; each module has a namespace of its own.

KUBECONFIG, E2E_IMAGE and E2E_SANDBOX_IMAGE (known to the cluster) say where and of what. E2E_OPERATOR:
`pods` (default) installs by the overlay, `processes` runs hooks and Metacontroller on this machine, `there`
finds an installation (`make deploy`) and leaves it.
"""

from __future__ import annotations

import os
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

import pytest

from tests.e2e.installation import MISSING, install, uninstall
from tests.e2e.instances import Instance, new_namespace
from tests.e2e.operator import installed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path


@pytest.fixture(scope="package")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    if MISSING:
        pytest.skip(f"not set: {', '.join(MISSING)}")
    with OPERATORS[os.environ.get("E2E_OPERATOR", "pods")](tmp_path_factory.mktemp("operator")):
        yield


@contextmanager
def _pods(folder: Path) -> Iterator[None]:
    install()
    yield
    assert "warning" not in uninstall()


@contextmanager
def _processes(folder: Path) -> Iterator[None]:
    with installed(folder):
        yield


OPERATORS: dict[str, Callable[[Path], AbstractContextManager[None]]] = {
    "pods": _pods,
    "processes": _processes,
    "there": lambda folder: nullcontext(),
}


@pytest.fixture(scope="module")
def instance(
    system: None, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Instance]:
    """`demo`, not applied yet, in a namespace named after the module."""
    topic = request.module.__name__.rpartition("test_")[2].replace("_", "-")
    with new_namespace(tmp_path_factory.mktemp(topic), topic) as made:
        yield made
