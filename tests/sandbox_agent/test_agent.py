"""A real agent over HTTP: what it runs, what it refuses, and what is left after a restart."""

import asyncio
import base64
import json
import os
import secrets
import signal
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx2
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from cli_mcp.agent_api import (
    CANCEL_PATH,
    HEALTH_PATH,
    RUN_PATH,
    Accepted,
    AgentIdentity,
    Failure,
    FailureKind,
    Finished,
    RefusalKind,
    RunRequest,
    ToolResult,
)
from cli_mcp.agent_json import decode_health, decode_refusal, encode_run_request
from cli_mcp.execution import Progress, SandboxUnavailable
from sandbox_agent import calls, isolation_test, main, pid_one, seccomp
from sandbox_agent.agent import Agent, AgentOptions, NotIsolated
from sandbox_agent.isolation_test import Endpoint, Probes
from tests.sandbox_agent.running_agent import POD_UID, RunningAgent, SignedClient, agent_directory, free_port
from tests.sandbox_agent.tokens import token

BODY = encode_run_request(RunRequest("echo ran >>runs", 10))


@pytest.fixture
def agent() -> Iterator[RunningAgent]:
    with agent_directory() as directory:
        agent = RunningAgent(directory, free_port(), environment={"FROM_POD": "yes", "CLI_MCP_OTHER": "no"})
        agent.start()
        try:
            yield agent
        finally:
            agent.close()


@pytest.fixture
async def client(agent: RunningAgent) -> AsyncIterator[SignedClient]:
    async with SignedClient(agent) as client:
        yield client


async def test_a_command_runs_in_a_shell_that_stays(client: SignedClient) -> None:
    events = [event async for event in client.events("cd /tmp; export A=1; echo out; echo err >&2; (exit 3)")]
    accepted, finished = events
    assert accepted == Accepted(AgentIdentity(POD_UID, client.boot))
    assert isinstance(finished, Finished)
    outcome = finished.outcome
    assert (outcome.exit_code, outcome.stdout.head, outcome.stderr.head) == (3, b"out\n", b"err\n")
    assert await client.out('echo "$A $PWD"') == "1 /tmp\n"


async def pieces_of_answer(client: SignedClient, command: str) -> int:
    content = encode_run_request(RunRequest(command, 10))
    async with client.http.stream(
        "POST", RUN_PATH, content=content, headers=client.headers(RUN_PATH, content)
    ) as answer:
        came = [piece async for piece in answer.aiter_raw()]
    assert len(b"".join(came).splitlines()) == 2
    assert ("content-length" in answer.headers) is (len(came) == 1)
    return len(came)


async def test_an_answer_that_comes_soon_comes_in_one_piece(client: SignedClient) -> None:
    """How soon a busy machine has it varies."""
    for _ in range(20):
        if await pieces_of_answer(client, "true") == 1:
            return
    raise AssertionError


async def test_whoever_waits_longer_for_an_answer_knows_meanwhile_that_the_call_was_accepted(
    client: SignedClient,
) -> None:
    assert await pieces_of_answer(client, "sleep 0.3") == 2


async def test_the_shell_has_the_pods_environment_without_what_is_the_agents(client: SignedClient) -> None:
    names = (await client.out("compgen -e")).split()
    assert "FROM_POD" in names
    assert not [name for name in names if name.startswith("CLI_MCP_")]
    assert await client.out("ls /proc/self/fd | wc -w") == "4\n"


async def test_progress_comes_while_a_command_runs_and_health_answers_meanwhile(client: SignedClient) -> None:
    seen: list[Progress] = []
    async for event in client.events("printf 'half a line'; sleep 2.5"):
        if isinstance(event, Progress):
            seen.append(event)
            began = time.monotonic()
            assert (await client.http.get(HEALTH_PATH)).status_code == 200
            assert time.monotonic() - began < 1
    assert [(p.output_bytes, p.last_line, p.queued) for p in seen] == [(11, "half a line", False)] * 2


