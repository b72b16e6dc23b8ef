import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from mcp import MCPError, types
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import NoBackChannelError
from mcp.shared.message import ServerMessageMetadata
from starlette.requests import Request
from starlette.types import Message

import mcp_server.exchange
from mcp_server.exchange import exchange, handshake_request

Context = ServerRequestContext[Any, Any]
Handler = Callable[[Context], Awaitable[types.CallToolResult]]

HEADERS = {"accept": "application/json, text/event-stream", "content_type": "application/json"}
CALL = {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"name": "it", "arguments": {}}}
RESULT = types.CallToolResult(content=[types.TextContent(text="\r\n é \u2028")])
JSON_HEAD = ("application/json", 200)
STREAM_HEAD = ("text/event-stream", 200)


def http(**headers: str) -> Request:
    raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in (HEADERS | headers).items()]
    return Request({"type": "http", "method": "POST", "path": "/mcp", "headers": raw})


def asking_for_progress(token: object) -> dict[str, Any]:
    return {**CALL, "params": {**CALL["params"], "_meta": {"progressToken": token}}}  # type: ignore[dict-item]


@dataclass
class Client:
    """The other end of one request."""

    sent: list[Message] = field(default_factory=list)
    hung_up: asyncio.Event = field(default_factory=asyncio.Event)

    async def receive(self) -> Message:
        await self.hung_up.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        # As a connection that is full now and then.
        await asyncio.sleep(0.005 if message["type"] == "http.response.start" else 0)
        self.sent.append(message)

    @property
    def head(self) -> tuple[str, int]:
        head = self.sent[0]
        assert head["type"] == "http.response.start"
        return dict(head["headers"])[b"content-type"].decode(), head["status"]

    @property
    def bodies(self) -> list[bytes]:
        assert [message["type"] for message in self.sent[1:]] == ["http.response.body"] * len(self.sent[1:])
        assert [bool(message.get("more_body")) for message in self.sent[1:]] == [
            *[True] * (len(self.sent) - 2),
            False,
        ]
        return [message["body"] for message in self.sent[1:]]

    @property
    def events(self) -> list[Any]:
        """Messages, or "ping" for a comment."""
        return [_event(body) for body in self.bodies]


def _event(body: bytes) -> Any:
    if body == b": ping\r\n\r\n":
        return "ping"
    head, data, end = body.partition(b"data: ")[0], body.partition(b"data: ")[2][:-4], body[-4:]
    assert (head, end) == (b"event: message\r\n", b"\r\n\r\n")
    assert b"\n" not in data
    return json.loads(data)


def server_of(handler: Handler) -> Server[Any]:
    async def call_tool(context: Context, params: types.CallToolRequestParams) -> types.CallToolResult:
        return await handler(context)

    return Server("it", on_call_tool=call_tool)


async def run(handler: Handler, client: Client, message: dict[str, Any] = CALL) -> None:
    asked = handshake_request(http(), json.dumps(message).encode())
    assert asked is not None
    async with asyncio.timeout(10):
        await exchange(server_of(handler), asked, client.receive, client.send)


@asynccontextmanager
async def running(handler: Handler, client: Client) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(run(handler, client))
    yield task
    task.cancel()


async def at_once(context: Context) -> types.CallToolResult:
    return RESULT


class Endless:
    """A handler that ends when it is cancelled."""

    def __init__(self) -> None:
        self.cancelled = asyncio.Event()

    async def __call__(self, context: Context) -> types.CallToolResult:
        try:
            await asyncio.Event().wait()
        finally:
            self.cancelled.set()
        raise AssertionError


# --- what it takes on ---


def test_a_request_of_the_handshake_era_is_read() -> None:
    asked = handshake_request(http(mcp_protocol_version="2025-06-18"), json.dumps(CALL).encode())
    assert asked is not None
    assert asked.version == "2025-06-18"
    assert (asked.message.id, asked.message.method) == (7, "tools/call")


def test_a_client_that_names_no_version_has_the_one_that_the_specification_says() -> None:
    asked = handshake_request(http(), json.dumps(CALL).encode())
    assert asked is not None
    assert asked.version == "2025-03-26"


