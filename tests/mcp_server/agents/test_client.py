"""The client and an agent that is honest, but whose node, network and container are not always there."""

import asyncio
from contextlib import suppress
from pathlib import Path

import pytest

from cli_mcp.agent_api import AgentIdentity, Failure, FailureKind, Health, RefusalKind, ToolResult
from cli_mcp.agent_json import encode_health, encode_tool_answer
from cli_mcp.agent_token import body_digest
from cli_mcp.execution import (
    KEEP_OUTPUT,
    ExecutionError,
    Progress,
    SandboxUnavailable,
    SessionBusy,
    SessionEnded,
    ToolFailed,
)
from mcp_server.agents import client as client_module
from mcp_server.agents.agent import AgentAddress, AgentLost, AgentMisbehaved, AgentUnreachable
from mcp_server.agents.client import AgentClient
from tests.mcp_server.agents.fake_agent import (
    ACCEPTED,
    AGENT,
    BOOT,
    DONE,
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


async def test_a_run_is_signed_for_the_pod_the_session_and_the_body(tmp_path: Path) -> None:
    async with running(FakeAgent(saying(events(DONE)))) as agent:
        assert await run(client_of(agent, tmp_path)) == DONE
    (request,) = agent.runs
    claims = request.claims
    assert (request.method, request.path) == ("POST", "/v1/run")
    assert request.body == b'{"command":"echo hi","timeoutSeconds":5}'
    assert claims.pop("exp") - claims.pop("iat") == 60
    assert len(claims.pop("jti")) == 32
    assert claims == {
        "iss": "server-pod",
        "sub": "s1",
        "aud": POD_UID,
        "boot": BOOT,
        "htm": "POST",
        "htu": "/v1/run",
        "body": body_digest(request.body),
    }


async def test_progress_is_passed_on_in_order(tmp_path: Path) -> None:
    told = [Progress(1.0, 5, "a"), Progress(2.0, 9, "b", queued=True)]
    heard: list[Progress] = []
    async with running(FakeAgent(saying(events(*told, DONE)))) as agent:
        client = client_of(agent, tmp_path)
        assert await client.run(AGENT, "s1", "x", 5, heard.append) == DONE
    assert heard == told


async def test_calls_one_after_the_other_share_a_connection(tmp_path: Path) -> None:
    async with running(FakeAgent(saying(events(DONE)))) as agent:
        client = client_of(agent, tmp_path)
        for _ in range(5):
            await run(client)
        assert agent.connections == 1
        client.forget(POD_UID)
        await run(client)
        assert agent.connections == 2
        client.close()


async def test_an_idle_connection_that_the_agent_closed_is_not_used(tmp_path: Path) -> None:
    async def answer_and_close(request: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(events(DONE))
        writer.close()

    async with running(FakeAgent(answer_and_close)) as agent:
        client = client_of(agent, tmp_path)
        for _ in range(3):
            assert await run(client) == DONE
            await asyncio.sleep(0.05)
        assert len({it.claims["jti"] for it in agent.runs}) == 3


@pytest.mark.parametrize("told_before_it_breaks", [b"", HEAD, HEAD + chunk(ACCEPTED)])
async def test_a_call_whose_connection_breaks_joins_itself_once(
    tmp_path: Path, told_before_it_breaks: bytes
) -> None:
    async def break_once(request: Request, writer: asyncio.StreamWriter) -> None:
        if len(agent.runs) > 1:
            writer.write(events(DONE))
            return
        writer.write(told_before_it_breaks)
        await writer.drain()
        writer.transport.abort()

    async with running(FakeAgent(break_once)) as agent:
        assert await run(client_of(agent, tmp_path)) == DONE
        first, second = agent.runs
        assert first.claims["jti"] == second.claims["jti"]
        assert first.body == second.body


async def test_a_connection_that_breaks_twice_is_a_lost_command(tmp_path: Path) -> None:
    async def always_break(request: Request, writer: asyncio.StreamWriter) -> None:
        writer.transport.abort()

    async with running(FakeAgent(always_break)) as agent:
        with pytest.raises(AgentLost, match="unknown"):
            await run(client_of(agent, tmp_path))
        assert len(agent.runs) == 2


async def test_a_call_for_an_earlier_start_of_the_agent_is_signed_again(tmp_path: Path) -> None:
    async def check_boot(request: Request, writer: asyncio.StreamWriter) -> None:
        right = request.claims["boot"] == agent.boot
        answer = events(DONE).replace(BOOT.encode(), agent.boot.encode())
        writer.write(answer if right else refusal(RefusalKind.WRONG_BOOT, agent.boot))

    async with running(FakeAgent(check_boot)) as agent:
        client = client_of(agent, tmp_path)
        await run(client)
        agent.boot = OTHER_BOOT
        assert await run(client) == DONE
        assert [it.claims["boot"] for it in agent.runs] == [BOOT, BOOT, OTHER_BOOT]
        assert await run(client) == DONE
        assert len(agent.runs) == 4


async def test_a_container_that_restarts_under_a_command_is_a_lost_command_and_nothing_runs_twice(
    tmp_path: Path,
) -> None:
    async def restart(request: Request, writer: asyncio.StreamWriter) -> None:
        if agent.boot == OTHER_BOOT:
            writer.write(refusal(RefusalKind.WRONG_BOOT, OTHER_BOOT))
            return
        agent.boot = OTHER_BOOT
        writer.transport.abort()

    async with running(FakeAgent(restart)) as agent:
        with pytest.raises(AgentLost, match="started again"):
            await run(client_of(agent, tmp_path))
        assert [it.claims["boot"] for it in agent.runs] == [BOOT, BOOT]


async def test_a_call_waits_for_a_container_that_is_being_started_again(tmp_path: Path) -> None:
    async with running(FakeAgent(saying(events(DONE)))) as agent:
        client = client_of(agent, tmp_path)
        await run(client)
        client.close()
    again = FakeAgent(saying(events(DONE)), port=agent.port)
    call = asyncio.create_task(run(client))
    await asyncio.sleep(0.3)
    assert not call.done()
    async with running(again):
        assert await call == DONE


async def test_a_pod_that_is_gone_is_unreachable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "RESTART_SECONDS", 0.2)
    async with running(FakeAgent(saying(b""))) as agent:
        client = client_of(agent, tmp_path)
    with pytest.raises(AgentUnreachable):
        await run(client)


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        (RefusalKind.UNAUTHORIZED, AgentUnreachable),
        (RefusalKind.OTHER_SESSION, AgentUnreachable),
        (RefusalKind.NOT_FOUND, AgentUnreachable),
        (RefusalKind.TOO_LARGE, AgentUnreachable),
        (RefusalKind.NOT_ISOLATED, SandboxUnavailable),
        (RefusalKind.TOO_MANY_CALLS, SessionBusy),
        (RefusalKind.TOO_MANY_CONNECTIONS, SessionBusy),
        (RefusalKind.MALFORMED, AgentMisbehaved),
        (RefusalKind.METHOD_NOT_ALLOWED, AgentMisbehaved),
    ],
)
async def test_each_refusal_says_that_nothing_ran(
    tmp_path: Path, kind: RefusalKind, error: type[Exception]
) -> None:
    async with running(FakeAgent(saying(refusal(kind)))) as agent:
        with pytest.raises(error):
            await run(client_of(agent, tmp_path))
        assert len(agent.runs) == 1


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        (FailureKind.BUSY, SessionBusy),
        (FailureKind.ENDED, SessionEnded),
        (FailureKind.UNAVAILABLE, SandboxUnavailable),
        (FailureKind.INVALID, ExecutionError),
        (FailureKind.INTERRUPTED, ExecutionError),
        (FailureKind.TOOL, ToolFailed),
    ],
)
async def test_what_the_agent_says_of_a_call_reaches_the_caller(
    tmp_path: Path, kind: FailureKind, error: type[Exception]
) -> None:
    failure = Failure(kind, "the queue is\x1b[31m full\n" + "x" * 990)
    async with running(FakeAgent(saying(events(failure)))) as agent:
        with pytest.raises(error) as caught:
            await run(client_of(agent, tmp_path))
    assert type(caught.value) is error
    assert "the queue is [31m full xxx" in str(caught.value)
    assert len(str(caught.value)) < 1100


