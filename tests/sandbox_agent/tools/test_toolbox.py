import errno
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from cli_mcp.execution import ToolFailed
from sandbox_agent.tools.toolbox import InvalidArguments, Toolbox, explain


@pytest.fixture
async def toolbox(directory: Path) -> AsyncIterator[Toolbox]:
    toolbox = Toolbox(directory, {"PATH": os.environ["PATH"]})
    yield toolbox
    await toolbox.close()


async def test_each_tool_is_called_by_its_name(toolbox: Toolbox) -> None:
    calls: list[tuple[str, dict[str, Any]]] = [
        ("write_file", {"path": "x", "content": "1"}),
        ("read_file", {"path": "x", "tail": 1}),
        ("list_directory", {}),
        ("move_file", {"source": "x", "destination": "y"}),
        ("delete_file", {"path": "y"}),
        ("process_start", {"command": "sleep 60", "name": "p"}),
        ("process_list", {}),
        ("tail_log", {"name": "p", "follow": 0}),
        ("process_kill", {"name": "p", "signal": "KILL"}),
    ]
    for name, arguments in calls:
        assert await toolbox.call(name, arguments)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("no_such_tool", {}),
        ("call", {}),
        ("read_file", {}),
        ("read_file", {"path": "x", "other": 1}),
        ("read_file", {"path": 5}),
        ("read_file", {"path": "x", "limit": "5"}),
        ("process_start", {"command": None}),
        ("tail_log", {"name": "p", "follow": "1"}),
        ("process_list", {"x": 1}),
    ],
)
async def test_what_the_tools_do_not_take_is_refused(
    toolbox: Toolbox, name: str, arguments: dict[str, object]
) -> None:
    with pytest.raises(InvalidArguments):
        await toolbox.call(name, arguments)


@pytest.mark.parametrize(
    ("path", "message"),
    [("none", "list_directory"), ("../secret", "leads out"), ("a/b/file/x", "not a directory")],
)
async def test_what_the_system_refuses_is_told_with_a_remedy(
    toolbox: Toolbox, path: str, message: str
) -> None:
    with pytest.raises(ToolFailed, match=message):
        await toolbox.call("read_file", {"path": path})


def test_an_error_without_advice_is_told_in_the_systems_words() -> None:
    assert explain(OSError(errno.EIO, "x"), "/w") == "The system says: Input/output error."


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("read_file", {"path": "x", "offset": 2**80}),
        ("read_file", {"path": "x", "limit": 2**80}),
        ("read_file", {"path": "x\0"}),
        ("list_directory", {"path": "\ud800"}),
        ("move_file", {"source": "x", "destination": "\ud800"}),
        ("process_start", {"command": "a\0b"}),
        ("process_start", {"command": "\ud800"}),
        ("tail_log", {"path": "x", "offset": 2**80}),
    ],
)
async def test_what_no_call_of_the_system_takes_is_answered_all_the_same(
    toolbox: Toolbox, name: str, arguments: dict[str, object]
) -> None:
    await toolbox.call("write_file", {"path": "x", "content": "1"})
    try:
        assert await toolbox.call(name, arguments)
    except ToolFailed as failed:
        assert str(failed)
