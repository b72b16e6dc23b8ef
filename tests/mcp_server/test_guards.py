import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pydantic_core
import pytest
from mcp.types.version import HANDSHAKE_PROTOCOL_VERSIONS
from starlette.datastructures import Headers

from mcp_server.authentication import (
    Action,
    AuthenticationError,
    AuthenticationUnavailable,
    Caller,
    Forbidden,
    NoAuthentication,
    StaticToken,
    TooManyFailures,
    Unauthenticated,
)
from mcp_server.guards import Refusal, check_host, check_origin
from mcp_server.settings import ServerSettings
from tests.mcp_server.fake_backend import TOKEN, RunningServer, running_server

pytestmark = pytest.mark.asyncio(loop_scope="module")

PING = b'{"jsonrpc":"2.0","id":1,"method":"ping"}'
MCP_HEADERS = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
LOOPBACK = ServerSettings()
ANYWHERE = replace(LOOPBACK, allowed_hosts=None, allowed_origins=frozenset({"https://agents.example"}))


def status_of(refusal: Refusal | None) -> int:
    return 200 if refusal is None else refusal.status


async def ping(server: RunningServer, headers: dict[str, str], path: str = "/mcp") -> tuple[int, str]:
    async with server.http() as http:
        response = await http.post(path, content=PING, headers=MCP_HEADERS | headers)
        return response.status_code, response.text


@pytest.mark.parametrize(
    ("settings", "host", "status"),
    [
        (LOOPBACK, "127.0.0.1", 200),
        (LOOPBACK, "127.0.0.1:1234", 200),
        (LOOPBACK, "localhost", 200),
        (LOOPBACK, "LocalHost:80", 200),
        (LOOPBACK, "[::1]:8080", 200),
        (LOOPBACK, "rebound.example", 421),
        (LOOPBACK, "rebound.example:8080", 421),
        (LOOPBACK, "127.0.0.1.rebound.example", 421),
        (LOOPBACK, "localhost:80@rebound.example", 421),
        (LOOPBACK, "127.0.0.2", 421),
        (LOOPBACK, "", 421),
        (ANYWHERE, "cli-mcp-x.ns.svc:8443", 200),
    ],
)
async def test_on_loopback_only_its_own_names_are_answered(
    settings: ServerSettings, host: str, status: int
) -> None:
    assert status_of(check_host(Headers({"host": host}), settings)) == status


@pytest.mark.parametrize(
    ("settings", "origin", "status"),
    [
        (LOOPBACK, "http://localhost:3000", 200),
        (LOOPBACK, "https://127.0.0.1", 200),
        (LOOPBACK, "https://agents.example", 403),
        (LOOPBACK, "http://localhost.agents.example", 403),
        (LOOPBACK, "null", 403),
        (LOOPBACK, "", 403),
        (LOOPBACK, "file://localhost", 403),
        (ANYWHERE, "https://agents.example", 200),
        (ANYWHERE, "http://agents.example", 403),
        (ANYWHERE, "https://agents.example:444", 403),
        (ANYWHERE, "http://localhost:3000", 403),
    ],
)
async def test_a_page_of_an_unlisted_origin_is_turned_away(
    settings: ServerSettings, origin: str, status: int
) -> None:
    assert status_of(check_origin(Headers({"origin": origin}), settings)) == status


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "localhost"}, 200),
        ({"Host": "rebound.example"}, 421),
        ({"Origin": "http://localhost:3000"}, 200),
        ({"Origin": "https://agents.example"}, 403),
    ],
)
@pytest.mark.parametrize("path", ["/live", "/metrics"])
async def test_host_and_origin_are_checked_on_every_path(
    server: RunningServer, headers: dict[str, str], status: int, path: str
) -> None:
    async with server.http() as http:
        answer = await http.get(path, headers=headers)
        assert answer.status_code == status
        assert status == 200 or isinstance(answer.json()["error"], str)


@pytest.mark.parametrize(
    ("authorization", "status"),
    [
        (f"Bearer {TOKEN}", 200),
        (f"bearer   {TOKEN}", 200),
        (f"Bearer {TOKEN}x", 401),
        (f"Bearer {TOKEN[:-1]}", 401),
        ("Bearer", 401),
        (TOKEN, 401),
        (f"Basic {TOKEN}", 401),
        ("", 401),
    ],
)
async def test_only_the_bearer_of_the_token_is_let_in(
    server: RunningServer, authorization: str, status: int
) -> None:
    assert (await ping(server, {"Authorization": authorization}))[0] == status