async def test_cancelling_a_run_interrupts_the_command(tmp_path: Path) -> None:
    started = asyncio.Event()

    async def never_end(request: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD + chunk(ACCEPTED))
        started.set()
        await writer.drain()
        await asyncio.sleep(60)

    async with running(FakeAgent(never_end)) as agent:
        call = asyncio.create_task(run(client_of(agent, tmp_path)))
        await started.wait()
        call.cancel()
        with suppress(asyncio.CancelledError):
            await call
        assert call.cancelled()
        assert agent.cancelled == [agent.runs[0].claims["jti"]]


async def test_a_run_that_is_cancelled_for_its_output_asks_for_it_by_the_same_jti(tmp_path: Path) -> None:
    started = asyncio.Event()

    async def end_when_cancelled(request: Request, writer: asyncio.StreamWriter) -> None:
        if agent.cancelled:
            writer.write(events(DONE))
            return
        writer.write(HEAD + chunk(ACCEPTED))
        started.set()
        await writer.drain()
        await asyncio.sleep(60)

    async with running(FakeAgent(end_when_cancelled)) as agent:
        call = asyncio.create_task(run(client_of(agent, tmp_path)))
        await started.wait()
        call.cancel(KEEP_OUTPUT)
        assert await call == DONE
        assert {it.claims["jti"] for it in agent.runs} == set(agent.cancelled)


