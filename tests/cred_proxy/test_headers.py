"""Which header fields cross the proxy, as tables."""

import re
from pathlib import Path

import pytest

from cli_mcp.api.endpoint import Endpoint
from cli_mcp.kubeconfig import KubernetesServer
from cred_proxy.headers import (
    CREDENTIAL_ENDINGS,
    CREDENTIAL_NAMES,
    CREDENTIAL_PREFIXES,
    CREDENTIAL_WORDS,
    KUBERNETES_PASSED,
    KUBERNETES_REFUSED,
    WORDS_BEFORE_KEY,
    refused_fields,
    request_fields,
    response_fields,
)
from cred_proxy.headers import NO_CREDENTIALS as NO_CREDENTIALS_TABLE
from cred_proxy.refusal import Reason
from cred_proxy.routes import AllowlistRoute, KubernetesRoute

ALLOWLIST = AllowlistRoute(Endpoint("git.example.com", 443))
KUBERNETES = KubernetesRoute(KubernetesServer(Endpoint("api.example.com", 443), "", "real-token"))
INJECTED = ("Authorization", "Bearer real-token")

DOCS = Path(__file__).parents[2] / "docs" / "security.md"

# What clients of both kinds of origin send: kubectl, client-go, the Python client, git, pip, npm, cargo.
CLIENTS = ["Accept", "Accept-Encoding", "Content-Type", "User-Agent", "If-None-Match", "Cache-Control"]
KUBECTL = ["Kubectl-Command", "Kubectl-Session", "If-Match", "If-Modified-Since", "Pragma"]
ABOUT_THE_CONNECTION = [
    *("Connection", "Keep-Alive", "Proxy-Connection", "TE", "Trailer", "Upgrade", "HTTP2-Settings", "Expect"),
    *("Proxy-Authorization", "Proxy-Authenticate"),
]
CREDENTIALS = [
    *(
        "Authorization",
        "AUTHORIZATION",
        "authorization",
        "Authorization-X",
        "X-Authorization",
        "X.Auth.Token",
    ),
    *("X-Auth-Token", "x_auth_token", "X-Auth-Key", "X-Auth-Email", "X-Registry-Auth", "Authentication"),
    *("Token", "X-Access-Token", "X-Amz-Security-Token", "X-Vault-Token", "PRIVATE-TOKEN", "JOB-TOKEN"),
    *("X-AuthToken", "X-Shopify-Access-Token", "Circle-Token", "X-CSRF-Token", "X-Consul-Token"),
    *("X-Api-Key", "X_Api_Key", "Api-Key", "ApiKey", "X-NuGet-ApiKey", "DD-API-KEY", "DD-APPLICATION-KEY"),
    *("X-Goog-Api-Key", "Ocp-Apim-Subscription-Key", "X-Functions-Key", "X-Access-Key-Id", "X-JFrog-Art-Api"),
    *("Cookie", "Cookie2", "X-JWT", "X-GitHub-OTP", "npm-otp", "X-Goog-Iap-Jwt-Assertion"),
    *("CF-Access-Client-Id", "CF-Access-Client-Secret", "X-Password", "X-Honeycomb-Team", "Fastly-Key"),
    *("Impersonate-User", "impersonate_user", "X-Remote-User", "X_Remote_Extra-a", "Remote-User"),
    *("X-Forwarded-User", "X-WEBAUTH-USER", "X-Forwarded-Access-Token", 40 * "x-" + "token"),
]
NO_CREDENTIALS = [
    *(
        "Range",
        "Origin",
        "Referer",
        "Git-Protocol",
        "X-Requested-With",
        "Idempotency-Key",
        "Author",
        "X-Authors",
    ),
    *("Sec-WebSocket-Key", "Sec-WebSocket-Protocol", "Mcp-Session-Id", "npm-session", "npm-auth-type"),
    *("Lock-Token", "lock_token", "x-ms-continuationtoken", "X-Tokenizer", "X-Secretary", "Keyword", "X-Key"),
    *("X-Forwarded-For", "Docker-Distribution-Api-Version", "X-Amz-Date", "X-Amz-Content-Sha256"),
]
# What some servers, and what stands before them, believe of whoever is connected.
BELIEVED = [
    *("X-Original-URL", "X-Rewrite-URL", "X-Original-Method", "X-Auth-Request-User", "Remote-User", "Cookie"),
    *(
        "X-SSL-Client-Cert",
        "SSL-Client-Verify",
        "X-Client-Cert",
        "X-Forwarded-For",
        "X-Forwarded-Client-Cert",
    ),
    *("X-Forwarded-Host", "X-Forwarded-Prefix", "Forwarded", "X-Real-IP", "X-Envoy-Original-Path", "Via"),
    *("Sec-WebSocket-Protocol", "Sec-WebSocket-Key", "X-Stream-Protocol-Version", "X-Api-Key", "Audit-ID"),
    *("X-Custom-IP-Authorization", "X-Host", "Origin", "Range", "Destination", "Content_Type", "If_Match"),
]
REFUSED = [
    *(
        "Impersonate-User",
        "impersonate-group",
        "Impersonate-Uid",
        "Impersonate-Extra-scopes",
        "IMPERSONATE_USER",
    ),
    *("X-Remote-User", "X-Remote-Group", "X_Remote_User", "X-Remote-Extra-a", "x.remote.uid"),
    *("X-HTTP-Method-Override", "X-HTTP-Method", "X-Method-Override", "x_http_method_override"),
]


