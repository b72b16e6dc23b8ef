"""Kubeconfigs: what is served, what is refused and why, and what a sandbox gets instead."""

import base64
from datetime import UTC, datetime
from typing import Any

import pytest
import yaml

from cli_mcp.api.endpoint import Endpoint
from cli_mcp.authority import generate_authority
from cli_mcp.kubeconfig import DUMMY_TOKEN, InvalidKubeconfig, Kubeconfig, dummy_kubeconfig, parse_kubeconfig

CA_PEM, CA_KEY = generate_authority("test", datetime.now(UTC))
CA_DATA = base64.b64encode(CA_PEM.encode()).decode()
SECRET = "s3cret-token"


def document(cluster: dict[str, Any] | None = None, user: dict[str, Any] | None = None) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": "https://api.example.com:6443", **(cluster or {})}}],
        "users": [{"name": "u", "user": {"token": SECRET} if user is None else user}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u", "namespace": "team"}}],
        "current-context": "x",
    }


def parse(content: dict[str, Any]) -> Kubeconfig:
    return parse_kubeconfig(yaml.safe_dump(content))


def test_a_token_kubeconfig_is_served() -> None:
    kubeconfig = parse(document({"certificate-authority-data": CA_DATA, "tls-server-name": "kubernetes"}))
    (server,) = kubeconfig.servers
    assert server.endpoint == Endpoint("api.example.com", 6443)
    assert (server.path, server.token, server.tls_server_name) == ("", SECRET, "kubernetes")
    assert server.certificate_authority == CA_PEM
    assert kubeconfig.refused == ()


@pytest.mark.parametrize(
    ("url", "endpoint", "path"),
    [
        ("https://api.example.com", Endpoint("api.example.com", 443), ""),
        ("https://API.example.com/", Endpoint("api.example.com", 443), ""),
        ("https://10.0.0.1:6443", Endpoint("10.0.0.1", 6443), ""),
        ("https://[2001:DB8::1]:6443/", Endpoint("2001:db8::1", 6443), ""),
        (
            "https://rancher.example.com/k8s/clusters/c-1/",
            Endpoint("rancher.example.com", 443),
            "/k8s/clusters/c-1",
        ),
    ],
)
def test_where_a_server_is(url: str, endpoint: Endpoint, path: str) -> None:
    (server,) = parse(document({"server": url})).servers
    assert (server.endpoint, server.path) == (endpoint, path)


@pytest.mark.parametrize(
    ("cluster", "word"),
    [
        ({"server": "http://api.example.com:6443"}, "https"),
        ({"server": "https://user@api.example.com"}, "without user"),
        ({"server": "https://api.example.com/?x=1"}, "without user"),
        ({"server": "https://api.example.com/a/../b"}, "path"),
        ({"server": "https://api.example.com/a%2fb"}, "path"),
        ({"server": "https://api.example.com/a//b"}, "path"),
        ({"server": "https://api.example.com.:6443"}, "literal host"),
        ({"server": "https://api.example.com:0"}, "literal host"),
        ({"server": "https://[::1"}, "not a URL"),
        ({"server": 5}, "no `server`"),
        ({"server": ""}, "no `server`"),
        ({"insecure-skip-tls-verify": True}, "unverified"),
        ({"certificate-authority": "/etc/ca.crt"}, "certificate-authority-data"),
        ({"certificate-authority-data": "%%%"}, "base64"),
        ({"certificate-authority-data": base64.b64encode(b"no pem").decode()}, "PEM"),
        ({"proxy-url": "http://proxy:3128"}, "spec.proxy.upstream"),
        ({"tls-server-name": 7}, "not a string"),
        ({"a-field-of-tomorrow": "x"}, "a-field-of-tomorrow"),
    ],
)
def test_a_cluster_that_cannot_be_served_is_refused_with_its_reason(
    cluster: dict[str, Any], word: str
) -> None:
    kubeconfig = parse(document(cluster))
    assert kubeconfig.servers == ()
    assert [entry.entry for entry in kubeconfig.refused] == ['cluster "c"', 'context "x"']
    assert word in kubeconfig.refused[0].reason


@pytest.mark.parametrize(
    ("user", "word"),
    [
        ({}, "no token"),
        ({"token": ""}, "no token"),
        ({"token": "a\nb"}, "line end"),
        ({"token": "a b"}, "characters"),
        ({"token": 12345}, "characters"),
        ({"exec": {"command": "aws"}}, "credential plugins"),
        ({"auth-provider": {"name": "gcp"}}, "authentication providers"),
        ({"client-certificate": "/a", "client-key": "/b"}, "client certificate"),
        ({"client-certificate-data": "QQ==", "client-key-data": "QQ=="}, "client certificate"),
        ({"token": SECRET, "client-certificate-data": "QQ=="}, "client certificate"),
        ({"username": "admin", "password": "hunter2"}, "basic authentication"),
        ({"tokenFile": "/var/run/token"}, "tokenFile"),
        ({"token": SECRET, "tokenFile": "/var/run/token"}, "tokenFile"),
        ({"token": SECRET, "as": "bob"}, "more rights"),
        ({"token": SECRET, "as-groups": ["g"]}, "more rights"),
        ({"token": SECRET, "as-uid": "1"}, "more rights"),
        ({"token": SECRET, "as-user-extra": {"a": ["b"]}}, "more rights"),
        ({"token": SECRET, "a-field-of-tomorrow": "x"}, "a-field-of-tomorrow"),
    ],
)
def test_a_user_that_cannot_be_served_is_refused_with_its_reason(user: dict[str, Any], word: str) -> None:
    kubeconfig = parse(document(user=user))
    assert kubeconfig.servers == ()
    assert kubeconfig.refused[0].entry == 'user "u"'
    assert word in kubeconfig.refused[0].reason
    assert not any(secret in str(kubeconfig.refused) for secret in (SECRET, "hunter2"))


