"""The tool `shell_exec`: one command in a directory, in a subshell of the session's shell.

It has the shell's variables and functions and leaves nothing of its own behind. Output, timeout, progress and
cancelling are those of `bash`, and so it waits for its turn like a call of `bash`: process_start is for what
runs beside.
"""

import shlex
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any

from mcp import types
from pydantic import Field

from cli_mcp.execution import ROOT_VARIABLE
from cli_mcp.names import WORKSPACE_PATH
from cli_mcp.sandbox_config import CommandLimits
from mcp_server.bash import PreparedCommand
from mcp_server.result_schema import COMMAND_SCHEMA
from mcp_server.tool import InvalidCall, parse_arguments, timeout_schema
from mcp_server.typed_tool import ToolArguments, parse, schema

_NAME = "shell_exec"
_DESCRIPTION = (
    "Run one command in the workspace or a directory of it (`cwd`), and return its output. Unlike with "
    "`bash`, nothing that it does to the shell is kept: neither `cd` nor variables. Files are. It waits "
    "while another command of the session runs; process_start does not."
)
# Exit status of a shell that cannot run what it was told, POSIX 2.8.2.
_CANNOT_RUN = 126
_NOT_BELOW = f"{_NAME}: `cwd` is no directory below the workspace; nothing was run"


class _Arguments(ToolArguments):
    command: Annotated[str, Field(description="What bash runs, of one or many lines.")]
    cwd: Annotated[str, Field(min_length=1, description="Directory to run in. Default: the workspace.")] = "."
    timeout: Any = None  # see timeout_schema


class ShellExec:
    """See mcp_server.tool_calls.Tool."""

    def __init__(self, limits: CommandLimits) -> None:
        self._limits = limits
        arguments = schema(_Arguments)
        arguments["properties"]["timeout"] = timeout_schema(limits)
        self.definition = types.Tool(
            name=_NAME,
            title="Run a command in a directory",
            description=_DESCRIPTION,
            input_schema=arguments,
            output_schema=COMMAND_SCHEMA,
            annotations=types.ToolAnnotations(
                read_only_hint=False, destructive_hint=True, idempotent_hint=False, open_world_hint=True
            ),
        )

    def prepare(self, arguments: Mapping[str, object]) -> PreparedCommand:
        valid = parse(_Arguments, arguments)
        # Which knows what a command and a timeout may be.
        call = parse_arguments({"command": valid.command, "timeout": valid.timeout}, self._limits)
        return PreparedCommand(replace(call, command=in_directory(call.command, valid.cwd)))


def in_directory(command: str, cwd: str) -> str:
    """`command` for a subshell in `cwd`, once the shell has seen that this is below the tools' directory.

    Raises InvalidCall.
    """
    if "\0" in cwd:
        raise InvalidCall("`cwd` contains a NUL character.")
    path = cwd if cwd.startswith("/") else f"./{cwd}"  # or CDPATH would count
    return (
        f'( \\builtin cd -P -- "${{{ROOT_VARIABLE}:-{WORKSPACE_PATH}}}" && __cli_mcp_root=$PWD && '
        f'\\builtin cd -P -- {shlex.quote(path)} && [[ $PWD/ == "$__cli_mcp_root"/* ]] || '
        f"{{ \\builtin echo {shlex.quote(_NOT_BELOW)} >&2; \\builtin exit {_CANNOT_RUN}; }}; "
        f"\\builtin unset -v __cli_mcp_root; \\builtin eval {shlex.quote(command)} )"
    )
