"""What a client of the proxy notices of others that use all the processor time they can get."""

import time
from collections.abc import Iterator

import pytest

from tests.attack.bystander import assert_unharmed, calling, quiet
from tests.attack.proxy_process import ProxyProcess, running_proxy

_RAMP_SECONDS = 1.0
_BUSY_SECONDS = 5.0
GREED = (
    "resets",
    "refused",
    "handshakes",
    "broken_handshakes",
    "chunks_up",
    "records_up",
    "chunks_down",
    "drops_down",
    "flood_down",
    "connection_fields",
    "fields_within_limits",
    "requests",
)


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProxyProcess]:
    with running_proxy(tmp_path_factory.mktemp("proxy")) as proxy:
        yield proxy


@pytest.mark.parametrize("attackers", [1, 6])
@pytest.mark.parametrize("greed", GREED)
def test_a_bystander_is_served(proxy: ProxyProcess, greed: str, attackers: int) -> None:
    before = quiet(proxy.call)
    with proxy.greed(greed, attackers, _RAMP_SECONDS + _BUSY_SECONDS):
        time.sleep(_RAMP_SECONDS)
        with calling(proxy.call) as beside:
            time.sleep(_BUSY_SECONDS)
    assert_unharmed(greed, before, beside, attackers=attackers)
