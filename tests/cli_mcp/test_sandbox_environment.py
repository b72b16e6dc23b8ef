"""The environment of every sandbox. That clients understand it is shown with the clients themselves."""

import pytest

from cli_mcp.names import CA_PATH
from cli_mcp.sandbox_environment import OPERATOR_OWNED_ENV, sandbox_environment

PROXY = "http://127.0.0.1:3128"


def test_the_proxy_is_named_in_both_cases_and_the_sandboxs_own_servers_are_not_behind_it() -> None:
    environment = sandbox_environment(PROXY)
    for name in ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy"):
        assert environment[name] == PROXY
    assert environment["NO_PROXY"] == environment["no_proxy"] == "localhost,127.0.0.1,::1"


@pytest.mark.parametrize(
    ("hosts", "no_proxy"),
    [
        ({"pypi.org"}, "localhost,127.0.0.1,::1"),
        ({"localhost"}, "127.0.0.1,::1"),
        ({"localhost", "127.0.0.1", "::1"}, ""),
    ],
)
def test_a_target_on_loopback_is_behind_the_proxy(hosts: set[str], no_proxy: str) -> None:
    assert sandbox_environment(PROXY, hosts)["NO_PROXY"] == no_proxy


def test_every_variable_is_the_operators_and_none_holds_more_than_addresses_and_paths() -> None:
    environment = sandbox_environment(PROXY)
    assert environment.keys() == OPERATOR_OWNED_ENV
    assert {environment[name] for name in environment if "CA" in name or "CERT" in name} == {CA_PATH}