async def test_an_agent_that_does_not_end_a_cancelled_run_keeps_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "_CANCEL_SECONDS", 0.3)
    started = asyncio.Event()

    async def never_end(request: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD + chunk(ACCEPTED))
        started.set()
        await writer.drain()
        await asyncio.sleep(60)

    async with running(FakeAgent(never_end)) as agent:
        call = asyncio.create_task(run(client_of(agent, tmp_path)))
        await started.wait()
        call.cancel(KEEP_OUTPUT)
        await asyncio.wait([call], timeout=10)
        assert call.cancelled()


async def test_an_agent_that_cannot_be_told_to_interrupt_does_not_keep_a_call_from_ending(
    tmp_path: Path,
) -> None:
    started = asyncio.Event()

    async def never_end(request: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD + chunk(ACCEPTED))
        started.set()
        await writer.drain()
        await asyncio.sleep(60)

    full = refusal(RefusalKind.TOO_MANY_CONNECTIONS)
    async with running(FakeAgent(never_end, cancellation=full)) as agent:
        call = asyncio.create_task(run(client_of(agent, tmp_path)))
        await started.wait()
        call.cancel()
        await asyncio.wait([call], timeout=10)
        assert call.cancelled()
        assert agent.cancelled


async def test_a_typed_tool_gives_its_object(tmp_path: Path) -> None:
    result = with_length(200, encode_tool_answer(ToolResult({"entries": ["a"]}, first=True)))
    failure = with_length(200, encode_tool_answer(Failure(FailureKind.INVALID, "no such file")))
    async with running(FakeAgent(saying(result))) as agent:
        client = client_of(agent, tmp_path)
        listed = await client.call_tool(AGENT, "s1", "list_directory", {}, 5)
        assert listed == ToolResult({"entries": ["a"]}, first=True)
        assert agent.runs[0].path == "/v1/tools/list_directory"
        agent.answer = saying(failure)
        with pytest.raises(ExecutionError, match="no such file"):
            await client.call_tool(AGENT, "s1", "list_directory", {}, 5)


async def test_waiting_ends_when_the_agent_is_isolated(tmp_path: Path) -> None:
    waiting = with_length(
        503, encode_health(Health(AgentIdentity(POD_UID, BOOT), detail="testing isolation"))
    )
    loop = asyncio.get_running_loop()
    async with running(FakeAgent(saying(events(DONE)), health=waiting)) as agent:
        client = client_of(agent, tmp_path)
        with pytest.raises(AgentUnreachable, match="testing isolation"):
            await client.wait_ready(AGENT, loop.time() + 0.3)
        ready = asyncio.create_task(client.wait_ready(AGENT, loop.time() + 10))
        await asyncio.sleep(0.1)
        assert not ready.done()
        agent.health = None
        await ready


async def test_an_agent_of_a_later_protocol_is_not_used(tmp_path: Path) -> None:
    later = with_length(200, encode_health(Health(AgentIdentity(POD_UID, BOOT), versions=(2, 3))))
    async with running(FakeAgent(saying(b""), health=later)) as agent:
        client = client_of(agent, tmp_path)
        with pytest.raises(AgentUnreachable, match="version"):
            await client.wait_ready(AGENT, asyncio.get_running_loop().time() + 5)


async def test_proxies_of_the_environment_are_not_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    async with running(FakeAgent(saying(events(DONE)))) as agent:
        assert await run(client_of(agent, tmp_path)) == DONE


async def test_errors_are_counted_by_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "RESTART_SECONDS", 0.1)
    counted: list[str] = []
    async with running(FakeAgent(saying(b"garbage\r\n\r\n"))) as agent:
        signer = client_of(agent, tmp_path)._signer
        client = AgentClient(signer, port=agent.port, on_error=counted.append)
        with pytest.raises(AgentMisbehaved):
            await run(client)
    with pytest.raises(AgentUnreachable):
        await run(client, agent=AgentAddress("another", "127.0.0.1"))
    assert counted == ["misbehaved", "unreachable"]
