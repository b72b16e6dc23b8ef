"""The gateway as a whole: sessions, limits, clients that do not read or do not end, and shutting down."""

import asyncio
import time
from pathlib import Path
from typing import Any

import asyncssh
import pytest

from mcp_server.backend import SessionKey
from ssh_gateway.admission import Limits
from ssh_gateway.audit import Event
from ssh_gateway.gateway import GatewaySettings
from ssh_gateway.pace import Pace
from ssh_gateway.routes import session_key
from ssh_gateway.stdio import MAX_REQUESTS
from tests.mcp_server.fake_backend import FakeBackend, eventually, outcome
from tests.ssh_gateway.harness import LineClient, running_gateway


@pytest.mark.parametrize(
    "asked",
    [{}, {"command": "rm -rf /"}, {"command": "scp -t /tmp"}, {"subsystem": "mcp"}],
    ids=["shell", "command", "scp of old", "subsystem"],
)
async def test_whatever_is_asked_for_the_mcp_server_answers(tmp_path: Path, asked: dict[str, str]) -> None:
    async with running_gateway(tmp_path) as gateway, gateway.client(**asked) as client:
        assert (await client.initialize())["serverInfo"]["name"] == "cli-mcp"
        assert (await client.run("echo"))["structuredContent"]["stdout"] == "hi\n"
        client.process.stdin.write_eof()
        assert await client.exit_status() == 0
        said = await client.process.stderr.read()
        assert (b"MCP server" in said) == ("command" in asked)
        assert [call[1] for call in gateway.backend.calls] == ["echo"]


