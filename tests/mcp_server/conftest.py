"""One server for all tests of a module that do not need one of their own."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.mcp_server.fake_backend import RunningServer, running_server


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared_server() -> AsyncIterator[RunningServer]:
    async with running_server() as server:
        yield server


@pytest.fixture
def server(shared_server: RunningServer) -> RunningServer:
    shared_server.backend.reset()
    return shared_server