@pytest.mark.parametrize(
    ("claims", "status", "kind"),
    [
        ({"sub": "session-2"}, 403, RefusalKind.OTHER_SESSION),
        ({"boot": "0" * 32}, 409, RefusalKind.WRONG_BOOT),
        ({"aud": "another"}, 401, RefusalKind.UNAUTHORIZED),
        ({"htu": CANCEL_PATH}, 401, RefusalKind.UNAUTHORIZED),
        ({"body": "0" * 64}, 401, RefusalKind.UNAUTHORIZED),
        ({"iat": 1_000_000_000, "exp": 1_000_000_060}, 401, RefusalKind.UNAUTHORIZED),
    ],
)
async def test_a_call_that_is_not_the_sessions_does_not_run(
    client: SignedClient, claims: dict[str, object], status: int, kind: RefusalKind
) -> None:
    assert (await client.run("true")).exit_code == 0
    answer = await client.post(RUN_PATH, BODY, **claims)
    refusal = decode_refusal(answer.content)
    assert (answer.status_code, refusal.kind) == (status, kind)
    assert refusal.identity == AgentIdentity(POD_UID, client.boot)
    assert await client.out("cat runs 2>/dev/null") == ""


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", RUN_PATH, b"", 405),
        ("POST", HEALTH_PATH, b"", 405),
        ("GET", "/", b"", 404),
        ("GET", "/health?full=1", b"", 404),
        ("POST", "/v2/run", b"{}", 404),
        ("POST", "/v1/tools/..%2Frun", b"{}", 404),
        ("POST", RUN_PATH, b"{}", 401),
        ("POST", "/v1/tools/read_file", b"{}", 401),
        ("GET", HEALTH_PATH, b"x", 400),
    ],
)
async def test_other_requests_are_refused(
    client: SignedClient, method: str, path: str, body: bytes, status: int
) -> None:
    answer = await client.http.request(method, path, content=body)
    assert answer.status_code == status
    assert decode_refusal(answer.content).identity.pod_uid == POD_UID


@pytest.mark.parametrize(
    "body", [b"", b"[]", b'{"command": "true"}', b'{"command": "true", "timeoutSeconds": 3601}']
)
async def test_a_signed_request_that_is_malformed_is_refused(client: SignedClient, body: bytes) -> None:
    answer = await client.post(RUN_PATH, body)
    assert (answer.status_code, decode_refusal(answer.content).kind) == (400, RefusalKind.MALFORMED)


async def test_a_body_of_the_allowed_size_is_taken_and_a_larger_one_is_not(client: SignedClient) -> None:
    command = ": " + "x" * (3 << 20)
    assert (await client.run(command)).exit_code == 0
    answer = await client.post(RUN_PATH, b" " * ((4 << 20) + 1))
    assert decode_refusal(answer.content).kind is RefusalKind.TOO_LARGE


async def test_a_key_that_arrives_later_is_accepted_and_another_is_not(
    agent: RunningAgent, client: SignedClient
) -> None:
    new, stranger = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()
    payload = client.headers(RUN_PATH, BODY)["Authorization"].split(".")[1]
    claims = json.loads(base64.urlsafe_b64decode(payload + "=="))

    async def status(key: Ed25519PrivateKey, kid: str) -> int:
        claims["jti"] = secrets.token_hex(16)
        headers = {"Authorization": f"Bearer {token(claims, key, kid=kid)}"}
        return (await client.http.post(RUN_PATH, content=BODY, headers=headers)).status_code

    assert await status(new, "b2") == 401
    pem = new.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    (agent.directory / "keys/b2.pem").write_bytes(pem)
    await asyncio.sleep(1.1)
    assert await status(new, "b2") == 200
    assert await status(stranger, "b2") == 401
    assert await status(stranger, "a1") == 401


async def test_a_call_that_comes_again_joins_and_runs_once(client: SignedClient) -> None:
    jti = secrets.token_hex(16)
    command = "echo ran >>runs; sleep 0.5; echo done"
    outcomes = await asyncio.gather(*(client.run(command, jti=jti) for _ in range(4)))
    later = await client.run(command, jti=jti, iat=int(time.time()) + 5, exp=int(time.time()) + 65)
    expired = await client.run(command, jti=jti, iat=1_000_000_000, exp=1_000_000_060)
    assert {outcome.stdout.head for outcome in (*outcomes, later, expired)} == {b"done\n"}
    assert {outcome.duration_ms for outcome in (*outcomes, later, expired)} == {outcomes[0].duration_ms}
    assert await client.out("cat runs") == "ran\n"
    other = await client.post(RUN_PATH, BODY, jti=jti)
    assert (other.status_code, decode_refusal(other.content).kind) == (400, RefusalKind.MALFORMED)


