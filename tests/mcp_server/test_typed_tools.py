"""The typed tools as clients see them: definitions, what arguments mean, and results that may be lies."""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest
from mcp import Client, types
from mcp.shared.exceptions import MCPError

from cli_mcp.execution import ToolFailed
from mcp_server.backend import SessionState
from mcp_server.bash import PreparedCommand
from mcp_server.catalogue import ALL_GROUPS, catalogue
from mcp_server.tool import InvalidCall
from mcp_server.typed_tool import PreparedToolCall
from sandbox_agent.tools.toolbox import Toolbox
from tests.mcp_server.fake_backend import FakeBackend, RunningServer, running_server

TOOLS = catalogue(ALL_GROUPS, "No network.")
GROUPS = {
    "bash": ["bash"],
    "files": ["read_file", "write_file", "list_directory", "move_file", "delete_file"],
    "processes": ["shell_exec", "process_start", "process_list", "process_kill", "tail_log"],
}
READ = {
    "path": "/workspace/x",
    "content": "text",
    "encoding": "utf-8",
    "offset": 0,
    "bytes": 4,
    "size_bytes": 4,
    "next_offset": None,
}
PROCESS = {
    "name": "p",
    "command": "true",
    "pid": 9,
    "state": "exited",
    "exit_code": 3,
    "started": "2026-01-01T00:00:00+00:00",
    "ended": "2026-01-01T00:00:01+00:00",
    "log": "/workspace/.cli-mcp/processes/p.log",
    "log_bytes": 0,
    "log_error": None,
}
ENTRY = {
    "name": "x",
    "type": "link",
    "size_bytes": 1,
    "mode": "0777",
    "modified": "2026-01-01T00:00:00+00:00",
    "target": "y",
}
TAIL = {
    "source": "p",
    "content": "text",
    "encoding": "utf-8",
    "offset": 4,
    "next_offset": 8,
    "size_bytes": 8,
    "file_id": None,
    "gap": "rotated",
    "lost_bytes": 4,
    "state": "exited",
    "exit_code": 0,
}
# Arguments, what the sandbox answers, and what the text says about it.
CALLS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "read_file": ({"path": "x"}, READ, "text"),
    "write_file": (
        {"path": "x", "content": ""},
        {"path": "/workspace/x", "bytes": 0, "created": True, "mode": "0644"},
        "Created",
    ),
    "list_directory": (
        {},
        {"path": "/workspace", "entries": [ENTRY], "next_cursor": "eA=="},
        "x -> y\n[more: go on with cursor eA==]",
    ),
    "move_file": (
        {"source": "x", "destination": "y"},
        {"source": "/workspace/x", "destination": "/workspace/y", "type": "file"},
        "Moved /workspace/x to /workspace/y",
    ),
    "delete_file": ({"path": "x"}, {"path": "/workspace/x", "type": "file"}, "Deleted the file /workspace/x"),
    "process_start": ({"command": "true"}, PROCESS, "p: exited with code 3"),
    "process_list": ({}, {"processes": [PROCESS]}, "p: exited with code 3"),
    "process_kill": ({"name": "p"}, {**PROCESS, "signal": None, "escalated": False}, "had ended before"),
    "tail_log": ({"name": "p"}, TAIL, "the log was rotated, 4 bytes are lost"),
}


@asynccontextmanager
async def calling(server: AbstractAsyncContextManager[RunningServer]) -> AsyncIterator[Client]:
    async with server as running, running.client("auto") as client:
        yield client


@pytest.mark.parametrize("groups", [("bash",), ("files",), ("processes", "bash"), ALL_GROUPS])
async def test_the_groups_of_an_instance_are_on_offer_and_nothing_else(groups: tuple[str, ...]) -> None:
    expected = [name for group in ALL_GROUPS if group in groups for name in GROUPS[group]]
    async with (
        running_server(tools=groups) as server,
        server.client("auto") as client,
    ):
        listed = (await client.list_tools()).tools
        assert [tool.name for tool in listed] == expected
        for name in set(TOOLS) - set(expected):
            with pytest.raises(MCPError, match="Unknown tool"):
                await client.call_tool(name, {})