def test_an_empty_field_counts_as_absent() -> None:
    kubeconfig = parse(
        document(
            {"insecure-skip-tls-verify": False, "proxy-url": ""}, {"token": SECRET, "as": "", "exec": None}
        )
    )
    assert len(kubeconfig.servers) == 1


def _second(content: dict[str, Any], server: str, token: str, **cluster: str) -> dict[str, Any]:
    content["clusters"].append({"name": "c2", "cluster": {"server": server, **cluster}})
    content["users"].append({"name": "u2", "user": {"token": token}})
    content["contexts"].append({"name": "x2", "context": {"cluster": "c2", "user": "u2"}})
    return content


@pytest.mark.parametrize(
    ("server", "token", "cluster"),
    [
        ("https://api.example.com:6443", "another", {}),
        ("https://API.example.com:6443/", "another", {}),
        ("https://api.example.com:6443", SECRET, {"certificate-authority-data": CA_DATA}),
        ("https://api.example.com:6443", SECRET, {"tls-server-name": "other"}),
        ("https://api.example.com:6443/k8s", SECRET, {}),
    ],
)
def test_contexts_that_disagree_about_one_server_are_refused_together(
    server: str, token: str, cluster: dict[str, str]
) -> None:
    kubeconfig = parse(_second(document(), server, token, **cluster))
    assert kubeconfig.servers == ()
    assert [entry.entry for entry in kubeconfig.refused] == ['context "x"', 'context "x2"']
    assert all('"x" and "x2"' in entry.reason for entry in kubeconfig.refused)


def test_contexts_that_agree_share_a_server_and_others_are_served_beside_a_refused_one() -> None:
    same = parse(_second(document(), "https://api.example.com:6443/", SECRET))
    assert len(same.servers) == 1
    assert [context.name for context in same.contexts] == ["x", "x2"]
    mixed = parse(_second(document(user={"exec": {"command": "x"}}), "https://other.example.com", "t"))
    assert [server.endpoint.host for server in mixed.servers] == ["other.example.com"]
    assert [entry.entry for entry in mixed.refused] == ['user "u"', 'context "x"']


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "just text",
        "clusters: {a: b}",
        "clusters: [5]",
        "users: [{name: u, user: [s3cret-token]}]",
        "users: [{user: {token: s3cret-token}}]",
        "users: [{name: u, user: {token: s3cret-token}}, {name: u, user: {token: b}}]",
        "users: [{name: u, user: {token: s3cret-token",
        "a: !!python/object/apply:os.system [s3cret-token]",
        "\x00s3cret-token",
        "x: " + 1_100_000 * "y",
    ],
)
def test_what_is_no_kubeconfig_is_invalid_and_its_text_is_not_quoted(text: str) -> None:
    with pytest.raises(InvalidKubeconfig) as caught:
        parse_kubeconfig(text)
    shown = f"{caught.value!r} {caught.value.__cause__!r}"
    assert SECRET not in shown


def test_nothing_prints_a_token_or_an_authority() -> None:
    kubeconfig = parse(document({"certificate-authority-data": CA_DATA}))
    assert SECRET not in repr(kubeconfig)
    assert "CERTIFICATE" not in repr(kubeconfig)


def test_the_sandbox_gets_the_same_contexts_with_a_dummy_token_and_the_proxys_authority() -> None:
    content = document({"certificate-authority-data": CA_DATA, "tls-server-name": "kubernetes"})
    content["clusters"].append({"name": "bad", "cluster": {"server": "http://x"}})
    content["contexts"].insert(0, {"name": "broken", "context": {"cluster": "bad", "user": "u"}})
    content["current-context"] = "broken"
    dummy = dummy_kubeconfig(parse(content), "/etc/cli-mcp/proxy-ca/ca.crt")
    assert yaml.safe_load(dummy) == {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {
                "name": "c",
                "cluster": {
                    "server": "https://api.example.com:6443",
                    "certificate-authority": "/etc/cli-mcp/proxy-ca/ca.crt",
                },
            }
        ],
        "users": [{"name": "u", "user": {"token": DUMMY_TOKEN}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u", "namespace": "team"}}],
        "current-context": "x",
    }


def test_the_sandboxs_kubectl_is_sent_to_the_proxy_where_that_is_given() -> None:
    dummy = yaml.safe_load(dummy_kubeconfig(parse(document()), "/ca.crt", "http://127.0.0.1:3128"))
    assert dummy["clusters"][0]["cluster"]["proxy-url"] == "http://127.0.0.1:3128"