@pytest.mark.parametrize(
    "content_type",
    ["application/json; charset=utf-8", "application/json ;x=y", "application/json, text/plain"],
)
def test_a_content_type_is_read_as_the_sdk_reads_it(content_type: str) -> None:
    assert handshake_request(http(content_type=content_type), json.dumps(CALL).encode()) is not None


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        ({"mcp_protocol_version": "2026-07-28"}, CALL),
        ({"mcp_protocol_version": "1"}, CALL),
        ({"accept": "application/json"}, CALL),
        ({"accept": "text/event-stream"}, CALL),
        ({"content_type": "text/plain"}, CALL),
        ({"content_type": "application/jsonx"}, CALL),
        ({"content_type": "text/plain, application/json"}, CALL),
        ({"content_type": ""}, CALL),
        ({}, [CALL]),
        ({}, {**CALL, "jsonrpc": "1.0"}),
        ({}, {**CALL, "id": None}),
        ({}, {**CALL, "id": True}),
        ({}, {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 7}}),
        ({}, {"jsonrpc": "2.0", "id": 7, "result": {}}),
    ],
    ids=repr,
)
def test_all_else_is_left_to_the_sdk(headers: dict[str, str], body: object) -> None:
    assert handshake_request(http(**headers), json.dumps(body).encode()) is None


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b"[" * 100_000])
def test_what_is_no_json_is_left_to_the_sdk(body: bytes) -> None:
    assert handshake_request(http(), body) is None


# --- what it answers ---


async def test_an_answer_that_comes_first_is_plain_json() -> None:
    client = Client()
    await run(at_once, client)
    (body,) = client.bodies
    assert client.head == JSON_HEAD
    assert dict(client.sent[0]["headers"])[b"content-length"] == str(len(body)).encode()
    answer = json.loads(body)
    assert (answer["jsonrpc"], answer["id"]) == ("2.0", 7)
    assert answer["result"]["content"] == [{"type": "text", "text": "\r\n é \u2028"}]


@pytest.mark.parametrize("request_id", [0, -7, 'a " \u2028 b'])
async def test_an_answer_has_the_id_of_its_request(request_id: int | str) -> None:
    client = Client()
    await run(at_once, client, {**CALL, "id": request_id})
    assert json.loads(client.bodies[0])["id"] == request_id


@pytest.mark.parametrize("token", [0, "t"])
async def test_progress_makes_it_a_stream(token: int | str) -> None:
    async def handler(context: Context) -> types.CallToolResult:
        await context.session.report_progress(1, 9, "one")
        await context.session.report_progress(2)
        return RESULT

    client = Client()
    await run(handler, client, asking_for_progress(token))
    assert client.head == STREAM_HEAD
    *reports, answer = client.events
    assert [report["method"] for report in reports] == ["notifications/progress"] * 2
    assert [report["params"] for report in reports] == [
        {"progressToken": token, "progress": 1, "total": 9, "message": "one"},
        {"progressToken": token, "progress": 2},
    ]
    assert answer["result"]["content"][0]["text"] == "\r\n é \u2028"


@pytest.mark.parametrize("message", [CALL, asking_for_progress(True), asking_for_progress(None)], ids=repr)
async def test_progress_that_nobody_asked_for_is_not_sent(message: dict[str, Any]) -> None:
    async def handler(context: Context) -> types.CallToolResult:
        await context.session.report_progress(1)
        return RESULT

    client = Client()
    await run(handler, client, message)
    assert client.head == JSON_HEAD
    answer = json.loads(client.bodies[0])
    assert "result" in answer or answer["error"]["code"] == types.INVALID_PARAMS


async def test_what_takes_long_becomes_a_stream_that_says_that_it_lives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def handler(context: Context) -> types.CallToolResult:
        await asyncio.sleep(0.3)
        return RESULT

    monkeypatch.setattr(mcp_server.exchange, "PING_SECONDS", 0.05)
    client = Client()
    await run(handler, client)
    assert client.head == STREAM_HEAD
    *pings, answer = client.events
    assert len(pings) >= 2
    assert set(pings) == {"ping"}
    assert "result" in answer


