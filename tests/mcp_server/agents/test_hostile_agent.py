"""An agent that a model has taken over: it harms neither the server nor anybody else's session."""

import asyncio
import gzip
import json
import resource
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from cli_mcp.agent_api import EVENT_LIMIT_BYTES, Accepted, AgentIdentity, Failure, FailureKind, RefusalKind
from cli_mcp.agent_json import encode_run_event
from cli_mcp.execution import Progress
from mcp_server.agents import client as client_module
from mcp_server.agents.agent import AgentLost, AgentMisbehaved
from mcp_server.agents.client import AgentClient
from tests.mcp_server.agents.fake_agent import (
    ACCEPTED,
    AGENT,
    BOOT,
    DONE,
    END,
    HEAD,
    OTHER_BOOT,
    POD_UID,
    FakeAgent,
    Request,
    chunk,
    client_of,
    events,
    refusal,
    run,
    running,
    saying,
    with_length,
)

SECRET = b"text-of-the-agent"
OUTCOME = encode_run_event(DONE)
PROGRESS = encode_run_event(Progress(1.0, 1, "x"))
ELSEWHERE = "http://169.254.169.254/latest"


def with_headers(extra: bytes) -> bytes:
    return events(DONE, head=HEAD[:-2] + extra + b"\r\n\r\n")


def with_outcome(**changes: object) -> bytes:
    finished = json.loads(OUTCOME)["finished"]
    finished["outcome"] |= changes
    return events(json.dumps({"finished": finished}).encode() + b"\n")


LIES = {
    "nothing of HTTP": SECRET + b"\r\n\r\n",
    "HTTP/0.9": b"hello\n\n" * 10,
    "a redirect": with_length(302, b"{}", extra=f"Location: {ELSEWHERE}\r\n"),
    "a redirect that keeps the method": with_length(307, b"{}", extra=f"Location: {ELSEWHERE}\r\n"),
    "a status of no meaning": with_length(299, b"{}"),
    "a status that does not fit its reason": refusal(RefusalKind.WRONG_BOOT).replace(b" 409 ", b" 503 "),
    "a good request called bad": refusal(RefusalKind.MALFORMED),
    "a demand for other credentials": with_length(401, b"{}", extra="WWW-Authenticate: Basic\r\n"),
    "informational answers": b"HTTP/1.1 100 Continue\r\n\r\n" * 100_000 + events(DONE),
    "another protocol": b"HTTP/1.1 101 Switching\r\nUpgrade: h2c\r\nConnection: upgrade\r\n\r\n",
    "another type": events(DONE).replace(b"application/x-ndjson", b"text/html"),
    "two types": with_headers(b"Content-Type: application/json"),
    "a compressed bomb": HEAD[:-2]
    + b"Content-Encoding: gzip\r\n\r\n"
    + chunk(gzip.compress(bytes(50_000_000)))
    + END,
    "a head without end": HEAD[:-2] + b"X: " + b"y" * 5_000_000,
    "headers without end": HEAD[:-2] + b"X: y\r\n" * 500_000,
    "length and chunks": with_headers(b"Content-Length: 5") + SECRET,
    "two lengths": with_length(200, b"{}", extra="Content-Length: 7\r\n"),
    "a negative length": HEAD.replace(b"Transfer-Encoding: chunked", b"Content-Length: -1"),
    "a huge length": HEAD.replace(b"Transfer-Encoding: chunked", b"Content-Length: 99999999999999")
    + b"x" * 2_000_000,
    "a chunk that is none": HEAD + b"zz\r\n" + SECRET,
    "chunk extensions without end": HEAD + b"1;" + b"x" * 5_000_000,
    "single bytes as chunks": HEAD + b"1\r\n{\r\n" * 500_000,
    "trailers": events(DONE, end=b"0\r\nX: y\r\n\r\n"),
    "no acceptance": HEAD + chunk(OUTCOME) + END,
    "acceptance twice": events(ACCEPTED, DONE),
    "acceptance only": events(),
    "progress only": events(PROGRESS),
    "another pod": events(DONE).replace(POD_UID.encode(), b"another-pod"),
    "another boot": events(DONE).replace(BOOT.encode(), OTHER_BOOT.encode()),
    "another pod that refuses": refusal(RefusalKind.WRONG_BOOT, OTHER_BOOT, "another-pod"),
    "outcome twice": events(DONE, DONE),
    "progress after the outcome": events(DONE, PROGRESS),
    "garbage after the outcome": events(DONE, SECRET + b"\n"),
    "half a line after the outcome": events(DONE, SECRET),
    "a second answer": events(DONE) + events(DONE),
    "garbage after the answer": events(DONE) + SECRET,
    "no JSON": events(SECRET + b"\n"),
    "no UTF-8": events(b'{"progress":"\xff"}\n'),
    "nested without end": events(b"[" * 400_000 + b"\n"),
    "a number without end": events(b'{"finished":' + b"9" * 400_000 + b"}\n"),
    "an unknown event": events(b'{"hello":{}}\n'),
    "an empty line": events(b"\n", DONE),
    "a line without end": HEAD + b"80000000\r\n" + b"x" * 5_000_000,
    "a line of many chunks": HEAD + chunk(b"x" * 65536) * 20 + END,
    "a line that is too long": events(b" " * EVENT_LIMIT_BYTES + OUTCOME),
    "an exit code of no process": with_outcome(exitCode=256),
    "a negative exit code": with_outcome(exitCode=-1),
    "a boolean for a number": with_outcome(durationMs=True),
    "more than it was asked": with_outcome(session="resumed"),
    "lengths that contradict each other": with_outcome(
        stdout={"head": "", "tail": "", "totalBytes": 7, "file": None, "fileBytes": -1}
    ),
    "progress in a flood": events(*[PROGRESS] * 10_000, DONE),
    "progress in a flood of one chunk": events(PROGRESS * 10_000, DONE),
    "failure of an unknown kind": events(b'{"error":{"kind":"free","message":"x"}}\n'),
}


