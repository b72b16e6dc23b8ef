from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from cli_mcp.session_keys import SessionKeys
from mcp_server.main import Arguments, is_loopback, main, parse_arguments, server_settings
from tests.mcp_server.agents.fake_agent import key_pair
from tests.mcp_server.certificates import self_signed
from tests.mcp_server.whole import CLIENT, OTHER_CLIENT, STRANGER, WholeServer, whole_server

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from mcp import Client
    from mcp.client.client import ConnectMode
    from mcp.types import CallToolResult

ASYNC = pytest.mark.asyncio(loop_scope="module")
WITH_EXEC = """
current-context: it
clusters: [{name: it, cluster: {server: "http://127.0.0.1:9"}}]
users: [{name: it, user: {exec: {apiVersion: client.authentication.k8s.io/v1beta1, command: aws}}}]
contexts: [{name: it, context: {cluster: it, user: it}}]
"""
KEYS = SessionKeys(keys=(key_pair(),)).model_dump_json(by_alias=True)
NEEDED = ["--instance", "demo", "--session-keys", "keys.json"]


# --- arguments


def test_what_is_needed_is_little() -> None:
    assert parse_arguments([*NEEDED, "--tls-dir", "tls"]) == Arguments(
        "demo", None, "", 8443, Path("tls"), Path("keys.json"), None, False, frozenset()
    )


def test_the_address_to_listen_on_may_be_another() -> None:
    parsed = parse_arguments([*NEEDED, "--tls-dir", "tls", "--listen", "[::]:80"])
    assert (parsed.host, parsed.port) == ("::", 80)


