"""Origins on loopback, one for each kind of route, and the event loops that the proxy runs on."""

import asyncio
import importlib.util
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path

import pytest

from tests.cred_proxy.harness import Harness, allow
from tests.cred_proxy.origin import Origin, PrivateAuthority

# Flow control, half-closed connections and the end of TLS are each loop's own.
ON_EVERY_LOOP = ("test_attacks.py", "test_forwarding.py", "test_proxy.py", "test_soak.py")


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    factories = {"asyncio": asyncio.new_event_loop}
    if item.path.name in ON_EVERY_LOOP and importlib.util.find_spec("uvloop"):
        factories["uvloop"] = importlib.import_module("uvloop").new_event_loop
    return factories


@pytest.fixture(scope="session")
def origin_authority() -> PrivateAuthority:
    return PrivateAuthority()


@pytest.fixture
async def origin(origin_authority: PrivateAuthority, tmp_path: Path) -> AsyncIterator[Origin]:
    origin = Origin("origin.test")
    await origin.start(origin_authority.server_context(origin.host, tmp_path))
    yield origin
    await origin.stop()


@pytest.fixture
async def kubernetes(origin_authority: PrivateAuthority, tmp_path: Path) -> AsyncIterator[Origin]:
    origin = Origin("api.test")
    await origin.start(origin_authority.server_context(origin.host, tmp_path))
    yield origin
    await origin.stop()


@pytest.fixture
async def harness(
    origin: Origin, kubernetes: Origin, origin_authority: PrivateAuthority, tmp_path: Path
) -> AsyncIterator[Harness]:
    """A proxy with one route of each kind; upgrades are not allowed."""
    async with Harness(tmp_path, origin_authority, (allow(origin),), kubernetes) as harness:
        yield harness
