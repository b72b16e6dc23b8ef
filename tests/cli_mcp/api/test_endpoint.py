"""Hosts and ports of allowlists; what is refused stands in the table of instances."""

import pytest

from cli_mcp.api.endpoint import Endpoint, InvalidEndpoint, parse


@pytest.mark.parametrize(
    ("text", "endpoint"),
    [
        ("example.com", ("example.com", 443)),
        ("Example.COM:8443", ("example.com", 8443)),
        ("10.0.0.1:6443", ("10.0.0.1", 6443)),
        ("[::1]", ("::1", 443)),
        ("[2001:DB8:0:0::1]:8443", ("2001:db8::1", 8443)),
    ],
)
def test_one_spelling_for_one_endpoint(text: str, endpoint: tuple[str, int]) -> None:
    assert parse(text) == endpoint


@pytest.mark.parametrize("text", ["[1.2.3.4]", "[fe80::1%eth0]", "[::1", "::1", "a" * 64, "a." * 127 + "a"])
def test_what_names_no_endpoint_is_refused(text: str) -> None:
    with pytest.raises(InvalidEndpoint):
        parse(text)


def test_an_endpoint_is_written_as_it_is_read() -> None:
    for endpoint in (Endpoint("example.com", 443), Endpoint("::1", 8443)):
        assert parse(str(endpoint)) == endpoint
