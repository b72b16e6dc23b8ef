"""A server for all tests of a module: as the user who runs them and, if that is root, as another one too."""

import os
from collections.abc import Iterator

import pytest

from tests.e2e_local.harness import Server, running

USERS = ["root", "user"] if os.geteuid() == 0 else ["user"]


@pytest.fixture(params=USERS)
def unprivileged(request: pytest.FixtureRequest) -> bool:
    return bool(request.param == "user")


@pytest.fixture(scope="module", params=USERS)
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    with running(unprivileged=request.param == "user", warmPoolSize=1) as started:
        yield started