async def test_a_call_whose_connection_breaks_runs_on_when_it_is_asked_for_again(
    client: SignedClient,
) -> None:
    jti = secrets.token_hex(16)
    command = "echo began >>runs; sleep 2; echo done"
    async for event in client.events(command, jti=jti):
        if isinstance(event, Progress):
            break  # leaves the connection
    await asyncio.sleep(0.5)
    assert (await client.run(command, jti=jti)).stdout.head == b"done\n"
    assert await client.out("cat runs") == "began\n"


async def test_a_call_whose_connection_stays_away_is_interrupted(client: SignedClient) -> None:
    jti = secrets.token_hex(16)
    began = time.monotonic()
    command = "echo began >>runs; sleep 60; echo survived >>runs"
    async for _ in client.events(command, 120, jti=jti):
        break
    event = await client.last_event("cat runs", 60)
    assert calls.RECONNECT_SECONDS <= time.monotonic() - began < 30
    assert isinstance(event, Finished)
    assert event.outcome.stdout.head == b"began\n"
    assert event.first, "nobody has an answer of the one before"
    late = await client.last_event(command, 120, jti=jti)
    assert isinstance(late, Failure)
    assert late.kind is FailureKind.INTERRUPTED


async def test_the_first_result_that_reaches_a_server_says_that_it_is_the_first(
    client: SignedClient, agent: RunningAgent
) -> None:
    assert isinstance(await client.tool("read_file", path="none"), Failure)
    jti = secrets.token_hex(16)
    async for _ in client.events("echo done; sleep 0.3", jti=jti):
        break  # leaves the connection
    await asyncio.sleep(0.6)
    for _ in range(2):
        event = await client.last_event("echo done; sleep 0.3", jti=jti)
        assert isinstance(event, Finished) and event.first, "the same answer as often as it is asked for"
    for result in (await client.last_event("true"), await client.tool("list_directory", path=".")):
        assert isinstance(result, Finished | ToolResult) and not result.first
    agent.stop(signal.SIGKILL)
    agent.start()
    async with SignedClient(agent) as restarted:
        event = await restarted.last_event("true")
        assert isinstance(event, Finished) and not event.first


@pytest.mark.parametrize("trap", ["ln -s {elsewhere} {word}", "mkfifo {word}"])
async def test_what_lies_in_the_way_of_the_agents_word_is_neither_followed_nor_waited_for(
    client: SignedClient, agent: RunningAgent, trap: str
) -> None:
    elsewhere = agent.workspace / "elsewhere"
    word = agent.directory / "state" / "answered"
    assert word.parent.is_dir()
    await client.run(trap.format(elsewhere=elsewhere, word=word))
    assert await client.out("echo well") == "well\n"
    assert not elsewhere.exists()


async def test_a_cancelled_call_ends_and_the_shell_goes_on(client: SignedClient) -> None:
    jti = secrets.token_hex(16)
    await client.run("A=kept")
    running = asyncio.create_task(client.last_event("echo so far; sleep 60", 120, jti=jti))
    await asyncio.sleep(0.5)
    await client.cancel(secrets.token_hex(16))
    assert not running.done()
    await client.cancel(jti)
    event = await asyncio.wait_for(running, 10)
    assert isinstance(event, Finished)
    assert event.outcome.stdout.head == b"so far\n"
    assert event.outcome.exit_code != 0
    assert await client.out("echo $A") == "kept\n"
    await client.cancel(jti)


async def test_another_session_can_cancel_nothing(client: SignedClient) -> None:
    jti = secrets.token_hex(16)
    running = asyncio.create_task(client.run("sleep 1; echo whole", jti=jti))
    await asyncio.sleep(0.3)
    answer = await client.post(CANCEL_PATH, b'{"jti":"%b"}' % jti.encode(), sub="session-2")
    assert answer.status_code == 403
    assert (await running).stdout.head == b"whole\n"


async def test_calls_queue_and_those_beyond_the_queue_are_told_so(client: SignedClient) -> None:
    first = asyncio.create_task(client.run("sleep 2"))
    await asyncio.sleep(0.3)
    events = await asyncio.gather(*(client.last_event("echo $RANDOM") for _ in range(20)))
    kinds = [event.kind for event in events if isinstance(event, Failure)]
    assert kinds == [FailureKind.BUSY] * 4
    assert (await first).exit_code == 0