@pytest.mark.parametrize("name", [*CLIENTS, *KUBECTL])
def test_what_clients_of_kubernetes_send_reaches_the_api_server(name: str) -> None:
    fields = [(name, "1"), (name.upper(), "2")]
    assert request_fields(fields, KUBERNETES) == [*fields, INJECTED]


@pytest.mark.parametrize("name", [*ABOUT_THE_CONNECTION, *CREDENTIALS, *BELIEVED, *REFUSED, "X-Anything"])
def test_nothing_else_reaches_the_api_server(name: str) -> None:
    assert request_fields([(name, "client's")], KUBERNETES) == [INJECTED]


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_make_it_another_request_is_refused_with_a_sentence(name: str) -> None:
    refusal = refused_fields([("Accept", "*/*"), (name, "x")], KUBERNETES)
    assert refusal is not None
    assert refusal.reason is Reason.FIELD_NOT_ALLOWED
    assert "; " in refusal.detail
    assert refused_fields([(name, "x")], ALLOWLIST) is None


@pytest.mark.parametrize("name", [*CLIENTS, *KUBECTL, *BELIEVED, "Authorization", "X-Impersonate-User"])
def test_what_is_merely_dropped_is_not_refused(name: str) -> None:
    assert refused_fields([(name, "x")], KUBERNETES) is None


@pytest.mark.parametrize("name", [*ABOUT_THE_CONNECTION, *CREDENTIALS])
def test_no_credential_reaches_a_host_of_an_allowlist(name: str) -> None:
    assert request_fields([(name, "client's")], ALLOWLIST) == []


@pytest.mark.parametrize("name", [*CLIENTS, *KUBECTL, *NO_CREDENTIALS])
def test_everything_else_does_in_its_order(name: str) -> None:
    fields = [("Z", "1"), (name, "2"), ("A", "3"), (name, "4")]
    assert request_fields(fields, ALLOWLIST) == fields


def test_the_docs_say_what_the_tables_say() -> None:
    """docs/security.md, `What of a request's header passes`: each list in it is one of the tables."""
    section = DOCS.read_text().partition("\n## What of a request's header passes\n")[2].partition("\n## ")[0]
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if "|" in line
    ]
    said = {row[0]: row[1] for row in rows}

    def names(key: str) -> set[str]:
        return {name.lower() for name in re.findall("`([^`]+)`", said[key])}

    fields = {name.strip("`").lower(): why for name, why in said.items() if re.fullmatch("`[^`]+`", name)}
    assert fields == KUBERNETES_PASSED
    assert names("refused") == {name for refused in KUBERNETES_REFUSED for name in refused.names}
    assert names("a word") == CREDENTIAL_WORDS
    assert names("a word's end") == set(CREDENTIAL_ENDINGS)
    assert names("`key` after a word") == WORDS_BEFORE_KEY
    assert names("a name") == CREDENTIAL_NAMES
    assert names("a name's beginning") == set(CREDENTIAL_PREFIXES)
    assert names("none of them") == set(NO_CREDENTIALS_TABLE)


def test_a_field_that_connection_names_is_stripped_but_never_the_injected_one() -> None:
    fields = [
        ("Connection", "Authorization, X-Hop"),
        ("connection", "x-other"),
        ("X-Hop", "1"),
        ("X-Other", "2"),
    ]
    assert request_fields(fields, KUBERNETES) == [INJECTED]


@pytest.mark.parametrize(
    ("fields", "passed"),
    [
        (
            [("Content-Length", "5"), ("Content-Encoding", "gzip")],
            [("Content-Length", "5"), ("Content-Encoding", "gzip")],
        ),
        ([("Content-Length", "5"), ("Transfer-Encoding", "chunked")], []),
        ([("Connection", "X-Hop, close"), ("X-Hop", "1"), ("X", "2")], [("X", "2")]),
        (
            [
                ("Alt-Svc", 'h3=":443"'),
                ("Keep-Alive", "x"),
                ("Upgrade", "h2c"),
                ("Proxy-Authenticate", "Basic"),
            ],
            [],
        ),
        ([("Set-Cookie", "a=1"), ("Set-Cookie", "b=2")], [("Set-Cookie", "a=1"), ("Set-Cookie", "b=2")]),
        ([("Location", "https://evil.example/")], [("Location", "https://evil.example/")]),
        (
            [
                ("X", "a\r\nSet-Cookie: b"),
                ("Y", "a\0b"),
                ("Z\n", "1"),
                ("W", "\udce9"),
                ("V", "tab\tis fine é"),
            ],
            [("V", "tab\tis fine é")],
        ),
    ],
)
def test_what_a_client_gets_of_a_response_head(
    fields: list[tuple[str, str]], passed: list[tuple[str, str]]
) -> None:
    assert response_fields(fields) == passed