def test_what_is_no_address_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_arguments([*NEEDED, "--tls-dir", "tls", "--listen", "example.com:80"])
    assert "--listen" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("listen", "allowed"),
    [("127.0.0.1:1", True), ("[::1]:1", True), (":1", False), ("0.0.0.0:1", False), ("10.0.0.1:1", False)],
)
def test_without_tls_it_serves_loopback_only(
    listen: str, allowed: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    if allowed:
        assert is_loopback(parse_arguments([*NEEDED, "--listen", listen]).host)
        return
    with pytest.raises(SystemExit):
        parse_arguments([*NEEDED, "--listen", listen])
    assert "in the clear" in capsys.readouterr().err


def test_host_is_checked_on_loopback_and_only_listed_origins_may_call() -> None:
    anywhere = parse_arguments([*NEEDED, "--tls-dir", "tls", "--allowed-origin", "https://a.example"])
    assert server_settings(anywhere).allowed_hosts is None
    assert server_settings(anywhere).allowed_origins == {"https://a.example"}
    loopback = server_settings(parse_arguments([*NEEDED, "--listen", "127.0.0.1:1"]))
    assert loopback.allowed_hosts is not None
    assert "127.0.0.1" in loopback.allowed_hosts


def test_help_says_how_to_run_it_here(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_arguments(["--help"])
    assert "make run-server" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "kubeconfig not found"),
        ({"kubeconfig": "clusters: []\ncontexts: []\n"}, "No current context"),
        ({"kubeconfig": "clusters: []\ncontexts: []\ncurrent-context: it\n"}, "'it' not found"),
        ({"kubeconfig": "@"}, "cannot be read"),
        ({"kubeconfig": WITH_EXEC}, "keys.json: No such file"),
        ({"kubeconfig": WITH_EXEC, "keys.json": KEYS}, "use a token"),
    ],
)
def test_what_keeps_it_from_starting_is_said_without_a_traceback(
    tmp_path: Path, files: dict[str, str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    kubeconfig, keys = str(tmp_path / "kubeconfig"), str(tmp_path / "keys.json")
    arguments = ["--instance", "demo", "--session-keys", keys, "--kubeconfig", kubeconfig]
    assert main([*arguments, "--listen", "127.0.0.1:0"]) == 1
    error = capsys.readouterr().err
    assert error.startswith("cli-mcp server: ")
    assert message in error
    assert "Traceback" not in error


# --- the whole server


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[WholeServer]:
    async with whole_server(tmp_path_factory.mktemp("whole"), pool=5) as server:
        yield server


async def bash(client: Client, command: str, **arguments: object) -> CallToolResult:
    return await client.call_tool("bash", {"command": command, **arguments})


def stdout(result: CallToolResult) -> str:
    assert result.structured_content is not None, result.content
    return str(result.structured_content["stdout"])


@ASYNC
@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
async def test_a_session_is_a_shell_in_a_pod_that_stays(server: WholeServer, mode: ConnectMode) -> None:
    session = "era-" + mode.replace("-", "")
    async with server.client(mode, session=session) as client:
        assert [tool.name for tool in (await client.list_tools()).tools] == ["bash"]
        first = await bash(client, "cd /tmp; X=kept; echo hello; echo oops >&2; false")
        assert first.is_error
        assert first.structured_content is not None
        assert first.structured_content["session"] == "new"
        assert (first.structured_content["exit_code"], first.structured_content["stderr"]) == (1, "oops\n")
    async with server.client(mode, session=session) as client:
        second = await bash(client, "echo $X in $PWD")
        assert stdout(second) == "kept in /tmp\n"
        assert second.structured_content is not None
        assert second.structured_content["session"] == "continued"
    pod = server.pod_of(session)
    assert pod is not None
    assert pod["metadata"]["annotations"]["cli-mcp.redhat.com/session-owner"] == (
        '["system:serviceaccount:default:cli-mcp-demo-client","uid-client"]'
    )


@ASYNC
async def test_a_warm_call_asks_the_kubernetes_api_nothing(server: WholeServer) -> None:
    async with server.client(session="warm") as client:
        await bash(client, "true")
        mark = len(server.world.api.journal)
        for _ in range(20):
            await bash(client, "true")
        later = [entry for entry in server.world.api.journal[mark:] if "pods" in entry.resource]
        assert later == []


@ASYNC
async def test_a_warm_call_waits_for_nobodys_acknowledgement(server: WholeServer) -> None:
    """Nagle's algorithm and delayed acknowledgements, on any of its connections, would cost 40 ms."""
    async with server.client("2026-07-28", session="warm") as client:
        seconds = []
        for _ in range(40):
            started = time.perf_counter()
            await bash(client, "true")
            seconds.append(time.perf_counter() - started)
    assert min(seconds) < 0.038


@ASYNC
async def test_who_may_not_is_turned_away(server: WholeServer) -> None:
    for token, status in ((None, 401), ("guess", 401), (STRANGER, 403), (CLIENT, 200), (OTHER_CLIENT, 200)):
        async with server.http(token) as http:
            assert (await http.get("/metrics")).status_code == status
            assert (await http.get("/live")).status_code == 200
            assert (await http.delete("/sessions/nothing")).status_code == (status if status != 200 else 204)
    assert not any("guess" in line or CLIENT in line for line in server.log + server.audit)


@ASYNC
async def test_a_session_belongs_to_who_began_it(server: WholeServer) -> None:
    async with server.client(session="mine") as client:
        assert stdout(await bash(client, "echo mine")) == "mine\n"
    async with server.client(session="mine", token=OTHER_CLIENT) as client:
        refused = await bash(client, "echo stolen")
        assert refused.is_error
        assert "another caller" in str(refused.content)
    async with server.http(OTHER_CLIENT) as http:
        assert (await http.delete("/sessions/mine")).status_code == 403


@ASYNC
async def test_a_page_of_an_unlisted_origin_is_turned_away_and_any_host_is_none(server: WholeServer) -> None:
    async with server.http() as http:
        assert (await http.get("/metrics", headers={"Origin": "https://evil.example"})).status_code == 403


@ASYNC
async def test_cancelling_a_call_interrupts_the_command(server: WholeServer) -> None:
    async with server.client("2026-07-28", session="warm") as client:
        await bash(client, "true")
        with pytest.raises((asyncio.CancelledError, TimeoutError)):
            async with asyncio.timeout(1):
                await bash(client, f"sleep 100.{os.getpid()}")
        async with asyncio.timeout(20):
            found = await bash(client, f"pgrep -f 'sleep 10[0].{os.getpid()}' || echo nothing")
            assert stdout(found) == "nothing\n"


@ASYNC
async def test_a_session_that_is_deleted_is_gone_and_its_running_command_says_so(
    server: WholeServer,
) -> None:
    async with server.client(session="doomed") as client, server.http() as http:
        await bash(client, "X=1")
        running = asyncio.create_task(bash(client, "sleep 60"))
        await asyncio.sleep(0.5)
        assert (await http.delete("/sessions/doomed")).status_code == 204
        ended = await running
        assert ended.is_error
        assert "DELETE" in str(ended.content)


@ASYNC
async def test_audit_lines_say_who_was_where_and_never_what(server: WholeServer) -> None:
    async with server.client(session="warm") as client:
        await bash(client, "echo audit-this-secret")
    pod = server.pod_of("warm")
    assert pod is not None
    lines = [json.loads(line) for line in server.audit]
    mine = [line for line in lines if line["session"] == "warm"]
    assert mine[-1]["pod_uid"] == pod["metadata"]["uid"]
    assert mine[-1]["pod_ip"] == pod["status"]["podIP"]
    assert mine[-1]["owner"] == '["system:serviceaccount:default:cli-mcp-demo-client","uid-client"]'
    assert mine[-1]["started"] <= mine[-1]["ended"]
    assert "audit-this-secret" not in "\n".join(server.audit + server.log)


@ASYNC
async def test_metrics_show_what_happens(server: WholeServer) -> None:
    async with server.client(session="warm") as client:
        await bash(client, "true")
    metrics = await server.metrics()
    for name in (
        'cli_mcp_calls_total{outcome="ok"}',
        "cli_mcp_sessions ",
        'cli_mcp_kubernetes_requests_total{method="PATCH"}',
        'cli_mcp_caller_reviews_total{verdict="cached"}',
        'cli_mcp_caller_reviews_total{verdict="allowed"}',
        "cli_mcp_tls_certificate_expiry_timestamp_seconds ",
    ):
        assert name in metrics


@ASYNC
async def test_a_new_certificate_is_shown_without_dropping_a_connection(server: WholeServer) -> None:
    second = self_signed("second")
    async with server.http() as before:
        assert (await before.get("/live")).status_code == 200
        server.tls.swap(second)
        server.certificates[:] = [second]
        async with asyncio.timeout(20):
            while True:
                try:
                    async with server.http() as after:
                        assert (await after.get("/live")).status_code == 200
                        break
                except Exception as error:  # noqa: BLE001 - until it is there, each attempt fails in TLS
                    assert "certificate" in str(error).lower()
                    await asyncio.sleep(0.2)
        server.tls.swap((b"text", b"text"))
        async with asyncio.timeout(20):
            while "tls.crt" not in (await before.get("/health")).json()["detail"]:
                await asyncio.sleep(0.2)
        assert (await before.get("/health")).status_code == 200


@ASYNC
async def test_on_sigterm_a_running_command_ends_and_new_ones_are_refused(tmp_path: Path) -> None:
    async with whole_server(tmp_path, pool=1) as server, server.client(session="last") as client:
        await bash(client, "true")
        running = asyncio.create_task(bash(client, "sleep 3; echo done"))
        await asyncio.sleep(0.5)
        server.process.send_signal(signal.SIGTERM)
        await asyncio.sleep(0.3)
        refused = await bash(client, "echo no")
        assert "shutting down" in str(refused.content)
        assert stdout(await running) == "done\n"
        async with asyncio.timeout(20):
            assert await server.process.wait() == 0
        assert not any("Traceback" in line for line in server.log), server.log


@ASYNC
async def test_with_token_review_tokens_are_made_for_this_server(tmp_path: Path) -> None:
    async with whole_server(tmp_path, pool=1, arguments=("--token-review",)) as server:
        async with server.client() as client:
            assert stdout(await bash(client, "echo hi")) == "hi\n"
        async with server.http("guess") as http:
            refused = await http.get("/metrics")
            assert refused.status_code == 401
            assert "--audience=cli-mcp.redhat.com/default/demo" in refused.json()["error"]
