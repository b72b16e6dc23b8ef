"""The agent's ear at the proxy: what it keeps of what it hears, and what a proxy that is none makes of it."""

import asyncio
from collections.abc import Callable

import pytest

from sandbox_agent import refused_requests
from sandbox_agent.refused_requests import MOST_NOTES, RefusedRequests

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n"


async def heard(
    answer: bytes, until: Callable[[RefusedRequests], bool], monkeypatch: pytest.MonkeyPatch
) -> list[str]:
    """What is kept of `answer`, given at each connection."""
    monkeypatch.setattr(refused_requests, "_FIRST_PAUSE_SECONDS", 0.01)
    asked: list[bytes] = []

    async def proxy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(answer)
        writer.close()

    async with await asyncio.start_server(proxy, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        refused = RefusedRequests(f"http://127.0.0.1:{port}")
        refused.start()
        async with asyncio.timeout(5):
            while len(asked) < 2 or not until(refused):
                await asyncio.sleep(0.01)
        await refused.stop()
    assert asked[0].startswith(b"GET /refused HTTP/1.1\r\n")
    notes = list(refused.take())
    assert refused.take() == ()
    return notes


@pytest.mark.parametrize(
    ("answer", "notes"),
    [
        (HEAD + b"refused: a\nrefused: b\nrefused: a\n", ["refused: a", "refused: b"]),
        (HEAD + b"\xff half a line", ["\ufffd half a line"]),
        (HEAD, []),
        (b"HTTP/1.1 405 only https\r\n\r\nrefused: a\n", []),
        (b"", []),
        (HEAD + b"x" * 100_000, []),
        (
            HEAD + b"".join(b"refused: %d\n" % n for n in range(99)),
            [f"refused: {n}" for n in range(MOST_NOTES)],
        ),
    ],
)
async def test_each_refusal_is_told_once_and_again_when_it_happens_again(
    answer: bytes, notes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await heard(answer, lambda refused: len(refused._notes) >= len(notes), monkeypatch) == notes


@pytest.mark.parametrize("url", ["", "nonsense", "http://"])
async def test_without_a_proxy_there_is_nothing_to_hear(url: str) -> None:
    refused = RefusedRequests(url)
    refused.start()
    assert refused.take() == ()
    await refused.stop()
