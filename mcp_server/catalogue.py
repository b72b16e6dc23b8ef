"""The tools that a server can offer, by group as `spec.tools` names them."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache

from cli_mcp.sandbox_config import CommandLimits
from mcp_server.bash import Bash
from mcp_server.file_tools import FILE_TOOLS
from mcp_server.process_tools import PROCESS_TOOLS
from mcp_server.shell_exec import ShellExec
from mcp_server.tool import DEFAULT_LIMITS, HTTP_SESSION_HINT, egress_hint
from mcp_server.tool_calls import Tool

ALL_GROUPS = ("bash", "files", "processes")


@dataclass(frozen=True, slots=True)
class Offering:
    """What an instance says of its tools now; it may be changed while its server runs.

    `groups` are those of spec.tools, and `reach` has a text for each endpoint that a sandbox can connect to;
    `commands` is what a command may take.
    """

    groups: tuple[str, ...] = ("bash",)
    reach: tuple[str, ...] = ()
    default_session: bool = True
    """Whether a caller has a session without naming one."""
    commands: CommandLimits = DEFAULT_LIMITS


Offer = Callable[[], Mapping[str, Tool]]
"""The tools that are on offer now, by name, always in the same order."""


def catalogue(
    groups: Collection[str],
    network_hint: str,
    session_hint: str = HTTP_SESSION_HINT,
    limits: CommandLimits = DEFAULT_LIMITS,
) -> Mapping[str, Tool]:
    """The tools of these groups by name, always in the same order.

    `network_hint` and `session_hint` are a sentence each: what can be reached, and which sandbox it is.
    """
    members: Mapping[str, tuple[Tool, ...]] = {
        "bash": (Bash(network_hint, session_hint, limits),),
        "files": FILE_TOOLS,
        "processes": (ShellExec(limits), *PROCESS_TOOLS),
    }
    return {tool.definition.name: tool for group in ALL_GROUPS if group in groups for tool in members[group]}


def offer(offering: Callable[[], Offering], session_hint: str = HTTP_SESSION_HINT) -> Offer:
    """The tools of what is offered at the time, made when that changes."""
    made = lru_cache(maxsize=1)(
        lambda now: catalogue(now.groups, egress_hint(now.reach), session_hint, now.commands)
    )
    return lambda: made(offering())