async def test_a_token_of_strange_bytes_is_refused_like_any_other(server: RunningServer) -> None:
    head = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer \xff\xfe\r\n\r\n"
    assert (await raw(server, head)).startswith(b"HTTP/1.1 401 ")


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/live", 200),
        ("GET", "/health", 200),
        ("GET", "/metrics", 401),
        ("POST", "/mcp", 401),
        ("GET", "/mcp", 401),
        ("POST", "/mcp/", 401),
        ("DELETE", "/sessions/s1", 401),
        ("GET", "/", 401),
        ("GET", "/nothing-here", 401),
        ("GET", "/live/../metrics", 401),
        ("GET", "/live/", 401),
        ("GET", "//live", 401),
        ("GET", "/%6cive", 200),
    ],
)
async def test_without_a_token_only_liveness_and_health_are_answered(
    server: RunningServer, method: str, path: str, status: int
) -> None:
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    answer = await raw(server, head.encode())
    assert answer.startswith(f"HTTP/1.1 {status} ".encode()), answer
    if status == 401:
        assert b'www-authenticate: Bearer realm="cli-mcp"' in answer
        assert b"Authorization: Bearer TOKEN" in answer


async def test_a_refused_request_reaches_neither_the_tool_nor_the_sessions(server: RunningServer) -> None:
    async with server.http({"Authorization": "Bearer wrong"}) as http:
        call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call"}
        call |= {"params": {"name": "bash", "arguments": {"command": "x"}}}
        assert (await http.post("/mcp", json=call, headers=MCP_HEADERS)).status_code == 401
        assert (await http.delete("/sessions/s1")).status_code == 401
        assert server.backend.calls == []
        assert server.backend.ended == []


async def test_an_answer_never_repeats_the_token_that_was_sent(server: RunningServer) -> None:
    assert "secret-guess" not in (await ping(server, {"Authorization": "Bearer secret-guess"}))[1]


async def test_without_authentication_everybody_is_the_same_caller() -> None:
    async with running_server(authenticator=NoAuthentication()) as server:
        assert (await ping(server, {"Authorization": "Bearer whatever"}))[0] == 200


async def test_an_empty_token_is_no_token() -> None:
    with pytest.raises(ValueError, match="empty"):
        StaticToken("")


async def test_an_authenticator_hears_the_token_and_what_the_caller_wants() -> None:
    heard: list[tuple[str | None, Action, str]] = []

    class Listening:
        async def authenticate(self, token: str | None, action: Action, client_address: str) -> Caller:
            heard.append((token, action, client_address))
            raise Forbidden("You may read, not call.")

    async with running_server(authenticator=Listening()) as server, server.http() as http:
        assert (await http.post("/mcp", content=PING)).status_code == 403
        assert (await http.delete("/sessions/s1")).status_code == 403
        answer = await http.get("/metrics")
        assert answer.status_code == 403
        assert answer.json() == {"error": "You may read, not call."}
    actions = [Action.CALL, Action.END_SESSION, Action.READ_METRICS]
    assert heard == [(TOKEN, action, "127.0.0.1") for action in actions]


@pytest.mark.parametrize(
    ("error", "status", "header"),
    [
        (Unauthenticated("Who?"), 401, "www-authenticate"),
        (Forbidden("No."), 403, None),
        (TooManyFailures("Later."), 429, "retry-after"),
        (AuthenticationUnavailable("Later."), 503, "retry-after"),
    ],
)
async def test_each_refusal_of_a_caller_has_its_status(
    error: AuthenticationError, status: int, header: str | None
) -> None:
    class Refusing:
        async def authenticate(self, token: str | None, action: Action, client_address: str) -> Caller:
            raise error

    async with running_server(authenticator=Refusing()) as server, server.http() as http:
        answer = await http.post("/mcp", content=PING)
        assert (answer.status_code, answer.json()) == (status, {"error": str(error)})
        assert header is None or header in answer.headers
        assert (await http.get("/live")).status_code == 200


