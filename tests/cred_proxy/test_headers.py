"""Which header fields cross the proxy, as tables."""

import pytest

from cli_mcp.api.endpoint import Endpoint
from cli_mcp.kubeconfig import KubernetesServer
from cred_proxy.headers import request_fields, response_fields
from cred_proxy.routes import AllowlistRoute, KubernetesRoute, Route

ALLOWLIST = AllowlistRoute(Endpoint("git.example.com", 443))
KUBERNETES = KubernetesRoute(KubernetesServer(Endpoint("api.example.com", 443), "", "real-token"))
INJECTED = ("Authorization", "Bearer real-token")

EVERYWHERE = [
    "Authorization",
    "AUTHORIZATION",
    "authorization",
    "Proxy-Authorization",
    "X-Api-Key",
    "X_Api_Key",
    "Impersonate-User",
    "Impersonate-Group",
    "Impersonate-Uid",
    "Impersonate-Extra-scopes",
    "impersonate_user",
    "X-Remote-User",
    "X-Remote-Group",
    "X-Remote-Uid",
    "X-Remote-Extra-a",
    "X_Remote_User",
    "Connection",
    "Keep-Alive",
    "Proxy-Connection",
    "TE",
    "Trailer",
    "Upgrade",
    "HTTP2-Settings",
    "Expect",
]
KUBERNETES_ONLY = [
    "Cookie",
    "Sec-WebSocket-Protocol",
    "Sec-WebSocket-Key",
    "X-Forwarded-For",
    "X-Forwarded-Client-Cert",
    "Forwarded",
]
NEVER = [
    "Accept",
    "Content-Type",
    "User-Agent",
    "X-Authorization",
    "Authorization-X",
    "Range",
    "If-None-Match",
]


@pytest.mark.parametrize("route", [ALLOWLIST, KUBERNETES])
@pytest.mark.parametrize("name", EVERYWHERE)
def test_stripped_on_every_route(name: str, route: Route) -> None:
    injected = [INJECTED] if route is KUBERNETES else []
    assert request_fields([(name, "client's")], route) == injected


@pytest.mark.parametrize("name", KUBERNETES_ONLY)
def test_stripped_on_kubernetes_routes_only(name: str) -> None:
    assert request_fields([(name, "client's")], KUBERNETES) == [INJECTED]
    assert request_fields([(name, "client's")], ALLOWLIST) == [(name, "client's")]


@pytest.mark.parametrize("name", NEVER)
def test_everything_else_is_kept_in_its_order(name: str) -> None:
    fields = [("Z", "1"), (name, "2"), ("A", "3"), (name, "4")]
    assert request_fields(fields, ALLOWLIST) == fields


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