async def test_typed_tools_answer_by_the_same_rules(client: SignedClient) -> None:
    await client.run("echo content >file")
    found = await client.tool("read_file", path="file")
    assert isinstance(found, ToolResult)
    assert "content\n" in found.value.values()
    missing = await client.tool("read_file", path="none")
    assert isinstance(missing, Failure) and missing.kind is FailureKind.TOOL
    unknown = await client.tool("no_such_tool")
    assert isinstance(unknown, Failure) and unknown.kind is FailureKind.INVALID
    assert (await client.post("/v1/tools/read_file", b'{"path":"file"}', sub="session-2")).status_code == 403


async def test_a_process_of_a_tool_can_be_told_to_end(client: SignedClient) -> None:
    """The agent blocks signals; what it starts must not inherit that."""
    started = await client.tool(
        "process_start", command="trap 'echo ended >ended; exit' TERM; sleep 60 & wait"
    )
    assert isinstance(started, ToolResult), started
    await asyncio.sleep(0.5)
    blocked = await client.out("grep SigBlk /proc/self/status")
    assert int(blocked.split()[1], 16) == 0
    assert isinstance(await client.tool("process_kill", name=started.value["name"]), ToolResult)
    assert await client.out("sleep 0.3; ls ended") == "ended\n"


async def test_a_restarted_container_says_so_once_and_has_the_shells_state(
    agent: RunningAgent, client: SignedClient
) -> None:
    await client.run("cd /tmp; export KEPT=yes; f() { echo function; }; sleep 300 &")
    old_boot = client.boot
    agent.stop(signal.SIGKILL)
    agent.start()
    async with SignedClient(agent) as again:
        assert again.boot != old_boot
        stale = await again.post(RUN_PATH, BODY, boot=old_boot)
        assert (stale.status_code, decode_refusal(stale.content).identity.boot) == (409, again.boot)
        first = await again.run('echo "$KEPT $PWD"; f')
        assert first.stdout.head == b"yes /tmp\nfunction\n"
        assert first.shell_restarted
        assert any("container was started again" in note for note in first.notes)
        second = await again.run("true")
        assert not second.shell_restarted and not second.notes


async def test_a_restart_before_the_first_command_lost_nothing(
    agent: RunningAgent, client: SignedClient
) -> None:
    agent.stop(signal.SIGKILL)
    agent.start()
    async with SignedClient(agent, "another-session") as again:
        first = await again.run("true")
        assert not first.shell_restarted and not first.notes


@pytest.mark.parametrize(
    "trace",
    [
        "rm -r exchange; touch exchange",
        "rm -r exchange; ln -s /nowhere exchange",
        "rm -r exchange; ln -s /etc exchange",
        "rm used; mkfifo used; rm shell.state; mkfifo shell.state",
        "rm shell.state; ln -s /etc/passwd shell.state",
        "head -c 100000000 /dev/zero >shell.state",
        "echo 'declare -x A=1; exit' >shell.state",
    ],
)
async def test_no_trace_of_a_shell_keeps_the_next_agent_from_work(
    agent: RunningAgent, client: SignedClient, trace: str
) -> None:
    await client.run("true")
    await client.run(f"sleep 0.2 && cd ../state && {{ {trace}; }} & disown")
    await asyncio.sleep(0.8)
    agent.stop(signal.SIGKILL)
    agent.start()
    async with SignedClient(agent) as again:
        assert await again.out("echo works") == "works\n"
        assert await again.out("echo still works") == "still works\n"


async def test_after_a_restart_the_first_token_binds_again(agent: RunningAgent, client: SignedClient) -> None:
    await client.run("true")
    agent.stop(signal.SIGKILL)
    agent.start()
    async with SignedClient(agent) as again:
        assert (await again.run("true")).exit_code == 0
        assert (await again.post(RUN_PATH, BODY, sub="session-2")).status_code == 403


async def test_a_stop_ends_the_running_command_with_an_answer(
    agent: RunningAgent, client: SignedClient
) -> None:
    running = asyncio.create_task(client.last_event("sleep 60", 120))
    await asyncio.sleep(0.5)
    began = time.monotonic()
    os.kill(agent.pid, signal.SIGTERM)
    event = await asyncio.wait_for(running, 5)
    assert isinstance(event, Failure) and event.kind is FailureKind.ENDED
    assert agent.wait(5) == 143
    assert time.monotonic() - began < 5