async def test_pings_and_progress_at_once_make_one_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    async def handler(context: Context) -> types.CallToolResult:
        for number in range(100):
            await context.session.report_progress(number)
            await asyncio.sleep(0.001)
        return RESULT

    monkeypatch.setattr(mcp_server.exchange, "PING_SECONDS", 0.001)
    client = Client()
    await run(handler, client, asking_for_progress(1))
    assert client.head == STREAM_HEAD
    *events, answer = client.events
    assert [event["params"]["progress"] for event in events if event != "ping"] == list(range(100))
    assert "ping" in events
    assert "result" in answer


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (MCPError(code=-32602, message="no such tool"), -32602, "no such tool"),
        (RuntimeError("/root/secret.py"), types.INTERNAL_ERROR, "internal error, id "),
    ],
)
async def test_an_error_is_an_answer_and_shows_nothing_internal(
    error: Exception, code: int, message: str
) -> None:
    async def handler(context: Context) -> types.CallToolResult:
        raise error

    client = Client()
    await run(handler, client)
    assert client.head == JSON_HEAD
    answer = json.loads(client.bodies[0])
    assert (answer["id"], answer["error"]["code"]) == (7, code)
    assert answer["error"]["message"].startswith(message)
    assert "secret" not in answer["error"]["message"]


async def test_a_result_that_is_no_unicode_is_an_error_of_ours(caplog: pytest.LogCaptureFixture) -> None:
    async def handler(context: Context) -> types.CallToolResult:
        return types.CallToolResult(content=[], structured_content={"stdout": "\ud800"})

    client = Client()
    await run(handler, client)
    answer = json.loads(client.bodies[0])
    assert answer["error"]["message"].startswith("internal error, id ")
    assert "internal error" in caplog.text


async def test_a_notification_without_params_has_none() -> None:
    async def handler(context: Context) -> types.CallToolResult:
        await context.session.send_notification(
            types.ToolListChangedNotification(), related_request_id=context.request_id
        )
        return RESULT

    client = Client()
    await run(handler, client)
    notification, answer = client.events
    assert notification == {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}
    assert "result" in answer


async def test_params_that_the_method_does_not_have_are_the_clients_fault() -> None:
    client = Client()
    await run(at_once, client, {**CALL, "params": {"name": ["secret"]}})
    answer = json.loads(client.bodies[0])
    assert answer["error"]["code"] == types.INVALID_PARAMS
    assert "secret" not in answer["error"]["message"]


async def test_a_handler_cannot_ask_the_client_anything() -> None:
    async def handler(context: Context) -> types.CallToolResult:
        for channel in (None, ServerMessageMetadata(related_request_id=context.request_id)):
            with pytest.raises(NoBackChannelError):
                await context.session.send_request(types.PingRequest(), types.EmptyResult, metadata=channel)
        return RESULT

    client = Client()
    await run(handler, client)
    assert "result" in json.loads(client.bodies[0])


# --- how it ends ---


async def test_a_client_that_hangs_up_has_its_request_cancelled() -> None:
    endless = Endless()
    client = Client()
    async with asyncio.timeout(10), running(endless, client) as exchanging:
        await asyncio.sleep(0.01)
        client.hung_up.set()
        await exchanging
        await endless.cancelled.wait()
    assert client.sent == []


async def test_an_exchange_that_is_cancelled_cancels_the_request() -> None:
    endless = Endless()
    client = Client()
    async with asyncio.timeout(10), running(endless, client) as exchanging:
        await asyncio.sleep(0.01)
        exchanging.cancel()
        await endless.cancelled.wait()
    assert client.sent == []


async def test_a_client_that_hangs_up_while_it_does_not_read_has_its_request_cancelled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    endless = Endless()

    class Full(Client):
        async def send(self, message: Message) -> None:
            await self.hung_up.wait()  # as uvicorn, which then drops what is sent

    monkeypatch.setattr(mcp_server.exchange, "PING_SECONDS", 0.01)
    client = Full()
    async with asyncio.timeout(10), running(endless, client) as exchanging:
        await asyncio.sleep(0.05)
        assert not endless.cancelled.is_set()
        client.hung_up.set()
        await exchanging
        await endless.cancelled.wait()


async def test_an_answer_that_is_there_when_the_client_hangs_up_is_sent() -> None:
    client = Client()

    async def handler(context: Context) -> types.CallToolResult:
        client.hung_up.set()
        return RESULT

    await run(handler, client)
    assert client.head == JSON_HEAD


async def test_nothing_of_it_is_left_when_it_is_over() -> None:
    before = asyncio.all_tasks()
    answered, left = Client(), Client()
    await run(at_once, answered)
    async with running(Endless(), left) as exchanging:
        await asyncio.sleep(0.01)
        left.hung_up.set()
        await exchanging
    await asyncio.sleep(0.01)
    assert asyncio.all_tasks() == before
    assert not answered.hung_up.is_set()
