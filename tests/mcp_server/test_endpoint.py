"""Both protocol eras over a real socket: what the SDK's client sees, and what raw HTTP gets at the edges."""

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import httpx2
import mcp.server._streamable_http_modern
import pytest
import yaml
from mcp import MCPError
from mcp.types import CallToolResult, TextContent

import mcp_server.exchange
from cli_mcp.execution import (
    ExecutionError,
    NotSessionOwner,
    SandboxUnavailable,
    SessionBusy,
    SessionEnded,
)
from cli_mcp.strict_json import is_overstructured
from mcp_server.backend import SessionKey
from mcp_server.settings import ServerSettings
from tests.mcp_server.fake_backend import (
    TOKEN,
    FakeBackend,
    RunningServer,
    eventually,
    outcome,
    running_server,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")

Mode = Literal["auto", "legacy"]
VERSION_OF_MODE = {"auto": "2026-07-28", "legacy": "2025-11-25"}
ACCEPT = "application/json, text/event-stream"
META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
}
both_eras = pytest.mark.parametrize("mode", ["auto", "legacy"])


def text_of(result: CallToolResult) -> str:
    (block,) = result.content
    assert isinstance(block, TextContent)
    return block.text


def content_of(result: CallToolResult) -> dict[str, Any]:
    assert isinstance(result.structured_content, dict)
    return result.structured_content


# --- as the SDK's client sees it ---


@both_eras
async def test_a_session_from_listing_the_tool_to_a_failing_command(
    server: RunningServer, mode: Mode
) -> None:
    async with server.client(mode) as client:
        assert client.protocol_version == VERSION_OF_MODE[mode]
        assert client.instructions is not None
        assert "X-Session-ID" in client.instructions
        (tool,) = (await client.list_tools()).tools
        assert tool.name == "bash"
        assert tool.output_schema is not None and "notes" in tool.output_schema["properties"]
        worked = await client.call_tool("bash", {"command": "echo hi", "timeout": 5})
        assert not worked.is_error
        assert text_of(worked) == "hi\n"
        server.backend.outcome = outcome(b"", b"no\n", exit_code=2)
        failed = await client.call_tool("bash", {"command": "false"})
        assert failed.is_error
        assert content_of(failed)["exit_code"] == 2
        assert content_of(failed)["stderr"] == "no\n"
        assert server.backend.calls == [
            (SessionKey("local", "s1"), "echo hi", 5),
            (SessionKey("local", "s1"), "false", 55),
        ]


@both_eras
@pytest.mark.parametrize(
    ("headers", "arguments", "words"),
    [
        ({"X-Session-ID": "Not-Valid"}, {"command": "ls"}, "lower-case"),
        ({"X-Session-ID": "ssh-a"}, {"command": "ls"}, "ssh-"),
        ({}, {}, "`command`"),
        ({}, {"command": "  "}, "`command`"),
        ({}, {"command": 7}, "`command`"),
        ({}, {"command": "a\0b"}, "NUL"),
        ({}, {"command": "ls", "timeout": "soon"}, "`timeout`"),
        ({}, {"command": "ls", "timeout": True}, "`timeout`"),
        ({}, {"command": "ls", "timeout": 0}, "`timeout`"),
        ({}, {"command": "ls", "cwd": "/"}, "`cwd`"),
    ],
)
async def test_a_call_that_cannot_be_meant_is_a_tool_error_that_says_what_to_send(
    server: RunningServer, mode: Mode, headers: dict[str, str], arguments: dict[str, Any], words: str
) -> None:
    async with server.client(mode, headers) as client:
        result = await client.call_tool("bash", arguments)
        assert result.is_error
        assert words in text_of(result)
        assert server.backend.calls == []


@both_eras
@pytest.mark.parametrize(
    ("error", "label"),
    [
        (SessionBusy("8 calls wait already. Try again later."), "busy"),
        (SessionEnded("session ended by DELETE"), "session_ended"),
        (SandboxUnavailable("No sandbox: out of process ids."), "unavailable"),
        (NotSessionOwner("The session belongs to another caller."), "not_owner"),
        (ExecutionError("The sandbox answered nonsense."), "not_run"),
    ],
)
async def test_a_command_that_did_not_run_is_a_tool_error_in_the_backends_words(
    mode: Mode, error: Exception, label: str
) -> None:
    async with running_server(FakeBackend(error=error)) as server, server.client(mode) as client:
        result = await client.call_tool("bash", {"command": "fail"})
        assert result.is_error
        assert text_of(result) == str(error)
        assert result.structured_content is None
        assert f'cli_mcp_calls_total{{outcome="{label}"}} 1.0' in await metrics(server)