@pytest.mark.parametrize("name", TOOLS)
def test_a_definition_tells_a_model_what_it_needs(name: str) -> None:
    tool = TOOLS[name].definition
    schema = tool.input_schema
    jsonschema.Draft202012Validator.check_schema(schema)
    assert tool.title and tool.description and len(tool.description) < 2_000
    assert all("description" in parameter for parameter in schema["properties"].values())
    assert "title" not in json.dumps({key: value for key, value in schema.items() if key != "properties"})
    assert tool.annotations is not None
    reads = name in ("read_file", "list_directory", "process_list", "tail_log")
    assert tool.annotations.read_only_hint is reads
    if reads or name == "move_file":
        assert tool.annotations.destructive_hint is False
    else:
        assert tool.annotations.destructive_hint is True
    jsonschema.Draft202012Validator.check_schema(tool.output_schema)
    assert tool.output_schema is not None
    assert "description" in tool.output_schema["properties"]["notes"]
    assert {"notes", "session"} <= set(tool.output_schema["required"])


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
@pytest.mark.parametrize("name", CALLS)
async def test_a_result_is_structured_and_readable(name: str, mode: Any) -> None:
    arguments, answer, text = CALLS[name]
    backend = FakeBackend(tool_result=answer, session_state=SessionState.NEW)
    async with running_server(backend, tools=ALL_GROUPS) as server, server.client(mode) as client:
        result = await client.call_tool(name, arguments)
    assert isinstance(result, types.CallToolResult) and not result.is_error
    # The client has checked it against the output schema; so do we, strictly.
    structured = result.structured_content
    jsonschema.validate(structured, TOOLS[name].definition.output_schema)
    assert structured == {**answer, "notes": ["new session"], "session": "new"}
    assert isinstance(result.content[0], types.TextContent)
    assert text in result.content[0].text and result.content[0].text.endswith("[new session]")
    ((session, called, sent, seconds),) = backend.tool_calls
    assert (called, session.id) == (name, "s1") and arguments.items() <= sent.items()
    assert 0 < seconds <= 300


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("read_file", {}, "`path` is missing"),
        ("read_file", {"pth": "x"}, "Unknown arguments: `pth`. The tool takes `path`, `offset`"),
        ("read_file", {"path": "x", "head": 1, "tail": 1}, "not several"),
        ("read_file", {"path": "x", "offset": -1}, "`offset`"),
        ("read_file", {"path": "x", "offset": True}, "`offset`: must be a number"),
        ("read_file", {"path": "x", "encoding": "latin-1"}, "`encoding`"),
        ("read_file", {"path": ["x"]}, "`path`"),
        ("write_file", {"path": "x"}, "`content` is missing"),
        ("write_file", {"path": "x", "content": "", "mode": "0999"}, "`mode`"),
        ("write_file", {"path": "x", "content": "", "mode": "4755"}, "`mode`"),
        ("list_directory", {"limit": 0}, "`limit`"),
        ("process_list", {"all": True}, "Unknown arguments: `all`. The tool takes no arguments"),
        ("process_start", {"command": "x", "name": "../x"}, "`name`"),
        ("process_kill", {"name": "p", "signal": "SEGV"}, "`signal`"),
        ("tail_log", {}, "either `name`"),
        ("tail_log", {"name": "p", "path": "x"}, "either `name`"),
        ("tail_log", {"name": "p", "follow": "NaN"}, "`follow`"),
        ("tail_log", {"name": "p", "follow": 61}, "`follow`"),
        ("shell_exec", {"cwd": "x"}, "`command` is missing"),
        ("shell_exec", {"command": " "}, "`command` is empty"),
        ("shell_exec", {"command": "x", "timeout": True}, "`timeout`"),
        ("shell_exec", {"command": "x", "cwd": "a\0"}, "`cwd` contains a NUL"),
        ("shell_exec", {"command": "x", "cwt": "a"}, "Unknown arguments: `cwt`"),
    ],
)
def test_arguments_that_cannot_be_meant_are_refused_by_name(
    name: str, arguments: dict[str, object], message: str
) -> None:
    with pytest.raises(InvalidCall) as refused:
        TOOLS[name].prepare(arguments)
    assert message in str(refused.value)
    assert len(str(refused.value)) < 1_000


def test_numbers_may_come_as_strings_and_what_may_be_left_out_as_null() -> None:
    for arguments in ({"path": "x", "limit": "7"}, {"path": "x", "tail": 7, "limit": None}):
        assert TOOLS["read_file"].prepare(arguments)


@pytest.mark.parametrize(
    "lie",
    [
        {},
        {**READ, "content": 5},
        {**READ, "offset": "0"},
        {**READ, "encoding": "latin-1"},
        {**READ, "content": "x" * 300_000},
        {**READ, "path": "x" * 10_000},
        {key: value for key, value in READ.items() if key != "next_offset"},
    ],
)
async def test_an_answer_that_is_none_is_not_passed_on(lie: dict[str, object]) -> None:
    async with calling(running_server(FakeBackend(tool_result=lie), tools=("files",))) as client:
        result = await client.call_tool("read_file", {"path": "x"})
    assert result.is_error and "interfere" in str(result.content)
    assert len(str(result.content)) < 1_000


async def test_what_a_later_version_says_besides_is_left_out() -> None:
    backend = FakeBackend(tool_result={**READ, "new_field": 1})
    async with calling(running_server(backend, tools=("files",))) as client:
        result = await client.call_tool("read_file", {"path": "x"})
    assert result.structured_content == {**READ, "notes": [], "session": "continued"}


async def test_a_result_fits_into_what_clients_accept_or_is_refused() -> None:
    backend = FakeBackend(tool_result={**READ, "content": "\0" * 65_536})
    async with calling(running_server(backend, tools=("files",))) as client:
        assert not (await client.call_tool("read_file", {"path": "x"})).is_error
        backend.tool_result = {**READ, "content": "\0" * 150_000}
        result = await client.call_tool("read_file", {"path": "x"})
    assert result.is_error and "too large" in str(result.content)