@pytest.mark.parametrize("header", ["Origin: http://localhost", f"Authorization: Bearer {TOKEN}"])
async def test_a_header_that_decides_must_not_come_twice(server: RunningServer, header: str) -> None:
    head = f"GET /metrics HTTP/1.1\r\nHost: localhost\r\n{header}\r\n{header}\r\n\r\n"
    answer = await raw(server, head.encode())
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"Send it once" in answer


async def test_a_body_over_the_limit_is_refused_readably(server: RunningServer) -> None:
    async with server.http() as http:
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "ping", "x": "y" * (4 << 20)}).encode()
        declared = await http.post("/mcp", content=body, headers=MCP_HEADERS)
        assert declared.status_code == 413
        assert "4 MiB" in declared.json()["error"]


async def test_a_body_that_does_not_declare_its_size_is_cut_off_at_the_limit(server: RunningServer) -> None:
    head = (
        f"POST /mcp HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n"
        "Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    chunk = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
    answer = await raw(server, head.encode() + chunk * 65 + b"0\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"4 MiB" in answer


@pytest.mark.parametrize("version", [HANDSHAKE_PROTOCOL_VERSIONS[-1], "2026-07-28", "nonsense"])
@pytest.mark.parametrize(
    "message",
    [
        b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"x":[%b1]}}' % (b"1," * (1 << 20)),
        b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"x":[%b1]}}' % (b"1," * (1 << 20)),
        b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{%b}}'
        % b",".join(b'"%x":1' % number for number in range(1 << 18)),
        b"[" * (1 << 20),
    ],
    ids=["integers", "notification", "keys", "depth"],
)
async def test_a_body_of_numbers_and_keys_is_refused_before_anybody_parses_it(
    server: RunningServer, message: bytes, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed: list[int] = []

    def counting(real: Callable[..., Any]) -> Callable[..., Any]:
        def parse(data: bytes, *arguments: Any, **options: Any) -> Any:
            parsed.append(len(data))
            return real(data, *arguments, **options)

        return parse

    for module, name in ((pydantic_core, "from_json"), (json, "loads")):
        monkeypatch.setattr(module, name, counting(getattr(module, name)))
    async with server.http() as http:
        headers = {**MCP_HEADERS, "MCP-Protocol-Version": version}
        answer = await http.post("/mcp", content=message, headers=headers)
    monkeypatch.undo()
    assert answer.status_code == 413
    assert "outside of strings" in answer.json()["error"]
    assert max(parsed, default=0) < 1_000


async def test_a_body_just_under_the_limit_is_served(server: RunningServer) -> None:
    async with server.http() as http:
        padding = " " * ((4 << 20) - len(PING))
        answer = await http.post("/mcp", content=PING + padding.encode(), headers=MCP_HEADERS)
        assert answer.status_code == 200


async def test_a_body_that_stops_coming_is_answered_in_time() -> None:
    impatient = replace(LOOPBACK, body_timeout_seconds=0.3)
    async with running_server(settings=impatient) as server:
        head = (
            f"POST /mcp HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n"
            "Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{"
        )
        answer = await raw(server, head.encode())
        assert answer.startswith(b"HTTP/1.1 408 ")


async def test_whitespace_around_a_header_value_is_no_part_of_it(server: RunningServer) -> None:
    head = (
        f"GET /metrics HTTP/1.1\r\nHost:localhost \t\r\nAuthorization: \t Bearer {TOKEN}  \r\n"
        "Connection: close\r\n\r\n"
    )
    assert (await raw(server, head.encode())).startswith(b"HTTP/1.1 200 ")


async def raw(server: RunningServer, request: bytes) -> bytes:
    """What the server answers to these bytes, until it closes or has sent a whole small answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(request)
    answer = b""
    try:
        async with asyncio.timeout(20):
            while not _is_whole(answer) and (more := await reader.read(65536)):
                answer += more
    except ConnectionError:
        pass  # closed while we were still sending
    writer.close()
    return answer


def _is_whole(answer: bytes) -> bool:
    head, separator, body = answer.partition(b"\r\n\r\n")
    length = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    return bool(separator and length) and len(body) >= int(length[0].split(b":")[1])
