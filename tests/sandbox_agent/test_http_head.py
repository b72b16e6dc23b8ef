"""A head that could be read in two ways is not read at all."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli_mcp.agent_api import RefusalKind
from sandbox_agent.http_head import FIELDS_LIMIT, RequestHead, parse_head
from sandbox_agent.refused import Refused


def head(*lines: str, request: str = "POST /v1/run HTTP/1.1", host: str = "Host: x") -> bytes:
    return "\r\n".join([line for line in (request, host, *lines) if line] + ["", ""]).encode("latin-1")


def test_a_head_is_read() -> None:
    assert parse_head(head("Content-Length: 12", "AUTHORIZATION:\tBearer a.b.c  ")) == RequestHead(
        "POST",
        "/v1/run",
        {"host": "x", "content-length": "12", "authorization": "Bearer a.b.c"},
        12,
        keep_alive=True,
    )


@pytest.mark.parametrize(
    ("line", "keep_alive"),
    [("Connection: close", False), ("Connection: Keep-Alive", True), ("Connection: upgrade", False)],
)
def test_a_connection_is_kept_unless_the_client_says_otherwise(line: str, keep_alive: bool) -> None:
    assert parse_head(head(line, request="GET /health HTTP/1.1")).keep_alive is keep_alive


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (head("Content-Length: 1", "Content-Length: 1"), RefusalKind.MALFORMED),
        (head("Content-Length: 1", "content-length: 2"), RefusalKind.MALFORMED),
        (head("Content-Length: 1", "Transfer-Encoding: chunked"), RefusalKind.MALFORMED),
        (head("Transfer-Encoding: chunked"), RefusalKind.LENGTH_REQUIRED),
        (head("Transfer-Encoding: identity"), RefusalKind.LENGTH_REQUIRED),
        (head(), RefusalKind.LENGTH_REQUIRED),
        (head("Content-Length: +1"), RefusalKind.MALFORMED),
        (head("Content-Length: -1"), RefusalKind.MALFORMED),
        (head("Content-Length: 0x1"), RefusalKind.MALFORMED),
        (head("Content-Length: 01"), RefusalKind.MALFORMED),
        (head("Content-Length: 1, 1"), RefusalKind.MALFORMED),
        (head("Content-Length: "), RefusalKind.MALFORMED),
        (head("Content-Length: 1_0"), RefusalKind.MALFORMED),
        (head("Content-Length: " + "9" * 17), RefusalKind.MALFORMED),
        (head("Content-Length : 1"), RefusalKind.MALFORMED),
        (head("Content-Length: 1", "X: a", "x: a"), RefusalKind.MALFORMED),
        (head("Content-Length: 1", "Authorization: a", "Authorization: b"), RefusalKind.MALFORMED),
        (head("Content-Length: 1", "Expect: 100-continue"), RefusalKind.MALFORMED),
        (head("Content-Length: 1", " folded"), RefusalKind.MALFORMED),
        (head("Content-Length: 1", "no colon"), RefusalKind.MALFORMED),
        (head("Content-Length: 1", ": empty"), RefusalKind.MALFORMED),
        (head("Content-Length: 1", "X: a\rContent-Length: 2"), RefusalKind.MALFORMED),
        (head("Content-Length: 1", "X: a\nContent-Length: 2"), RefusalKind.MALFORMED),
        (head("Content-Length: 1", "X: a\0"), RefusalKind.MALFORMED),
        (head("Content-Length: 1", "X: \xe9"), RefusalKind.MALFORMED),
        (head("Content-Length: 1", host=""), RefusalKind.MALFORMED),
        (head("Content-Length: 1", "Host: y"), RefusalKind.MALFORMED),
        (head(request="GET /health HTTP/1.0"), RefusalKind.MALFORMED),
        (head(request="GET /health HTTP/2"), RefusalKind.MALFORMED),
        (head(request="GET /health"), RefusalKind.MALFORMED),
        (head(request="GET  /health HTTP/1.1"), RefusalKind.MALFORMED),
        (head(request="GET /health  HTTP/1.1"), RefusalKind.MALFORMED),
        (head(request="GET /a b HTTP/1.1"), RefusalKind.MALFORMED),
        (head(request="GET http://x/health HTTP/1.1"), RefusalKind.MALFORMED),
        (head(request="GET * HTTP/1.1"), RefusalKind.MALFORMED),
        (head(request="get /health HTTP/1.1"), RefusalKind.MALFORMED),
        (head(request="PRI * HTTP/2.0"), RefusalKind.MALFORMED),
        (b"\r\n" + head(request="GET /health HTTP/1.1"), RefusalKind.MALFORMED),
        (head(request="GET /" + "a" * 1_024 + " HTTP/1.1"), RefusalKind.MALFORMED),
        (head(*(f"X{n}: a" for n in range(FIELDS_LIMIT))), RefusalKind.HEAD_TOO_LARGE),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", RefusalKind.MALFORMED),
    ],
)
def test_another_head_is_refused(data: bytes, kind: RefusalKind) -> None:
    with pytest.raises(Refused) as refused:
        parse_head(data)
    assert refused.value.kind is kind


@given(st.binary(max_size=300), st.integers(0, 100))
def test_any_bytes_are_a_head_or_refused(data: bytes, position: int) -> None:
    good = head("Content-Length: 12", "Authorization: Bearer x")
    for attempt in (data, good[:position] + data + good[position:]):
        try:
            parsed = parse_head(attempt)
        except Refused:
            continue
        assert parsed.path.startswith("/") and parsed.body_bytes >= 0 and "host" in parsed.fields
