"""proxy-config.json: what is accepted, and errors that name the place."""

import json

import pytest

from cli_mcp.api.endpoint import Endpoint
from cli_mcp.kubeconfig import KubernetesServer
from cli_mcp.proxy_config import (
    AllowlistRouteConfig,
    InvalidProxyConfig,
    UpstreamConfig,
    parse_proxy_config,
    proxy_config,
)

API = KubernetesServer(Endpoint("api.example.com", 6443), "/k8s", "token")
GIT = AllowlistRouteConfig(host="git.example.com", port=443, allow_upgrades=True)


def test_what_is_written_is_what_is_read_and_holds_no_secret() -> None:
    config = proxy_config([API], [GIT], UpstreamConfig(http_proxy="http://proxy.corp:3128/"))
    text = config.model_dump_json(by_alias=True)
    assert parse_proxy_config(text) == config
    assert json.loads(text) == {
        "version": 1,
        "kubernetes": [{"host": "api.example.com", "port": 6443, "path": "/k8s"}],
        "allowlist": [{"host": "git.example.com", "port": 443, "allowUpgrades": True}],
        "upstream": {"httpProxy": "http://proxy.corp:3128", "caBundle": None},
        "ownSecrets": None,
    }


@pytest.mark.parametrize(
    ("content", "place"),
    [
        ({"version": 2}, "version"),
        ({"unknown": 1}, "unknown"),
        ({"allowlist": [{"host": "git.example.com"}]}, "allowlist.0.port"),
        ({"allowlist": [{"host": "git.example.com", "port": 0}]}, "allowlist.0.port"),
        ({"allowlist": [{"host": "*.example.com", "port": 443}]}, "allowlist.0"),
        ({"allowlist": [{"host": "GIT.example.com", "port": 443}]}, "must be written git.example.com:443"),
        ({"allowlist": [{"host": "2001:DB8:0::1", "port": 443}]}, "must be written [2001:db8::1]:443"),
        ({"allowlist": [{"host": "a.b.", "port": 443}]}, "literal host"),
        ({"upstream": {"httpProxy": "https://proxy:3128"}}, "upstream.httpProxy"),
        ({"upstream": {"httpProxy": "http://user:pw@proxy:3128"}}, "upstream.httpProxy"),
        ({"upstream": {"httpProxy": "http://proxy"}}, "upstream.httpProxy"),
        ({"upstream": {"caBundle": "no pem"}}, "upstream.caBundle"),
        ({"ownSecrets": {"namespace": "a", "names": []}}, "ownSecrets.names"),
    ],
)
def test_an_error_names_the_place(content: dict[str, object], place: str) -> None:
    with pytest.raises(InvalidProxyConfig, match=place.replace("[", r"\[")):
        parse_proxy_config(json.dumps(content))


def test_text_that_is_no_json_is_an_error() -> None:
    with pytest.raises(InvalidProxyConfig):
        parse_proxy_config("{")


def test_an_endpoint_in_two_targets_is_refused_naming_both() -> None:
    same = AllowlistRouteConfig(host="api.example.com", port=6443)
    with pytest.raises(InvalidProxyConfig, match=r"kubernetes\[0\] and allowlist\[1\] both name api"):
        proxy_config([API], [GIT, same])
    with pytest.raises(InvalidProxyConfig, match=r"allowlist\[0\] and allowlist\[1\] both name git"):
        proxy_config([], [GIT, GIT])
