"""A CONNECT head: what is granted, and the reason for everything else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli_mcp.api.endpoint import Endpoint
from cred_proxy.connect import MAX_HEAD_BYTES, judge_connect, parse_connect, requested_target
from cred_proxy.refusal import Reason, Refusal
from cred_proxy.routes import AllowlistRoute, RouteTable

HOST = Endpoint("git.example.com", 443)
IPV4 = Endpoint("192.0.2.7", 8443)
IPV6 = Endpoint("2001:db8::1", 443)
ROUTES: RouteTable = {endpoint: AllowlistRoute(endpoint) for endpoint in (HOST, IPV4, IPV6)}


@pytest.mark.parametrize(
    ("target", "endpoint"),
    [
        ("git.example.com:443", HOST),
        ("GIT.Example.COM:443", HOST),
        ("192.0.2.7:8443", IPV4),
        ("[2001:db8::1]:443", IPV6),
        ("[2001:0DB8:0:0:0:0:0:1]:443", IPV6),
    ],
)
def test_every_spelling_of_a_listed_endpoint_is_that_endpoint(target: str, endpoint: Endpoint) -> None:
    assert judge_connect(f"CONNECT {target} HTTP/1.1\r\nHost: x".encode(), ROUTES) == endpoint


@pytest.mark.parametrize(
    ("head", "reason"),
    [
        ("CONNECT git.example.com:8443 HTTP/1.1", Reason.DOMAIN_NOT_ALLOWED),
        ("CONNECT git.example.com:0443 HTTP/1.1", Reason.DOMAIN_NOT_ALLOWED),
        ("CONNECT git.example.com:65979 HTTP/1.1", Reason.DOMAIN_NOT_ALLOWED),
        ("CONNECT git.example.com.:443 HTTP/1.1", Reason.DOMAIN_NOT_ALLOWED),
        ("CONNECT .git.example.com:443 HTTP/1.1", Reason.DOMAIN_NOT_ALLOWED),
        ("CONNECT evil.git.example.com:443 HTTP/1.1", Reason.DOMAIN_NOT_ALLOWED),
        ("CONNECT example.com:443 HTTP/1.1", Reason.DOMAIN_NOT_ALLOWED),
        ("CONNECT user@git.example.com:443 HTTP/1.1", Reason.DOMAIN_NOT_ALLOWED),
        ("CONNECT user:pw@git.example.com:443 HTTP/1.1", Reason.BAD_CONNECT),
        ("CONNECT git.example.com%00.evil:443 HTTP/1.1", Reason.DOMAIN_NOT_ALLOWED),
        ("CONNECT 3221225991:8443 HTTP/1.1", Reason.DOMAIN_NOT_ALLOWED),
        ("CONNECT 192.0.2.07:8443 HTTP/1.1", Reason.DOMAIN_NOT_ALLOWED),
        ("CONNECT [::ffff:192.0.2.7]:8443 HTTP/1.1", Reason.DOMAIN_NOT_ALLOWED),
        ("CONNECT [2001:db8::1%25eth0]:443 HTTP/1.1", Reason.DOMAIN_NOT_ALLOWED),
        ("CONNECT [2001:db8::2]:443 HTTP/1.1", Reason.DOMAIN_NOT_ALLOWED),
        ("CONNECT 2001:db8::1:443 HTTP/1.1", Reason.BAD_CONNECT),
        ("CONNECT [git.example.com]:443 HTTP/1.1", Reason.DOMAIN_NOT_ALLOWED),
        ("CONNECT git.example.com HTTP/1.1", Reason.BAD_CONNECT),
        ("CONNECT git.example.com: HTTP/1.1", Reason.BAD_CONNECT),
        ("CONNECT https://git.example.com:443/ HTTP/1.1", Reason.BAD_CONNECT),
        ("CONNECT git.example.com:443/ HTTP/1.1", Reason.BAD_CONNECT),
        ("CONNECT  git.example.com:443 HTTP/1.1", Reason.BAD_CONNECT),
        ("CONNECT git.example.com:443  HTTP/1.1", Reason.BAD_CONNECT),
        ("CONNECT\tgit.example.com:443 HTTP/1.1", Reason.BAD_CONNECT),
        ("CONNECT git.example.com:443", Reason.BAD_CONNECT),
        ("CONNECT git.example.com:443 HTTP/2.0", Reason.BAD_CONNECT),
        ("CONNECT git.example.com:443 HTTP/1.1\nHost: x", Reason.BAD_CONNECT),
        ("connect git.example.com:443 HTTP/1.1", Reason.BAD_CONNECT),
        ("\r\nCONNECT git.example.com:443 HTTP/1.1", Reason.BAD_CONNECT),
        ("PRI * HTTP/2.0", Reason.BAD_CONNECT),
        ("\x16\x03\x01\x02", Reason.BAD_CONNECT),
        ("GET http://git.example.com/ HTTP/1.1", Reason.NOT_CONNECT),
        ("OPTIONS * HTTP/1.1", Reason.NOT_CONNECT),
        ("CONNECT git.example.com:443 HTTP/1.1\r\nContent-Length: 5", Reason.BAD_CONNECT),
        ("CONNECT git.example.com:443 HTTP/1.1\r\nTransfer-Encoding: chunked", Reason.BAD_CONNECT),
        ("CONNECT git.example.com:443 HTTP/1.1\r\nHost : x", Reason.BAD_CONNECT),
        ("CONNECT git.example.com:443 HTTP/1.1\r\n Host: x", Reason.BAD_CONNECT),
        ("CONNECT git.example.com:443 HTTP/1.1\r\nHost: x\r\n folded", Reason.BAD_CONNECT),
        ("CONNECT git.example.com:443 HTTP/1.1\r\nX: a\0b", Reason.BAD_CONNECT),
        ("CONNECT git.example.com:443 HTTP/1.1\r\nX: a\rY: b", Reason.BAD_CONNECT),
    ],
)
def test_everything_else_is_refused_with_its_reason(head: str, reason: Reason) -> None:
    verdict = judge_connect(head.encode("latin-1"), ROUTES)
    assert isinstance(verdict, Refusal)
    assert verdict.reason is reason


def test_an_empty_body_and_the_usual_headers_of_a_connect_are_fine() -> None:
    head = (
        b"CONNECT git.example.com:443 HTTP/1.0\r\nUser-Agent: a\r\nContent-Length: 0\r\nProxy-Connection: x"
    )
    assert parse_connect(head) == HOST


def test_a_refused_domain_is_told_what_the_sandbox_reaches() -> None:
    verdict = judge_connect(b"CONNECT evil.example:443 HTTP/1.1", ROUTES)
    assert isinstance(verdict, Refusal)
    response = verdict.before_tls().decode()
    assert response.startswith("HTTP/1.1 403 domain not allowed: evil.example:443; this sandbox reaches ")
    assert (
        "evil.example:443; this sandbox reaches git.example.com:443, 192.0.2.7:8443, [2001:db8::1]:443"
        in response
    )


@pytest.mark.parametrize(
    ("head", "target"),
    [
        ("CONNECT evil.example:443 HTTP/1.1", "evil.example:443"),
        ("CONNECT [2001:db8::2]:443 HTTP/1.1", "[2001:db8::2]:443"),
        ("CONNECT user:password@evil.example:443 HTTP/1.1", "evil.example:443"),
        ("GET http://user:password@evil.example/path?token=x HTTP/1.1", "evil.example"),
        ("GET http://evil.example?token=x@y HTTP/1.1", "evil.example"),
        ("CONNECT evil.example:443?a=b://token HTTP/1.1", "evil.example:443"),
        ("GET /path?token=x HTTP/1.1", "-"),
        ("CONNECT password@ HTTP/1.1", "-"),
        ("CONNECT evil.example:443", "-"),
        ("\x16\x03\x01\x02", "-"),
        ("", "-"),
    ],
)
def test_the_record_of_a_refusal_names_what_was_asked_for_and_no_credential(head: str, target: str) -> None:
    assert requested_target(head.encode("latin-1")) == target


def test_the_record_of_a_refusal_is_bounded() -> None:
    assert len(requested_target(b"CONNECT " + MAX_HEAD_BYTES * b"a" + b" HTTP/1.1")) < 300


_PIECES = st.sampled_from(
    [
        "CONNECT",
        "GET",
        " ",
        "  ",
        "\t",
        "git.example.com",
        "evil.example",
        ":443",
        ":",
        "@",
        "[",
        "]",
        "::1",
        ".",
        "%00",
        "\0",
        "\r\n",
        "\n",
        "\r",
        " HTTP/1.1",
        "HTTP/1.0",
        "Host: x",
        "Content-Length: 1",
        "é",
    ]
)


@given(st.lists(_PIECES | st.text(max_size=4), max_size=12).map("".join))
def test_no_head_is_granted_anything_but_a_route(head: str) -> None:
    verdict = judge_connect(head.encode("utf-8", "surrogatepass"), ROUTES)
    assert isinstance(verdict, Refusal) or verdict in ROUTES
    if isinstance(verdict, Refusal):
        assert verdict.before_tls().count(b"\r\n\r\n") == 1
        assert requested_target(head.encode("utf-8", "surrogatepass")).isprintable()
