import asyncio
import ssl
import urllib.parse
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from mcp.types import CallToolResult, TextContent

from cli_mcp.client.connection import ClientError, Result, Target, connect, endpoint_url, parse_result
from tests.mcp_server.certificates import self_signed
from tests.mcp_server.fake_backend import TOKEN, FakeBackend, outcome, running_server


def unheard(seconds: float, message: str) -> None:
    """Nobody watches."""


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("http://127.0.0.1:8080", "http://127.0.0.1:8080/mcp"),
        ("http://127.0.0.1:8080/", "http://127.0.0.1:8080/mcp"),
        ("http://127.0.0.1:8080/mcp", "http://127.0.0.1:8080/mcp"),
        ("127.0.0.1:8080", "http://127.0.0.1:8080/mcp"),
        ("localhost", "http://localhost/mcp"),
        ("https://mcp.example/team-a/mcp", "https://mcp.example/team-a/mcp"),
        ("http://[::1]:8080", "http://[::1]:8080/mcp"),
    ],
)
def test_a_servers_address_may_be_given_in_short(given: str, url: str) -> None:
    assert endpoint_url(given) == url


@pytest.mark.parametrize("given", ["", "ftp://host", "http://", "http:///mcp", "unix:///run/x"])
def test_what_is_no_address_is_refused_with_an_example(given: str) -> None:
    with pytest.raises(ClientError, match="http://127"):
        endpoint_url(given)


CONTENT = {
    "exit_code": 1,
    "stdout": "é\n",
    "stderr": "",
    "cwd": "/tmp",
    "encoding": "utf-8",
    "truncated": False,
    "output_file": None,
}


@pytest.mark.parametrize(
    ("changes", "result"),
    [
        ({}, Result(1, "é\n".encode(), b"", "/tmp", False, None)),
        (
            {"encoding": "base64", "stdout": "//4AAQ==", "truncated": True, "output_file": "/f"},
            Result(1, b"\xff\xfe\x00\x01", b"", "/tmp", True, "/f"),
        ),
    ],
)
def test_a_result_has_the_streams_as_bytes(changes: dict[str, Any], result: Result) -> None:
    assert parse_result(CallToolResult(content=[], structured_content=CONTENT | changes)) == result


def test_a_tool_error_is_raised_in_the_servers_words() -> None:
    with pytest.raises(ClientError, match="No session"):
        parse_result(CallToolResult(content=[TextContent(text="No session.")], is_error=True))


async def test_calls_of_one_connection_share_the_session() -> None:
    async with running_server(FakeBackend(outcome(b"\xff"))) as server:
        async with connect(Target(server.url, "my-session", TOKEN)) as session:
            assert (await session.run("a", None, unheard)).stdout == b"\xff"
            assert (await session.run("b", 5, unheard)).exit_code == 0
        assert [(key.id, command, seconds) for key, command, seconds in server.backend.calls] == [
            ("my-session", "a", 60),
            ("my-session", "b", 5),
        ]


async def test_a_refused_call_leaves_the_connection_usable() -> None:
    async with running_server() as server, connect(Target(server.url, "s1", TOKEN)) as session:
        with pytest.raises(ClientError, match="`timeout`"):
            await session.run("a", -1, unheard)
        assert (await session.run("a", None, unheard)).stdout == b"hi\n"


@pytest.mark.parametrize("token", [None, "wrong"])
async def test_being_turned_away_is_explained_in_the_servers_words(token: str | None) -> None:
    async with running_server() as server:
        with pytest.raises(ClientError, match="token"):
            async with connect(Target(server.url, "s1", token)) as session:
                await session.run("a", None, unheard)


async def test_the_wrong_path_is_explained_in_the_servers_words() -> None:
    async with running_server() as server:
        with pytest.raises(ClientError, match="connect to /mcp"):
            async with connect(Target(f"{server.origin}/sse", "s1", TOKEN)):
                pass


async def test_no_server_is_explained_with_what_to_start() -> None:
    with pytest.raises(ClientError, match="cli-mcp local"):
        async with connect(Target("http://127.0.0.1:1/mcp", "s1", None)):
            pass


async def test_progress_reaches_whoever_watches() -> None:
    seen: list[tuple[float, str]] = []
    async with running_server() as server, connect(Target(server.url, "s1", TOKEN)) as session:
        await session.run("sleep 0.5", None, lambda seconds, message: seen.append((seconds, message)))
    assert seen
    assert seen[0][0] > 0
    assert seen[0][1] == "12 bytes of output: half way"


async def test_a_server_that_goes_away_is_an_error_and_not_a_hang() -> None:
    async with running_server(drain_seconds=0) as server:
        with pytest.raises(ClientError, match=r"shutting down|No connection|answers"):
            async with connect(Target(server.url, "s1", TOKEN)) as session:
                server.stop.set()
                await server.stopped
                await session.run("a", None, unheard)


async def test_a_private_authority_is_trusted_when_its_file_is_given(tmp_path: Path) -> None:
    certificate, key = self_signed()
    authority, both = tmp_path / "ca.crt", tmp_path / "server.pem"
    authority.write_bytes(certificate)
    both.write_bytes(certificate + key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(both)
    async with running_server() as server:
        port = urllib.parse.urlsplit(server.url).port

        async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            there, back = await asyncio.open_connection("127.0.0.1", port)
            await asyncio.gather(_copy(reader, back), _copy(there, writer))

        tls = await asyncio.start_server(forward, "127.0.0.1", 0, ssl=context)
        url = f"https://localhost:{tls.sockets[0].getsockname()[1]}/mcp"
        async with connect(Target(url, "s1", TOKEN, authority)) as session:
            assert (await session.run("a", None, unheard)).exit_code == 0
        with pytest.raises(ClientError, match=r"certificate verify failed.*--ca-file FILE"):
            async with connect(Target(url, "s1", TOKEN)):
                pass
        tls.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError, ssl.SSLError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()


async def test_an_authority_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ClientError, match="missing"):
        async with connect(Target("https://localhost:1/mcp", "s1", None, tmp_path / "missing.crt")):
            pass
