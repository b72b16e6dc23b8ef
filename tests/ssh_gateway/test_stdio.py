"""MCP over lines: both protocol eras, what is no message, and how much a client may have running."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from mcp.server.lowlevel import Server

from mcp_server.app import build_app, tool_calls_of
from mcp_server.authentication import StaticToken
from mcp_server.catalogue import ALL_GROUPS, Offering, offer
from mcp_server.settings import ServerSettings
from mcp_server.tool_server import tool_server
from ssh_gateway.routes import session_key
from ssh_gateway.stdio import MAX_REQUESTS, serve_lines
from tests.mcp_server.fake_backend import FakeBackend, eventually

KEY = session_key("alice")
ENVELOPE = {
    "_meta": {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
    }
}
INITIALIZE = {
    "id": 0,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    },
}


@dataclass
class FakeLines:
    """A client in this process; it reads nothing while `reads` is cleared."""

    backend: FakeBackend
    to_server: asyncio.Queue[bytes | None] = field(default_factory=asyncio.Queue)
    from_server: asyncio.Queue[bytes] = field(default_factory=asyncio.Queue)
    reads: asyncio.Event = field(default_factory=asyncio.Event)
    charged_seconds: float = 0

    async def read_line(self) -> bytes | None:
        return await self.to_server.get()

    async def write_line(self, line: bytes) -> None:
        await self.reads.wait()
        self.from_server.put_nowait(line)

    def charge(self, seconds: float) -> None:
        self.charged_seconds += seconds

    def send(self, message: dict[str, Any]) -> None:
        self.to_server.put_nowait(json.dumps({"jsonrpc": "2.0", **message}).encode())

    def call(self, request_id: int | str, command: str, **params: Any) -> None:
        arguments = {"command": command}
        self.send(
            {
                "id": request_id,
                "method": "tools/call",
                "params": {"name": "bash", "arguments": arguments, **params},
            }
        )

    def end(self) -> None:
        self.to_server.put_nowait(None)

    async def answer(self) -> dict[str, Any]:
        async with asyncio.timeout(10):
            message: dict[str, Any] = json.loads(await self.from_server.get())
        return message


def server_of(backend: FakeBackend) -> Server[Any]:
    app = build_app(backend, ServerSettings(), StaticToken("unused"))
    return tool_server(
        tool_calls_of(app), offer(lambda: Offering(ALL_GROUPS)), lambda context: KEY, "It is yours."
    )


@asynccontextmanager
async def served() -> AsyncIterator[FakeLines]:
    lines = FakeLines(FakeBackend())
    lines.reads.set()
    serving = asyncio.create_task(serve_lines(server_of(lines.backend), lines))
    try:
        yield lines
        lines.end()
        async with asyncio.timeout(10):
            await serving
    finally:
        serving.cancel()


async def test_a_client_that_shakes_hands_lists_and_calls() -> None:
    async with served() as lines:
        lines.send(INITIALIZE)
        assert (await lines.answer())["result"]["protocolVersion"] == "2025-06-18"
        lines.send({"method": "notifications/initialized"})
        lines.send({"id": 1, "method": "tools/list"})
        names = [tool["name"] for tool in (await lines.answer())["result"]["tools"]]
        assert {"bash", "read_file", "process_start"} <= set(names)
        lines.call(2, "echo hi")
        assert (await lines.answer())["result"]["structuredContent"]["stdout"] == "hi\n"
        assert [call[0] for call in lines.backend.calls] == [KEY]


async def test_a_client_of_2026_needs_no_handshake() -> None:
    async with served() as lines:
        lines.send({"id": "d", "method": "server/discover", "params": ENVELOPE})
        assert "2026-07-28" in (await lines.answer())["result"]["supportedVersions"]
        lines.call("c", "echo hi", **ENVELOPE)
        answer = await lines.answer()
        assert (answer["id"], answer["result"]["structuredContent"]["stdout"]) == ("c", "hi\n")


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (b"ls -la", -32700),
        (b"\xff\xfe", -32700),
        (b"[" * 60_000, -32700),
        (b"[" * 100_000, -32600),
        (b'{"jsonrpc":"2.0","id":1}', -32600),
        (b'{"jsonrpc":"1.0","id":1,"method":"ping"}', -32600),
        (b'[{"jsonrpc":"2.0","id":1,"method":"ping"}]', -32600),
        (b"null", -32600),
    ],
)
async def test_what_is_no_message_is_answered_and_does_no_harm(line: bytes, code: int) -> None:
    async with served() as lines:
        lines.to_server.put_nowait(line)
        assert (await lines.answer())["error"]["code"] == code
        lines.to_server.put_nowait(b"  \r")
        lines.send(INITIALIZE)
        assert (await lines.answer())["id"] == 0


async def test_all_answers_are_given_before_the_end() -> None:
    async with served() as lines:
        lines.send(INITIALIZE)
        await lines.answer()
        for request_id in range(1, 4):
            lines.call(request_id, "sleep 0.2")
        lines.end()
        assert {(await lines.answer())["id"] for _ in range(3)} == {1, 2, 3}


async def test_a_cancelled_call_is_interrupted_and_nobody_waits_for_its_answer() -> None:
    async with served() as lines:
        lines.send(INITIALIZE)
        await lines.answer()
        lines.call(1, "sleep 60")
        await eventually(lambda: lines.backend.running == 1)
        lines.send({"method": "notifications/cancelled", "params": {"requestId": 1}})
        await eventually(lambda: lines.backend.interrupted == ["sleep 60"])
    assert lines.from_server.empty()


async def test_an_id_that_is_in_use_is_refused() -> None:
    async with served() as lines:
        lines.send(INITIALIZE)
        await lines.answer()
        lines.call(1, "sleep 0.2")
        lines.call(1, "sleep 0.2")
        assert (await lines.answer())["error"]["code"] == -32600
        assert (await lines.answer())["id"] == 1
        assert len(lines.backend.calls) == 1


async def test_no_more_than_so_many_calls_run_and_the_next_one_waits_for_a_place() -> None:
    async with served() as lines:
        lines.send(INITIALIZE)
        await lines.answer()
        for request_id in range(1, MAX_REQUESTS + 2):
            lines.call(request_id, "sleep 0.5")
        await eventually(lambda: lines.backend.running == MAX_REQUESTS)
        assert len(lines.backend.calls) == MAX_REQUESTS
        answered = {(await lines.answer())["id"] for _ in range(MAX_REQUESTS + 1)}
        assert answered == set(range(1, MAX_REQUESTS + 2))


async def test_a_client_that_does_not_read_cannot_have_more_run() -> None:
    async with served() as lines:
        lines.send(INITIALIZE)
        await lines.answer()
        lines.reads.clear()
        for request_id in range(1, 200):
            lines.call(request_id, "echo")
        await asyncio.sleep(0.3)
        assert len(lines.backend.calls) <= MAX_REQUESTS
        lines.reads.set()
        assert {(await lines.answer())["id"] for _ in range(1, 200)} == set(range(1, 200))


async def test_what_reading_raises_interrupts_what_runs() -> None:
    lines = FakeLines(FakeBackend())
    lines.reads.set()
    failing = asyncio.Event()

    async def read_line() -> bytes | None:
        if lines.to_server.empty():
            await failing.wait()
            raise ConnectionResetError
        return await FakeLines.read_line(lines)

    lines.read_line = read_line  # type: ignore[method-assign]
    lines.send(INITIALIZE)
    lines.call(1, "sleep 60")
    serving = asyncio.create_task(serve_lines(server_of(lines.backend), lines))
    await eventually(lambda: lines.backend.running == 1)
    failing.set()
    with pytest.raises(ConnectionResetError):
        await serving
    await eventually(lambda: lines.backend.interrupted == ["sleep 60"])
