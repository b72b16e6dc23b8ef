"""Clients that are not ours complete a session against local mode: list, call, fail, come back, end."""

import json
import subprocess
from pathlib import Path

import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.types import CallToolResult, TextContent

from tests.e2e_local.harness import Server, running
from tests.mcp_shell_cases import Mode

HERE = Path(__file__).parent
LANGCHAIN_PYTHON = HERE.parents[1] / ".venv-mcp1/bin/python"


def text_of(result: CallToolResult) -> str:
    (block,) = result.content
    assert isinstance(block, TextContent)
    return block.text


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_the_sdks_client_completes_a_session(server: Server, mode: Mode) -> None:
    headers = server.headers(f"sdk-{mode}")
    async with httpx2.AsyncClient(headers=headers, timeout=60) as http:
        async with Client(streamable_http_client(server.url, http_client=http), mode=mode) as client:
            assert [tool.name for tool in (await client.list_tools()).tools] == ["bash"]
            first = await client.call_tool("bash", {"command": "export STATE=kept; echo hi"})
            assert text_of(first) == "hi\n[new session]"
            failed = await client.call_tool("bash", {"command": "(exit 3)"})
            assert failed.is_error
            assert text_of(failed) == "[exit code 3]"
        async with Client(streamable_http_client(server.url, http_client=http), mode=mode) as client:
            assert text_of(await client.call_tool("bash", {"command": "echo $STATE"})) == "kept\n"
            assert server.end(f"sdk-{mode}", workspace=True) == 204
            after = await client.call_tool("bash", {"command": 'echo "[$STATE]"'})
            assert text_of(after) == "[]\n[new session]"
    assert server.end(f"sdk-{mode}", workspace=True) == 204


@pytest.mark.skipif(not LANGCHAIN_PYTHON.exists(), reason="make .venv-mcp1/.ready installs the client")
def test_a_langchain_client_of_the_previous_sdk_completes_a_session(server: Server) -> None:
    session = subprocess.run(
        [LANGCHAIN_PYTHON, HERE / "langchain_session.py", server.url, server.token],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert session.returncode == 0, session.stderr
    assert json.loads(session.stdout) == {
        "name": "bash",
        "arguments": ["command", "timeout"],
        "worked": "hi\n[new session]",
        "structured": 0,
        "again": "kept\n",
        "failure": "[exit code 3]",
    }
    assert server.end("langchain", workspace=True) == 204


def test_another_loopback_address_answers_to_its_own_name() -> None:
    with running(arguments=("--listen", "127.0.0.5:0")) as server:
        assert server.url.startswith("http://127.0.0.5:")
        assert server.call("s1", "echo hi").stdout == "hi\n"