async def test_the_user_name_is_the_session(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as gateway:
        for username in ("alice", "agent-1", "alice"):
            async with gateway.client(username) as client:
                await client.initialize()
                await client.run("echo")
        sessions = [call[0] for call in gateway.backend.calls]
        assert sessions == [session_key(name) for name in ("alice", "agent-1", "alice")]
        assert sessions[0] == SessionKey("ssh:alice", sessions[0].id)


async def test_the_session_is_held_while_its_client_is_connected_and_no_longer(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as gateway:
        async with gateway.client() as client:
            await client.initialize()
            assert gateway.backend.held == [session_key("alice")]
        await eventually(lambda: gateway.backend.held == [])


async def test_a_client_that_goes_away_has_its_command_interrupted(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as gateway:
        async with gateway.client() as client:
            await client.initialize()
            client.call("sleep 60")
            await eventually(lambda: gateway.backend.running == 1)
            client.connection.abort()
        await eventually(lambda: gateway.backend.interrupted == ["sleep 60"])
        await eventually(lambda: gateway.gateway.connection_count == 0)


async def test_a_client_that_has_nothing_more_to_say_gets_its_answers(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as gateway, gateway.client() as client:
        await client.initialize()
        client.call("sleep 0.3")
        client.process.stdin.write_eof()
        assert (await client.read())["result"]["isError"] is False
        assert await client.exit_status() == 0


async def test_a_line_without_an_end_is_cut(tmp_path: Path) -> None:
    settings = GatewaySettings(max_line_bytes=300_000)
    async with running_gateway(tmp_path, settings=settings) as gateway, gateway.client() as client:
        await client.initialize()
        client.process.stdin.write(b"x" * 2_000_000)
        assert await client.exit_status() == 1
        assert b"at most" in await client.process.stderr.read()
        assert "at most 0.286" in (gateway.reasons(Event.REFUSED_REQUEST)[0] or "")


async def test_a_message_may_be_as_long_as_over_http(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as gateway, gateway.client() as client:
        await client.initialize()
        await client.run("#" * (4 * 1024 * 1024 - 1000))
        assert len(gateway.backend.calls[0][1]) > 4_000_000


async def test_only_some_large_messages_are_received_at_once_and_small_ones_are_not_held_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ssh_gateway.channel._LARGE_MESSAGE_SECONDS", 1.0)
    async with (
        running_gateway(tmp_path, settings=GatewaySettings(large_messages=1)) as gateway,
        gateway.client() as slow,
        gateway.client("agent-1") as large,
        gateway.client("agent-2") as small,
    ):
        for client in (slow, large, small):
            await client.initialize()
        slow.process.stdin.write(b"x" * 600_000)
        await asyncio.sleep(0.2)
        large.call("#" * 600_000)
        assert (await small.run("echo"))["isError"] is False
        assert len(gateway.backend.calls) == 1
        assert await slow.exit_status() == 1
        assert (await large.read())["result"]["isError"] is False
        assert "within 1 s" in (gateway.reasons(Event.REFUSED_REQUEST)[0] or "")


@pytest.mark.parametrize("window", [2 << 20, 1 << 30], ids=["window of ssh", "endless window"])
async def test_a_client_that_does_not_read_stops_being_listened_to(tmp_path: Path, window: int) -> None:
    backend = FakeBackend(outcome=outcome(b"x" * 50_000))
    async with (
        running_gateway(tmp_path, backend=backend) as gateway,
        gateway.client(window=window) as client,
    ):
        await client.initialize()
        transport: Any = client.connection._transport
        transport.pause_reading()
        for _ in range(400):
            client.call("echo")
        await asyncio.sleep(1)
        so_far = len(backend.calls)
        assert so_far < 200  # some megabytes in the sockets' buffers, and no more
        await asyncio.sleep(0.5)
        assert len(backend.calls) <= so_far + MAX_REQUESTS
        transport.resume_reading()
        assert {(await client.read())["id"] for _ in range(400)} == set(range(2, 402))


async def test_a_key_exchange_that_a_client_never_ends_keeps_no_answers_in_memory(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as gateway, gateway.client(window=1 << 30) as client:
        await client.initialize()
        connection: Any = client.connection
        connection._send_kexinit()
        connection._kex_complete = True  # so that it sends on, as no honest client does
        connection._transport.pause_reading()
        for _ in range(100):
            client.call("echo")
        await eventually(lambda: len(gateway.backend.calls) == MAX_REQUESTS)
        await asyncio.sleep(0.3)
        assert len(gateway.backend.calls) == MAX_REQUESTS
        connection.abort()
        await eventually(lambda: gateway.gateway.connection_count == 0)


async def test_keys_are_exchanged_anew_without_losing_a_message(tmp_path: Path) -> None:
    backend = FakeBackend(outcome=outcome(b"x" * 5_000))
    async with (
        running_gateway(tmp_path, backend=backend) as gateway,
        await gateway.connect(rekey_bytes=20_000) as connection,
    ):
        process = await connection.create_process(encoding=None)

        client = LineClient(connection, process)
        await client.initialize()
        for _ in range(50):
            assert len((await client.run("echo"))["structuredContent"]["stdout"]) == 5_000


async def test_a_session_that_says_nothing_is_ended(tmp_path: Path) -> None:
    settings = GatewaySettings(first_message_seconds=0.3)
    async with (
        running_gateway(tmp_path, settings=settings) as gateway,
        gateway.client() as quiet,
        gateway.client("agent-1") as busy,
    ):
        await busy.initialize()
        assert await quiet.exit_status() == 0
        assert b"no MCP message" in await quiet.process.stderr.read()
        assert (await busy.run("echo"))["isError"] is False


async def test_connections_beyond_the_limits_are_turned_away_before_they_cost_anything(
    tmp_path: Path,
) -> None:
    limits = Limits(unauthenticated_per_address=2)
    async with running_gateway(tmp_path, limits=limits) as gateway:
        waiting = [await asyncio.open_connection("127.0.0.1", gateway.port) for _ in range(2)]
        for reader, _ in waiting:
            await reader.readline()
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        assert b"too many connections of your address" in await reader.read()
        writer.close()
        assert gateway.reasons(Event.REFUSED_CONNECTION) == [
            "too many connections of your address are logging in; try again in a moment"
        ]
        for _, other in waiting:
            other.close()
        await eventually(lambda: gateway.gateway.connection_count == 0)
        assert await gateway.can_log_in()


async def test_a_user_has_only_so_many_connections(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, limits=Limits(connections_per_user=2)) as gateway:
        open_ones = [await gateway.connect("alice") for _ in range(2)]
        with pytest.raises(asyncssh.DisconnectError, match="close one"):
            await gateway.connect("alice")
        assert await gateway.can_log_in("agent-1")
        open_ones[0].abort()
        await eventually(lambda: gateway.gateway.connection_count == 1)
        assert await gateway.can_log_in("alice")
        open_ones[1].abort()


async def test_running_commands_end_before_the_gateway_does_and_no_new_ones_begin(tmp_path: Path) -> None:
    async with (
        running_gateway(tmp_path) as gateway,
        gateway.client() as client,
        gateway.client("agent-1") as idle,
    ):
        await client.initialize()
        await idle.initialize()
        client.call("sleep 0.7")
        await eventually(lambda: gateway.backend.running == 1)
        gateway.stop.set()
        assert await idle.exit_status() == 0
        with pytest.raises(OSError):
            await gateway.connect()
        assert (await client.read())["result"]["isError"] is False
        assert await client.exit_status() == 0


@pytest.mark.parametrize("how", ["deadline", "second signal"])
async def test_a_command_that_outlives_the_drain_is_interrupted_and_says_so(tmp_path: Path, how: str) -> None:
    drain_seconds = 0.3 if how == "deadline" else 60.0
    async with (
        running_gateway(tmp_path, drain_seconds=drain_seconds) as gateway,
        gateway.client() as client,
    ):
        await client.initialize()
        client.call("sleep 60")
        await eventually(lambda: gateway.backend.running == 1)
        gateway.stop.set()
        if how == "second signal":
            gateway.stop_now.set()
        result = (await client.read())["result"]
        assert result["isError"]
        assert "shutting down" in result["content"][0]["text"]
        assert await client.exit_status() == 0


async def test_failed_logins_leave_the_sessions_usable(tmp_path: Path) -> None:
    limits = Limits(connections_per_minute_per_address=10_000)
    async with running_gateway(tmp_path, limits=limits) as gateway, gateway.client() as client:
        await client.initialize()
        attack = asyncio.gather(*(gateway.can_log_in("bob") for _ in range(40)), return_exceptions=True)
        while not attack.done():
            async with asyncio.timeout(10):
                assert (await client.run("echo"))["isError"] is False
        await attack
        assert gateway.reasons(Event.REFUSED_LOGIN)


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (b"\n" * 65_537, "there were 64 KiB of blank lines instead of a message"),
        (b" \t\r\n" * 20_000, "there were 64 KiB of blank lines instead of a message"),
        (b"x\n" * 65, "64 lines in a row were no message, or had an id that is taken"),
        (b'{"jsonrpc":"1"}\n' * 65, "64 lines in a row were no message, or had an id that is taken"),
    ],
)
async def test_who_says_nothing_at_length_is_hung_up_on(tmp_path: Path, said: bytes, reason: str) -> None:
    async with running_gateway(tmp_path) as gateway, gateway.client() as client:
        client.process.stdin.write(said)
        assert await client.exit_status() == 1
        assert gateway.reasons(Event.REFUSED_REQUEST) == [reason]


async def test_a_few_blank_and_wrong_lines_between_messages_do_no_harm(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as gateway, gateway.client() as client:
        await client.initialize()
        for _ in range(70):
            client.process.stdin.write(b"\n" * 1000 + b"x\n" + b"\n" * 1000)
            assert (await client.read())["error"]["code"] == -32700
            client.request("ping")
            assert (await client.read())["result"] == {}


async def test_a_message_of_many_values_is_refused_before_it_is_parsed(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as gateway, gateway.client() as client:
        await client.initialize()
        client.process.stdin.write(b"[" + b"0," * 100_000 + b"0]\n")
        assert "outside of strings" in (await client.read())["error"]["message"]


async def test_whoever_sends_much_waits_and_nobody_else_does(tmp_path: Path) -> None:
    settings = GatewaySettings(pace=Pace(burst_seconds=0.01, share=0.01))
    async with (
        running_gateway(tmp_path, settings=settings) as gateway,
        gateway.client("alice") as flooder,
        gateway.client("agent-1") as other,
    ):
        await flooder.initialize()
        await other.initialize()
        begun = time.monotonic()
        for _ in range(30):
            flooder.request("ping")
        for _ in range(5):
            await other.run("true")
        took = time.monotonic() - begun
        for _ in range(30):
            await flooder.read()
        assert time.monotonic() - begun > 2 * took
