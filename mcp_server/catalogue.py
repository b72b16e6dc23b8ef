"""The tools that a server can offer, by group as `spec.tools` names them."""

from collections.abc import Callable, Collection, Mapping
from functools import cache

from mcp_server.bash import Bash
from mcp_server.file_tools import FILE_TOOLS
from mcp_server.process_tools import PROCESS_TOOLS
from mcp_server.shell_exec import ShellExec
from mcp_server.tool import HTTP_SESSION_HINT
from mcp_server.tool_calls import Tool

ALL_GROUPS = ("bash", "files", "processes")


Groups = Callable[[], Collection[str]]
"""The groups that are on offer now: an instance may be changed while its server runs."""
Offer = Callable[[], Mapping[str, Tool]]
"""The tools that are on offer now, by name, always in the same order."""


def bash_alone() -> Collection[str]:
    return ("bash",)


def catalogue(
    groups: Collection[str], egress_hint: str, session_hint: str = HTTP_SESSION_HINT
) -> Mapping[str, Tool]:
    """The tools of these groups by name, always in the same order.

    `egress_hint` and `session_hint` are a sentence each: what can be reached, and which sandbox it is.
    """
    members: Mapping[str, tuple[Tool, ...]] = {
        "bash": (Bash(egress_hint, session_hint),),
        "files": FILE_TOOLS,
        "processes": (ShellExec(), *PROCESS_TOOLS),
    }
    return {tool.definition.name: tool for group in ALL_GROUPS if group in groups for tool in members[group]}


def offer(groups: Groups, egress_hint: str) -> Offer:
    """The tools of whatever groups are on offer at the time."""
    known = cache(lambda now: catalogue(now, egress_hint))
    return lambda: known(frozenset(groups()))
