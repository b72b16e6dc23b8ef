import pytest

from mcp_server.client_address import network_of


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::9", "2001:db8:1:2::/64"),
        ("2001:db8:1:3::9", "2001:db8:1:3::/64"),
        ("", ""),
        ("no address", "no address"),
    ],
)
def test_one_who_has_many_addresses_counts_once(address: str, network: str) -> None:
    assert network_of(address) == network
