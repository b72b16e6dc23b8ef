import asyncio
import socket
import ssl
import urllib.parse
from contextlib import suppress
from pathlib import Path

import pytest

from cli_mcp.client.connection import ClientError, Connection, OnProgress, Target, endpoint_url
from cli_mcp.client.session import Session
from tests.mcp_server.certificates import self_signed
from tests.mcp_server.fake_backend import TOKEN, FakeBackend, eventually, outcome, running_server


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


@pytest.mark.parametrize(
    "given",
    [
        "",
        "ftp://host",
        "http://",
        "http:///mcp",
        "unix:///run/x",
        "http://h:x",
        "http://[::1",
        "http://a b",
        "http://\u00e9.example",
    ],
)
def test_what_is_no_address_is_refused_with_an_example(given: str) -> None:
    with pytest.raises(ClientError, match="http://127"):
        endpoint_url(given)


async def command(to: Target, text: str = "a", on_progress: OnProgress = lambda *_: None) -> bytes:
    """The stdout of a command, run in a thread of its own."""
    return await asyncio.to_thread(lambda: Session(Connection(to)).run(text, None, on_progress).stdout.data)


@pytest.mark.parametrize("token", [None, "wrong"])
async def test_being_turned_away_is_explained_in_the_servers_words(token: str | None) -> None:
    async with running_server() as server:
        with pytest.raises(ClientError, match=r"token.*--token-file"):
            await command(Target(server.url, "s1", token))


async def test_the_wrong_path_is_explained_in_the_servers_words() -> None:
    async with running_server() as server:
        with pytest.raises(ClientError, match="connect to /mcp"):
            await command(Target(f"{server.origin}/sse", "s1", TOKEN))


async def test_tls_where_there_is_none_is_explained() -> None:
    async with running_server() as server:
        with pytest.raises(ClientError, match="begins with http://"):
            await command(Target(server.url.replace("http:", "https:"), "s1", TOKEN))


async def test_no_server_is_explained_with_what_to_start() -> None:
    with pytest.raises(ClientError, match="cli-mcp local"):
        await command(Target("http://127.0.0.1:1/mcp", "s1", None))


OK, JSON = "HTTP/1.1 200 OK", "Content-Type: application/json"


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (f"{OK}\r\nContent-Type: text/html\r\nContent-Length: 4\r\n\r\n<h1>", "not as a server of cli-mcp"),
        (f"{OK}\r\n{JSON}\r\nContent-Length: 2\r\n\r\n{{}}", "not as a server of cli-mcp"),
        (f"{OK}\r\n{JSON}\r\nContent-Length: 4\r\n\r\n[[[[", "not as a server of cli-mcp"),
        ("HTTP/1.1 302 Found\r\nLocation: /login\r\nContent-Length: 0\r\n\r\n", r"HTTP 302"),
        ("HTTP/1.1 404 Not Found\r\nContent-Length: 5\r\n\r\nnope.", r"HTTP 404"),
        (f"{OK}\r\nContent-Type: text/event-stream\r\n\r\n", "hung up without a result"),
        (f"{OK}\r\n{JSON}\r\nContent-Length: 99\r\n\r\n{{", "No connection"),
        ("SSH-2.0-OpenSSH\r\n", "its answer is not HTTP"),
        ("", "hung up without an answer"),
    ],
)
async def test_another_kind_of_server_is_named_as_such(answer: str, words: str) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"}}}")
        writer.write(answer.encode())
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as other:
        port = other.sockets[0].getsockname()[1]
        with pytest.raises(ClientError, match=words):
            await command(Target(f"http://127.0.0.1:{port}/mcp", "s1", TOKEN))


async def test_progress_reaches_whoever_watches() -> None:
    seen: list[tuple[float, str]] = []
    async with running_server() as server:
        to = Target(server.url, "s1", TOKEN)
        await command(to, "sleep 0.5", lambda seconds, message: seen.append((seconds, message)))
    assert seen
    assert seen[0][0] > 0
    assert seen[0][1] == "12 bytes of output: half way"


async def test_a_server_that_goes_away_is_an_error_and_not_a_hang() -> None:
    async with running_server(drain_seconds=0) as server:
        running = asyncio.create_task(command(Target(server.url, "s1", TOKEN), "sleep 60"))
        await eventually(lambda: server.backend.running == 1)
        server.stop.set()
        server.stop_now.set()
        with pytest.raises(ClientError, match=r"shutting down|No connection|hung up"):
            await running


async def test_a_connection_that_the_server_closed_meanwhile_is_made_again() -> None:
    async with running_server() as server:
        connection = Connection(Target(server.url, "s1", TOKEN))
        session = Session(connection)

        def twice() -> None:
            session.run("a", None, lambda *_: None)
            assert connection._http is not None
            connection._http.sock.shutdown(socket.SHUT_RDWR)
            session.run("b", None, lambda *_: None)

        await asyncio.to_thread(twice)
        assert [text for _, text, _ in server.backend.calls] == ["a", "b"]


async def test_an_answer_longer_than_a_buffer_arrives_whole() -> None:
    output = b"x" * 49_000
    async with running_server(FakeBackend(outcome(output))) as server:
        assert await command(Target(server.url, "s1", TOKEN), "sleep 0.3") == output


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
        assert await command(Target(url, "s1", TOKEN, authority)) == b"hi\n"
        with pytest.raises(ClientError, match=r"certificate verify failed.*--ca-file FILE"):
            await command(Target(url, "s1", TOKEN))
        with pytest.raises(ClientError, match="begins with https://"):
            await command(Target(url.replace("https:", "http:"), "s1", TOKEN))
        tls.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError, ssl.SSLError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()


async def test_an_authority_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ClientError, match="missing"):
        Connection(Target("https://localhost:1/mcp", "s1", None, tmp_path / "missing.crt"))
    (tmp_path / "empty.crt").write_text("")
    with pytest.raises(ClientError, match=r"empty\.crt: no certificate"):
        Connection(Target("https://localhost:1/mcp", "s1", None, tmp_path / "empty.crt"))


def test_an_authority_without_tls_is_a_mistake() -> None:
    with pytest.raises(ClientError, match="https://"):
        Connection(Target("http://localhost:1/mcp", "s1", None, Path("ca.crt")))