@asynccontextmanager
async def hostile(answer: bytes, directory: Path) -> AsyncIterator[tuple[FakeAgent, AgentClient]]:
    async with running(FakeAgent(saying(answer))) as agent:
        yield agent, client_of(agent, directory)


@pytest.mark.parametrize("answer", LIES.values(), ids=LIES.keys())
async def test_an_answer_that_no_agent_gives_is_refused_and_not_quoted(answer: bytes, tmp_path: Path) -> None:
    async with hostile(answer, tmp_path) as (agent, client):
        with pytest.raises(AgentMisbehaved) as caught:
            await run(client)
        assert SECRET.decode() not in str(caught.value)
        assert len(str(caught.value)) < 400
        assert len(agent.runs) == 1
        agent.answer = saying(events(DONE))
        assert await run(client) == DONE
        assert agent.connections >= 2


async def test_an_agent_that_is_another_one_each_time_is_asked_twice(tmp_path: Path) -> None:
    async def always_another(request: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(refusal(RefusalKind.WRONG_BOOT, f"{len(agent.runs):032x}"))

    async with running(FakeAgent(always_another)) as agent:
        with pytest.raises(AgentMisbehaved):
            await run(client_of(agent, tmp_path))
        assert len(agent.runs) == 2


@pytest.mark.parametrize("status", [200, 204, 301, 404, 503])
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b"[" * 10_000,
        b'{"versions":[1],"podUid":"another","boot":"%s","detail":""}' % BOOT.encode(),
    ],
    ids=["nothing", "empty", "nested", "another pod"],
)
async def test_health_is_believed_no_more(tmp_path: Path, status: int, body: bytes) -> None:
    async with running(FakeAgent(saying(events(DONE)), health=with_length(status, body))) as agent:
        with pytest.raises(AgentMisbehaved):
            await run(client_of(agent, tmp_path))
        assert agent.runs == []


async def test_bytes_on_an_idle_connection_are_nobodys_answer(tmp_path: Path) -> None:
    forged = events(Failure(FailureKind.ENDED, "forged"))

    async def say_more_later(request: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(events(DONE))
        await writer.drain()
        await asyncio.sleep(0.05)
        writer.write(forged)

    async with running(FakeAgent(say_more_later)) as agent:
        client = client_of(agent, tmp_path)
        for _ in range(3):
            assert await run(client) == DONE
            await asyncio.sleep(0.15)


async def drip(piece: bytes, before: bytes = b"") -> AsyncIterator[bytes]:
    yield before
    while True:
        yield piece
        await asyncio.sleep(0.02)


@pytest.mark.parametrize(
    ("before", "piece"),
    [
        (b"", b"H"),
        (b"HTTP/1.1 200 OK\r\nX: ", b"y"),
        (HEAD, b"0"),
        (HEAD + b"7fff\r\n", b" "),
        (HEAD + chunk(ACCEPTED), b""),
        (HEAD + chunk(ACCEPTED) + chunk(OUTCOME), b""),
    ],
    ids=["status line", "header", "chunk size", "line", "nothing more", "no end"],
)
async def test_an_answer_in_drips_ends_with_the_commands_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: bytes, piece: bytes
) -> None:
    monkeypatch.setattr(client_module, "GRACE_SECONDS", 0.3)
    monkeypatch.setattr(client_module, "QUEUE_SECONDS", 0)

    async def answer(request: Request, writer: asyncio.StreamWriter) -> None:
        async for data in drip(piece, before):
            writer.write(data)
            await writer.drain()

    async with running(FakeAgent(answer)) as agent:
        client = client_of(agent, tmp_path)
        async with asyncio.timeout(10):
            with pytest.raises(AgentMisbehaved):
                await run(client, timeout_seconds=0.2)