async def test_idle_connections_do_not_keep_health_from_answering(
    agent: RunningAgent, client: SignedClient
) -> None:
    connections = [await asyncio.open_connection("127.0.0.1", agent.port) for _ in range(300)]
    running = asyncio.create_task(client.run("sleep 1"))
    for _ in range(5):
        began = time.monotonic()
        async with httpx2.AsyncClient(trust_env=False) as other:
            assert (await other.get(f"{agent.url}{HEALTH_PATH}")).status_code == 200
        assert time.monotonic() - began < 1
    assert (await running).exit_code == 0
    for _, writer in connections:
        writer.close()


@pytest.mark.parametrize(
    ("arguments", "environment", "says"),
    [
        ((), {"CLI_MCP_POD_UID": ""}, "CLI_MCP_POD_UID is missing"),
        (("--workspace", "/nowhere"), {}, "cannot work"),
        ((), {"PATH": "/nowhere"}, "bash cannot be started"),
        (("--listen", "192.0.2.1:1"), {}, "cannot work"),
    ],
)
def test_an_agent_that_cannot_work_says_why_and_ends(
    arguments: tuple[str, ...], environment: dict[str, str], says: str
) -> None:
    with agent_directory() as directory:
        agent = RunningAgent(directory, free_port(), arguments, environment)
        agent.start()
        try:
            assert agent.wait() == 1
            assert says in agent.log and "Traceback" not in agent.log
        finally:
            agent.close()


async def test_a_pod_that_is_not_isolated_runs_nothing() -> None:
    with agent_directory() as directory:
        proxy = "127.0.0.77"
        listening = [await asyncio.start_server(_close, proxy, port) for port in (8080, 9090)]
        agent = RunningAgent(directory, free_port(), ("--isolation-test", proxy))
        agent.start()
        try:
            async with httpx2.AsyncClient(base_url=agent.url, trust_env=False) as http:
                await asyncio.sleep(1.5)
                answer = await http.get(HEALTH_PATH)
                assert answer.status_code == 503
                assert "reaches the proxy's metrics port" in decode_health(answer.content).detail
                refused = await http.post(RUN_PATH, content=BODY)
                assert decode_refusal(refused.content).kind is RefusalKind.NOT_ISOLATED
            assert agent.stop() == 143
        finally:
            agent.close()
            for server in listening:
                server.close()


def _close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.close()


@pytest.mark.parametrize("leaks", [False, True])
async def test_only_an_isolated_pod_becomes_ready(
    leaks: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy, forbidden = [await asyncio.start_server(_close, "127.0.0.1", 0) for _ in range(2)]
    addresses = [server.sockets[0].getsockname() for server in (proxy, forbidden)]
    if not leaks:
        forbidden.close()
    probes = Probes(Endpoint("the proxy", *addresses[0]), (Endpoint("the API server", *addresses[1]),))
    monkeypatch.setattr(isolation_test, "probes", lambda host, environment: probes)
    monkeypatch.setattr(isolation_test, "GIVE_UP_SECONDS", 1.0)
    environment = {"PATH": os.environ["PATH"], "CLI_MCP_POD_UID": POD_UID}
    agent = Agent(AgentOptions(tmp_path, tmp_path / "state", tmp_path, "proxy"), environment)
    try:
        if leaks:
            with pytest.raises(NotIsolated, match="it reaches the API server"):
                await agent.make_ready()
            assert agent.api.not_ready
        else:
            await agent.make_ready()
            assert not agent.api.not_ready
    finally:
        await agent.close()
        proxy.close()


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (NotIsolated("it leaks"), 77),
        (SandboxUnavailable("no bash"), 1),
        (OSError("no"), 1),
        (seccomp.UnsupportedArchitecture("vax"), 1),
    ],
)
def test_the_exit_status_says_what_happened(
    error: Exception, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def serve(*_: object) -> int:
        raise error

    monkeypatch.setattr(main, "serve", serve)
    monkeypatch.setattr(pid_one, "protect", lambda: None)
    monkeypatch.setattr(seccomp, "load", lambda program: None)
    monkeypatch.setenv("CLI_MCP_POD_UID", POD_UID)
    assert main.main([]) == status
