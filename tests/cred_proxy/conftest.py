"""Origins on loopback, one for each kind of route."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.cred_proxy.harness import Harness, allow
from tests.cred_proxy.origin import Origin, PrivateAuthority


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