async def test_a_tool_that_says_no_is_a_tool_error_with_its_reason() -> None:
    backend = FakeBackend(error=ToolFailed("`x` is a fifo, not a regular file."))
    async with running_server(backend, tools=("files",)) as server, server.client("auto") as client:
        result = await client.call_tool("read_file", {"path": "x"})
        async with server.http() as http:
            assert 'cli_mcp_calls_total{outcome="failed"} 1.0' in (await http.get("/metrics")).text
    assert result.is_error and "is a fifo" in str(result.content)


async def test_shell_exec_is_a_command_of_the_sessions_shell() -> None:
    backend = FakeBackend()
    async with calling(running_server(backend, tools=("processes",))) as client:
        result = await client.call_tool("shell_exec", {"command": "echo 'hi'", "cwd": "a b", "timeout": "5"})
    jsonschema.validate(result.structured_content, TOOLS["shell_exec"].definition.output_schema)
    ((_, command, seconds),) = backend.calls
    assert seconds == 5.0 and "'./a b'" in command and command.endswith("""eval 'echo '"'"'hi'"'"'' )""")


async def test_what_is_on_offer_changes_while_the_server_runs() -> None:
    groups = ["bash"]
    async with calling(running_server(tools=groups)) as client:
        with pytest.raises(MCPError, match="There is `bash`"):
            await client.call_tool("process_list", {})
        groups[:] = ["processes"]
        listed = (await client.list_tools(cache_mode="bypass")).tools
        assert [tool.name for tool in listed] == GROUPS["processes"]
        with pytest.raises(MCPError, match="Unknown tool"):
            await client.call_tool("bash", {"command": "true"})


async def test_where_sandboxes_can_get_is_told_as_it_is_now() -> None:
    reach = ["old.test:443"]
    async with calling(running_server(reach=reach)) as client:
        for host in ("old.test:443", "new.test:443"):
            reach[:] = [host]
            (bash,) = (await client.list_tools(cache_mode="bypass")).tools
            assert bash.description is not None
            assert f"these hosts only: {host}." in bash.description


_EDGES: tuple[object, ...] = (
    *(0, -1, 2**31, 2**53, 2**63 - 1, 2**63, 2**64, 2**80, -(2**63) - 1, -(2**80), 10**400),
    *(0.5, -0.5, 1e300, float("nan"), float("inf"), -float("inf"), True, False),
    *("", "0", "-1", "1.5", "nan", "inf", "1e400", "9" * 30, "9" * 5_000, "9" * 1_000_000, "0x10", "١٢"),
    *("\0", "a\0b", "\ud800", "a\udfffb", "x" * 5_000, "x/" * 100_000, "../" * 1_000, "\n", "*"),
    *([], {}, [2**80], {"a": 2**80}, ["x"] * 10_000, {str(n): n for n in range(10_000)}),
)
_ARGUMENTS = [
    (tool.definition.name, argument)
    for tool in TOOLS.values()
    for argument in tool.definition.input_schema["properties"]
]


@pytest.mark.parametrize(("name", "argument"), _ARGUMENTS)
async def test_each_argument_at_each_edge_is_refused_by_name_or_gets_an_answer(
    name: str, argument: str, tmp_path: Path
) -> None:
    """As the sandbox gets it, where values that no call of the system takes come to light."""
    toolbox = Toolbox(tmp_path, {"PATH": os.environ["PATH"]})
    for edge in _EDGES:
        arguments = {**CALLS.get(name, ({"command": "true"},))[0], argument: edge}
        if (name, argument) == ("tail_log", "path"):
            del arguments["name"]
        try:
            prepared = TOOLS[name].prepare(arguments)
        except InvalidCall as refused:
            assert f"`{argument}`" in str(refused), (edge, refused)
            assert len(str(refused)) < 1_000
            continue
        if isinstance(prepared, PreparedCommand):
            continue
        assert isinstance(prepared, PreparedToolCall)
        sent = json.loads(json.dumps(prepared.arguments))
        async with asyncio.timeout(5):
            try:
                assert await toolbox.call(name, sent)
            except ToolFailed as failed:
                assert str(failed)
    await toolbox.close()


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("read_file", {"path": "x", "offset": 2**80}),
        ("read_file", {"path": "x", "offset": str(2**63)}),
        ("read_file", {"path": "x\0", "limit": 1}),
        ("read_file", {"path": "\ud800"}),
        ("tail_log", {"path": "x", "offset": 2**80}),
        ("process_start", {"command": "a\0b"}),
        ("move_file", {"source": "x", "destination": "y\0"}),
        ("write_file", {"path": "x", "content": "\ud800"}),
    ],
)
def test_what_no_call_of_the_system_takes_is_refused_before_it_is_sent(
    name: str, arguments: dict[str, object]
) -> None:
    with pytest.raises(InvalidCall, match="`"):
        TOOLS[name].prepare(arguments)


@pytest.mark.parametrize("name", TOOLS)
def test_very_many_arguments_cost_one_look(name: str) -> None:
    with pytest.raises(InvalidCall) as refused:
        TOOLS[name].prepare({f"{n}": n for n in range(10_000)})
    assert len(str(refused.value)) < 1_000