async def test_an_agent_that_breaks_its_connection_gets_no_more_time_by_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "GRACE_SECONDS", 0.5)
    monkeypatch.setattr(client_module, "QUEUE_SECONDS", 0)

    async def break_late(request: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD + chunk(ACCEPTED))
        await writer.drain()
        await asyncio.sleep(0.7 if len(agent.runs) == 1 else 60)
        writer.transport.abort()

    async with running(FakeAgent(break_late)) as agent:
        client, started = client_of(agent, tmp_path), time.monotonic()
        with pytest.raises(AgentMisbehaved, match="longer"):
            await run(client, timeout_seconds=0.5)
        assert len(agent.runs) == 2
        assert time.monotonic() - started < 10


async def test_an_agent_that_falls_silent_is_asked_once_more_and_then_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "SILENCE_SECONDS", 0.2)

    async def fall_silent(request: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD + chunk(ACCEPTED))
        await writer.drain()
        await asyncio.sleep(60)

    async with running(FakeAgent(fall_silent)) as agent:
        with pytest.raises(AgentLost):
            await run(client_of(agent, tmp_path), timeout_seconds=60)
        assert len(agent.runs) == 2


async def test_an_agent_that_never_reads_holds_up_nobody_but_its_caller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "GRACE_SECONDS", 0.3)
    monkeypatch.setattr(client_module, "QUEUE_SECONDS", 0)

    async def stop_reading(request: Request, writer: asyncio.StreamWriter) -> None:
        if len(agent.runs) == 1:
            writer.write(events(DONE))
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            await asyncio.sleep(60)

    async with running(FakeAgent(stop_reading)) as agent:
        client = client_of(agent, tmp_path)
        assert await run(client) == DONE
        async with asyncio.timeout(10):
            with pytest.raises(AgentMisbehaved):
                await client.run(AGENT, "s1", "x" * 3_000_000, 0.2, lambda progress: None)


async def test_floods_cost_other_sessions_little_and_memory_nothing(tmp_path: Path) -> None:
    """Twenty agents send what they can, of many kinds, while another session goes on working."""
    floods = [
        HEAD + b"1\r\n{\r\n" * 100_000,
        b"HTTP/1.1 100 Continue\r\n\r\n" * 50_000,
        HEAD + chunk(ACCEPTED) + chunk(PROGRESS) * 50_000,
        HEAD + b"80000000\r\n" + b"x" * 3_000_000,
    ]
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    async with running(FakeAgent(saying(events(DONE)))) as good:
        client = client_of(good, tmp_path)
        await run(client)
        agents = [FakeAgent(saying(floods[i % len(floods)])) for i in range(20)]
        stop = asyncio.Event()

        async def attack(agent: FakeAgent) -> None:
            async with running(agent):
                hostile_client = client_of(agent, tmp_path)
                while not stop.is_set():
                    with pytest.raises((AgentMisbehaved, AgentLost)):
                        await run(hostile_client)

        attacks = [asyncio.create_task(attack(agent)) for agent in agents]
        latencies = []
        for _ in range(20):
            started = time.monotonic()
            assert await run(client) == DONE
            latencies.append(time.monotonic() - started)
        stop.set()
        await asyncio.gather(*attacks)
    after_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert sorted(latencies)[len(latencies) // 2] < 2.0
    assert after_kib - before_kib < 150 * 1024
    assert all(agent.runs for agent in agents)


def test_an_accepted_line_is_what_an_honest_agent_sends() -> None:
    """So that the lies above are refused for what they change."""
    assert encode_run_event(Accepted(AgentIdentity(POD_UID, BOOT))) == ACCEPTED