@both_eras
@pytest.mark.parametrize(
    "error", [RuntimeError("/root/secret.py"), KeyError("10.2.3.4"), ExceptionGroup("g", [OSError()])]
)
async def test_a_failure_of_ours_shows_an_id_and_only_the_log_shows_more(
    mode: Mode, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_server(FakeBackend(error=error)) as server, server.client(mode) as client:
        answer = text_of(await client.call_tool("bash", {"command": "fail"}))
        assert answer.startswith("internal error, id ")
        assert str(error) not in answer
        error_id = answer.split()[3].rstrip(":")
        logged = next(record for record in caplog.records if error_id in record.getMessage())
        assert logged.exc_info is not None
        assert logged.exc_info[1] is error


async def test_neither_commands_nor_output_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    backend = FakeBackend(outcome(b"output-secret"), error=RuntimeError("x"))
    async with running_server(backend) as server, server.http() as http:
        for version in ("2026-07-28", "2025-11-25"):
            for message in (
                call("echo command-secret"),
                call("fail"),
                call("x", name=["command-secret"]),
                call("x", arguments="command-secret"),
                call("x", name="command-secret"),
                {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": "command-secret"},
                {"jsonrpc": "2.0", "id": 1, "method": "command-secret"},
            ):
                await post(http, message, version)
    assert "command-secret" not in caplog.text
    assert "output-secret" not in caplog.text
    assert TOKEN not in caplog.text


@both_eras
@pytest.mark.parametrize("fill", [b"\0", "😀".encode(), b"\xff", b"\x1b[", "é".encode(), b"x"], ids=repr)
async def test_the_largest_results_reach_the_sdks_client_as_events(mode: Mode, fill: bytes) -> None:
    full = fill * (50_000 // len(fill))
    backend = FakeBackend(outcome(full, full))

    async def note(progress: float, total: float | None, message: str | None) -> None:
        """Progress was asked for, so the answer is an event of a stream."""

    async with running_server(backend) as server, server.client(mode) as client:
        result = await client.call_tool("bash", {"command": "sleep 0.3"}, progress_callback=note)
        assert content_of(result)["stdout_bytes"] == len(full)


@both_eras
async def test_progress_is_reported_while_a_command_runs(server: RunningServer, mode: Mode) -> None:
    reports: list[tuple[float, float | None, str | None]] = []

    async def note(progress: float, total: float | None, message: str | None) -> None:
        reports.append((progress, total, message))

    async with server.client(mode) as client:
        await client.call_tool("bash", {"command": "sleep 0.8", "timeout": 9}, progress_callback=note)
    assert len(reports) >= 2
    assert [progress for progress, _, _ in reports] == sorted({progress for progress, _, _ in reports})
    assert {(total, message) for _, total, message in reports} == {(9, "12 bytes of output: half way")}


@both_eras
async def test_a_client_that_gives_up_interrupts_its_command(mode: Mode) -> None:
    async with running_server() as server, server.client(mode) as client:
        waiting = asyncio.create_task(client.call_tool("bash", {"command": "sleep 60"}))
        await eventually(lambda: server.backend.running == 1)
        waiting.cancel()
        await eventually(lambda: server.backend.interrupted == ["sleep 60"])
        assert text_of(await client.call_tool("bash", {"command": "echo"})) == "hi\n"
        await eventually(lambda: server.backend.running == 0)
        assert 'outcome="cancelled"} 1.0' in await metrics(server)


@both_eras
async def test_an_unknown_tool_is_a_protocol_error(server: RunningServer, mode: Mode) -> None:
    async with server.client(mode) as client:
        with pytest.raises(MCPError) as refusal:
            await client.call_tool("python", {})
        assert refusal.value.code == -32602
        assert "`bash`" in refusal.value.message


@both_eras
async def test_two_hundred_calls_at_once_are_all_answered(server: RunningServer, mode: Mode) -> None:
    async with server.client(mode) as client:
        results = await asyncio.gather(
            *(client.call_tool("bash", {"command": f"sleep 0.{n % 4}"}) for n in range(200))
        )
        assert not any(result.is_error for result in results)
        assert len(server.backend.calls) == 200
        assert server.backend.running == 0


# --- raw HTTP ---


@dataclass(frozen=True)
class Answer:
    status: int
    body: Any


def call(command: object, request_id: object = 1, **params: object) -> dict[str, Any]:
    params = {"name": "bash", "arguments": {"command": command}, **params}
    return {"jsonrpc": "2.0", "id": request_id, "method": "tools/call", "params": params}


def head_for(message: Any, version: str | None) -> dict[str, str]:
    """The headers that a client of that version sends with `message`; None for one that sends no version."""
    headers = {"Accept": ACCEPT, "Content-Type": "application/json"}
    if version is None:
        return headers
    headers["MCP-Protocol-Version"] = version
    if version == "2026-07-28" and isinstance(message, dict):
        headers["Mcp-Method"] = str(message.get("method"))
        if message.get("method") == "tools/call":
            headers["Mcp-Name"] = str(message["params"]["name"])
    return headers


def body_for(message: Any, version: str | None) -> bytes:
    if version == "2026-07-28" and isinstance(message, dict):
        params = message.get("params", {})
        message = message | {"params": params | {"_meta": META} if isinstance(params, dict) else params}
    return json.dumps(message).encode()


def parse(text: str) -> Any:
    """The message of an answer: a JSON body, or the last event of a stream."""
    events = [line.removeprefix("data: ") for line in text.split("\r\n") if line.startswith("data: ")]
    try:
        return json.loads(events[-1] if events else text)
    except ValueError:
        return text


async def post(
    http: httpx2.AsyncClient, message: Any, version: str | None, headers: dict[str, str] | None = None
) -> Answer:
    response = await http.post(
        "/mcp", content=body_for(message, version), headers=head_for(message, version) | (headers or {})
    )
    return Answer(response.status_code, parse(response.text))


async def metrics(server: RunningServer) -> str:
    async with server.http() as http:
        return (await http.get("/metrics")).text


@pytest.mark.parametrize("version", ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"])
async def test_every_handshake_version_is_agreed_to(server: RunningServer, version: str) -> None:
    params = {"protocolVersion": version, "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
    hello = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}
    async with server.http() as http:
        answer = await post(http, hello, None)
        assert answer.body["result"]["protocolVersion"] == version
        assert "mcp-session-id" not in answer.body


async def test_one_line_of_curl_is_enough_without_a_handshake(server: RunningServer) -> None:
    async with server.http() as http:
        answer = await post(http, call("echo hi"), None, {"Accept": "*/*"})
        assert answer.body["result"]["content"][0]["text"] == "hi\n"


LINE_ENDS = [character.encode() for character in "\u0085\u2028\u2029"]
WIRE_CASES: list[dict[str, Any]] = yaml.safe_load((Path(__file__).parents[1] / "data/wire.yaml").read_text())


@pytest.mark.parametrize("version", [None, "2025-11-25", "2026-07-28"])
@pytest.mark.parametrize("case", WIRE_CASES, ids=[case["name"] for case in WIRE_CASES])
async def test_no_event_has_a_character_that_a_reader_may_take_for_the_end_of_a_line(
    server: RunningServer, case: dict[str, Any], version: str | None
) -> None:
    stdout, stderr = case["stdout"], case.get("stderr", "")
    server.backend.outcome = outcome(stdout.encode(), stderr.encode())
    asked = call("sleep 0.15")
    body = json.loads(body_for(asked, version))
    body["params"].setdefault("_meta", {})["progressToken"] = 7
    async with server.http() as http:
        response = await http.post("/mcp", json=body, headers=head_for(asked, version))
    assert response.headers["content-type"].startswith("text/event-stream")
    assert "notifications/progress" in response.text
    assert not any(line_end in response.content for line_end in LINE_ENDS)
    structured = parse(response.text)["result"]["structuredContent"]
    assert (structured["stdout"], structured["stderr"]) == (stdout, stderr)


@pytest.mark.parametrize("version", [None, "2025-11-25", "2026-07-28"])
@pytest.mark.parametrize("accept", [None, "", "*/*"], ids=repr)
async def test_who_says_not_what_it_accepts_accepts_anything(
    server: RunningServer, version: str | None, accept: str | None
) -> None:
    message = call("echo hi")
    headers = {key: value for key, value in head_for(message, version).items() if key.lower() != "accept"}
    async with server.http() as http:
        del http.headers["accept"]
        response = await http.post(
            "/mcp",
            content=body_for(message, version),
            headers=headers | ({} if accept is None else {"Accept": accept}),
        )
    assert response.status_code == 200
    assert parse(response.text)["result"]["structuredContent"]["stdout"] == "hi\n"


@pytest.mark.parametrize("method", ["GET", "DELETE", "PUT", "OPTIONS", "HEAD"])
@pytest.mark.parametrize("path", ["/mcp", "/mcp/"])
async def test_the_endpoint_takes_only_post(server: RunningServer, method: str, path: str) -> None:
    async with server.http({"Accept": ACCEPT}) as http:
        answer = await http.request(method, path)
        assert answer.status_code == 405
        assert answer.headers["allow"] == "POST"


async def test_a_trailing_slash_makes_no_difference(server: RunningServer) -> None:
    async with server.http() as http:
        ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
        answer = await http.post("/mcp/", json=ping, headers={"Accept": ACCEPT})
        assert answer.status_code == 200


@pytest.mark.parametrize("version", ["2025-11-25", "2026-07-28"])
@pytest.mark.parametrize("accept", ["text/event-stream", "application/json", "text/html"])
async def test_a_client_must_accept_both_forms_of_an_answer(
    server: RunningServer, version: str, accept: str
) -> None:
    async with server.http() as http:
        assert (await post(http, call("x"), version, {"Accept": accept})).status == 406
        assert server.backend.calls == []


@pytest.mark.parametrize("version", ["2025-11-25", "2026-07-28"])
@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded"])
async def test_a_form_that_a_web_page_may_post_anywhere_is_refused(
    server: RunningServer, version: str, content_type: str
) -> None:
    async with server.http() as http:
        assert (await post(http, call("x"), version, {"Content-Type": content_type})).status == 400
        assert server.backend.calls == []


@pytest.mark.parametrize("version", ["2025-11-25", "2026-07-28"])
@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"{", b"[]", b"null", b"7", b'"x"', b"\xff\xfe", b"[" * 100_000, b'{"id":' * 50_000),
        b'[{"jsonrpc":"2.0","id":1,"method":"ping"}]',
        b'{"jsonrpc":"1.0","id":1,"method":"ping"}',
        b'{"jsonrpc":"2.0","id":' + b"9" * 5000 + b',"method":"ping"}',
    ],
    ids=lambda body: repr(body[:30]),
)
async def test_nonsense_is_the_clients_fault(server: RunningServer, version: str, body: bytes) -> None:
    async with server.http() as http:
        answer = await http.post("/mcp", content=body, headers=head_for({"method": "ping"}, version))
        # Too much structure is refused before anything parses it.
        assert answer.status_code == (413 if is_overstructured(body) else 400)
        assert "Traceback" not in answer.text
        assert "site-packages" not in answer.text


@pytest.mark.parametrize("version", ["2025-11-25", "2026-07-28"])
@pytest.mark.parametrize("request_id", [None, {}, [1], True, 1.5], ids=repr)
async def test_a_call_that_could_not_be_answered_is_not_run(
    server: RunningServer, version: str, request_id: object
) -> None:
    async with server.http() as http:
        answer = await post(http, call("x", request_id), version)
        assert answer.status in (202, 400)
        assert server.backend.calls == []


@pytest.mark.parametrize("version", ["2025-11-25", "2026-07-28"])
@pytest.mark.parametrize(
    "params",
    [
        {"arguments": None},
        {"arguments": {}},
        {"arguments": {"command": "x\ud800y"}},
        {"arguments": {"command": "x", "\ud800": 1}},
        {"arguments": {"command": "x", "timeout": 10**400}},
    ],
    ids=repr,
)
async def test_odd_arguments_are_tool_errors(
    server: RunningServer, version: str, params: dict[str, Any]
) -> None:
    async with server.http() as http:
        answer = await post(http, call("x", **params), version)
        refused = answer.body.get("result", {}).get("isError") or answer.status == 400
        assert refused, answer
        assert server.backend.calls == []


@pytest.mark.parametrize("version", ["2025-11-25", "2026-07-28"])
async def test_a_session_header_that_is_no_name_is_refused(server: RunningServer, version: str) -> None:
    for values, words in ([""], "lower-case"), (["a", "a"], "2 times"):
        message = call("x")
        headers = [*head_for(message, version).items(), ("Authorization", f"Bearer {TOKEN}")]
        headers += [("X-Session-ID", value) for value in values]
        async with httpx2.AsyncClient(base_url=server.origin, trust_env=False) as http:
            answer = await http.post("/mcp", content=body_for(message, version), headers=headers)
        result = parse(answer.text)["result"]
        assert result["isError"]
        assert words in result["content"][0]["text"]


async def test_an_unknown_protocol_version_is_told_which_are_known(server: RunningServer) -> None:
    async with server.http() as http:
        meta = META | {"io.modelcontextprotocol/protocolVersion": "2031-01-01"}
        message = call("x", _meta=meta)
        headers = head_for(message, "2026-07-28") | {"MCP-Protocol-Version": "2031-01-01"}
        response = await http.post("/mcp", content=json.dumps(message), headers=headers)
        assert response.status_code == 400
        assert response.json()["error"]["code"] == -32022
        assert "2026-07-28" in response.json()["error"]["data"]["supported"]


async def test_a_protocol_session_of_an_earlier_server_does_no_harm(server: RunningServer) -> None:
    async with server.http() as http:
        answer = await post(http, call("x"), "2025-11-25", {"Mcp-Session-Id": "from-before-the-restart"})
        assert answer.status == 200
        assert "result" in answer.body


async def test_headers_that_contradict_the_body_are_refused(server: RunningServer) -> None:
    async with server.http() as http:
        answer = await post(http, call("x"), "2026-07-28", {"Mcp-Name": "other"})
        assert (answer.status, answer.body["error"]["code"]) == (400, -32020)
        assert server.backend.calls == []


async def test_the_tool_list_may_be_kept_for_a_while(server: RunningServer) -> None:
    async with server.http() as http:
        listing = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
        result = (await post(http, listing, "2026-07-28")).body["result"]
        assert result["ttlMs"] >= 60_000
        assert result["cacheScope"] == "public"


@pytest.mark.parametrize("version", ["2025-11-25", "2026-07-28"])
async def test_two_calls_with_one_request_id_do_not_collide(server: RunningServer, version: str) -> None:
    async with server.http() as http:
        answers = await asyncio.gather(*(post(http, call("sleep 0.2"), version) for _ in range(2)))
        assert [answer.body["result"]["isError"] for answer in answers] == [False, False]


@pytest.mark.parametrize("version", ["2025-11-25", "2026-07-28"])
async def test_output_keeps_every_character(version: str) -> None:
    text = "é€😀\r\n\x00\x1b[0m\u2028"
    async with running_server(FakeBackend(outcome(text.encode()))) as server, server.http() as http:
        answer = await post(http, call("x"), version)
        assert answer.body["result"]["structuredContent"]["stdout"] == text


def cancellation(request_id: object) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": request_id}}


@pytest.mark.parametrize("request_id", [7, "seven"])
async def test_a_cancelled_notification_interrupts_the_command(
    server: RunningServer, request_id: object
) -> None:
    async with server.http() as http:
        waiting = asyncio.create_task(post(http, call("sleep 60", request_id), "2025-11-25"))
        await eventually(lambda: server.backend.running == 1)
        assert (await post(http, cancellation(request_id), "2025-11-25")).status == 202
        answer = await waiting
        assert server.backend.interrupted == ["sleep 60"]
        assert answer.body["result"]["isError"]
        assert "cancelled" in answer.body["result"]["content"][0]["text"]


async def test_every_one_of_many_cancellations_arrives(server: RunningServer) -> None:
    async with server.http() as http:
        waiting = [asyncio.create_task(post(http, call("sleep 60", n), "2025-11-25")) for n in range(40)]
        await eventually(lambda: server.backend.running == 40)
        await asyncio.gather(*(post(http, cancellation(n), "2025-11-25") for n in range(40)))
        await asyncio.gather(*waiting)
        assert len(server.backend.interrupted) == 40


@pytest.mark.parametrize(
    ("request_id", "headers"),
    [
        ("7", {}),
        (8, {}),
        (None, {}),
        (7, {"X-Session-ID": "s2"}),
        (7, {"X-Session-ID": "Not-Valid"}),
    ],
)
async def test_a_cancellation_of_something_else_interrupts_nothing(
    server: RunningServer, request_id: object, headers: dict[str, str]
) -> None:
    async with server.http() as http:
        waiting = asyncio.create_task(post(http, call("sleep 0.6", 7), "2025-11-25"))
        await eventually(lambda: server.backend.running == 1)
        await post(http, cancellation(request_id), "2025-11-25", headers)
        assert not (await waiting).body["result"]["isError"]
        assert server.backend.interrupted == []


async def test_a_cancellation_that_may_mean_either_of_two_calls_interrupts_none(
    server: RunningServer,
) -> None:
    async with server.http() as http:
        waiting = [asyncio.create_task(post(http, call("sleep 0.6", 7), "2025-11-25")) for _ in range(2)]
        await eventually(lambda: server.backend.running == 2)
        await post(http, cancellation(7), "2025-11-25")
        await asyncio.gather(*waiting)
        assert server.backend.interrupted == []


@pytest.mark.parametrize("version", ["2025-11-25", "2026-07-28"])
async def test_a_connection_that_breaks_interrupts_the_command(server: RunningServer, version: str) -> None:
    async with server.http() as http:
        with pytest.raises(httpx2.ReadTimeout):
            await http.post(
                "/mcp",
                content=body_for(call("sleep 60"), version),
                headers=head_for(call("sleep 60"), version),
                timeout=httpx2.Timeout(5, read=0.3),
            )
        await eventually(lambda: server.backend.interrupted == ["sleep 60"])


@pytest.fixture
def short_keep_alive(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """15 s are short enough for proxies and too long for a test."""
    monkeypatch.setattr(mcp.server._streamable_http_modern, "_SSE_PING_INTERVAL", 0.2)
    monkeypatch.setattr(mcp_server.exchange, "PING_SECONDS", 0.2)
    yield


@pytest.mark.usefixtures("short_keep_alive")
@pytest.mark.parametrize("version", ["2025-11-25", "2026-07-28"])
async def test_a_silent_command_keeps_its_connection_busy(version: str) -> None:
    message = call("sleep 1")
    async with running_server() as server, server.http() as http:
        response = await http.post(
            "/mcp", content=body_for(message, version), headers=head_for(message, version)
        )
        assert response.headers["content-type"].startswith("text/event-stream")
        assert response.text.count(": ping") >= 2
        assert "notifications/progress" not in response.text
        assert parse(response.text)["result"]["isError"] is False


@pytest.mark.parametrize("version", ["2025-11-25", "2026-07-28"])
async def test_an_answer_without_progress_before_it_is_plain_json(
    server: RunningServer, version: str
) -> None:
    message = call("echo hi")
    async with server.http() as http:
        response = await http.post(
            "/mcp", content=body_for(message, version), headers=head_for(message, version)
        )
        assert response.headers["content-type"] == "application/json"
        assert response.json()["result"]["content"][0]["text"] == "hi\n"


async def test_a_slow_reader_does_not_hold_up_others() -> None:
    big = FakeBackend(outcome(b"x" * 50_000, b"y" * 50_000))
    async with running_server(big) as server:
        message = body_for(call("x"), None)
        head = "".join(f"{name}: {value}\r\n" for name, value in head_for({}, None).items())
        request = (
            f"POST /mcp HTTP/1.1\r\nHost: localhost\r\nX-Session-ID: s1\r\n{head}"
            f"Authorization: Bearer {TOKEN}\r\nContent-Length: {len(message)}\r\n\r\n"
        )
        stalled = [await asyncio.open_connection("127.0.0.1", server.port, limit=1) for _ in range(20)]
        for _, writer in stalled:
            writer.write(request.encode() + message)
        async with server.http() as http:
            assert (await post(http, call("x"), None)).status == 200
        for _, writer in stalled:
            writer.close()


async def test_progress_is_not_sent_unasked() -> None:
    settings = replace(ServerSettings(), progress_interval_seconds=0.05)
    async with running_server(settings=settings) as server, server.http() as http:
        message = call("sleep 0.3")
        response = await http.post(
            "/mcp", content=body_for(message, "2025-11-25"), headers=head_for(message, "2025-11-25")
        )
        assert "notifications/progress" not in response.text
