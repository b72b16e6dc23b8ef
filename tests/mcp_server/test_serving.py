import asyncio
import socket
import time

import pytest

import mcp_server.serving
from mcp_server.app import build_app
from mcp_server.authentication import NoAuthentication
from mcp_server.serving import serve
from mcp_server.settings import ServerSettings
from tests.mcp_server.fake_backend import FakeBackend, RunningServer, eventually, running_server
from tests.mcp_server.test_endpoint import Answer, call, post

INTERRUPTED = "The server is shutting down; the command was interrupted."


async def start(server: RunningServer, command: str) -> "asyncio.Task[Answer]":
    """A call that the backend has begun to run."""
    before = server.backend.running

    async def run() -> Answer:
        async with server.http() as http:
            return await post(http, call(command), "2025-11-25")

    task = asyncio.create_task(run())
    await eventually(lambda: server.backend.running > before)
    return task


def text_of(answer: Answer) -> str:
    return str(answer.body["result"]["content"][0]["text"])


async def test_after_stop_a_running_command_ends_and_new_ones_are_refused() -> None:
    async with running_server() as server, server.http() as http:
        running = await start(server, "sleep 1")
        server.stop.set()
        await asyncio.sleep(0.1)
        refused = await post(http, call("echo"), "2025-11-25")
        assert refused.body["result"]["isError"]
        assert "shutting down" in text_of(refused)
        health = await http.get("/health")
        assert (health.status_code, health.json()["detail"]) == (503, "shutting down")
        assert text_of(await running) == "hi\n"
        await server.stopped
        assert server.backend.interrupted == []


async def test_a_command_that_outlasts_the_drain_is_interrupted_and_says_so() -> None:
    async with running_server(drain_seconds=0.3) as server:
        running = await start(server, "sleep 60")
        server.stop.set()
        assert text_of(await running) == INTERRUPTED
        await server.stopped
        assert server.backend.interrupted == ["sleep 60"]


async def test_a_second_stop_does_not_wait_for_the_drain() -> None:
    async with running_server(drain_seconds=60) as server:
        running = await start(server, "sleep 60")
        server.stop.set()
        server.stop_now.set()
        assert text_of(await running) == INTERRUPTED
        async with asyncio.timeout(10):
            await server.stopped


async def test_an_idle_server_stops_at_once_also_with_connections_open() -> None:
    async with running_server(drain_seconds=60) as server, server.http() as http:
        await http.get("/live")  # and the connection stays
        server.stop.set()
        async with asyncio.timeout(10):
            await server.stopped


async def test_a_stopped_server_is_gone() -> None:
    async with running_server() as server:
        server.stop.set()
        await server.stopped
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", server.port)


async def test_an_address_that_is_taken_is_an_error_of_the_caller() -> None:
    app = build_app(FakeBackend(), ServerSettings(), NoAuthentication())
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match=r"[Aa]ddress already in use"):
            await serve(app, "127.0.0.1", port, drain_seconds=0, stop=asyncio.Event())


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="no IPv6 on this machine")
async def test_ipv6_loopback_works_like_ipv4() -> None:
    app = build_app(FakeBackend(), ServerSettings(), NoAuthentication())
    stop = asyncio.Event()
    bound: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    serving = asyncio.create_task(serve(app, "::1", 0, drain_seconds=0, stop=stop, on_bound=bound.set_result))
    reader, writer = await asyncio.open_connection("::1", await bound)
    writer.write(b"GET /health HTTP/1.1\r\nHost: [::1]:1\r\nConnection: close\r\n\r\n")
    assert (await reader.read()).startswith(b"HTTP/1.1 200 ")
    writer.close()
    stop.set()
    await serving


@pytest.mark.parametrize(
    "beginning",
    [b"", b"GET /li", b"GET /live HTTP/1.1\r\nHost: localhost\r\n"],
    ids=["nothing", "half a line", "half a head"],
)
async def test_a_request_whose_head_does_not_come_is_hung_up_on(
    beginning: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mcp_server.serving, "SLOW_CLIENT_SECONDS", 0.3)
    async with running_server() as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(beginning)
        async with asyncio.timeout(10):
            assert await reader.read() == b""
        writer.close()


async def test_the_second_request_of_a_connection_has_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcp_server.serving, "SLOW_CLIENT_SECONDS", 0.5)
    async with running_server() as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        whole = b"GET /live HTTP/1.1\r\nHost: localhost\r\n\r\n"
        for _ in range(2):
            writer.write(whole)
            assert (await reader.readuntil(b"}")).startswith(b"HTTP/1.1 200 ")
        writer.write(whole[:10])
        async with asyncio.timeout(10):
            assert await reader.read() == b""
        writer.close()


async def test_a_command_may_run_longer_than_a_head_may_take(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcp_server.serving, "SLOW_CLIENT_SECONDS", 0.2)
    async with running_server() as server:
        assert text_of(await (await start(server, "sleep 0.7"))) == "hi\n"


async def test_a_body_that_nobody_wants_cannot_be_sent_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcp_server.serving, "SLOW_CLIENT_SECONDS", 0.5)
    async with running_server() as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n{")
        assert (await reader.readuntil(b"}")).startswith(b"HTTP/1.1 401 ")
        ended = asyncio.create_task(reader.read())
        async with asyncio.timeout(10):
            while not ended.done():
                writer.write(b"x")
                await asyncio.sleep(0.05)
        writer.close()


async def test_a_head_without_end_is_refused() -> None:
    async with running_server() as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"GET /live HTTP/1.1\r\nHost: localhost\r\nX: " + b"y" * 200_000)
        answer = b""
        try:
            answer = await reader.read()
        except ConnectionResetError:
            pass  # hung up on before all of it was read
        assert answer == b"" or answer.startswith(b"HTTP/1.1 400 ")
        writer.close()


async def test_a_small_answer_does_not_wait_for_the_clients_acknowledgement() -> None:
    """Nagle's algorithm and delayed acknowledgements would make every answer 40 ms late."""
    async with running_server() as server, server.http() as http:
        seconds = []
        for _ in range(30):
            started = time.perf_counter()
            await post(http, call("echo"), "2026-07-28")
            seconds.append(time.perf_counter() - started)
        assert sorted(seconds)[len(seconds) // 4] < 0.035
