"""The `bash` tool as clients see it: its definition, and what a call's arguments and headers mean.

Pure: nothing here runs a command. A call that cannot be meant is an InvalidCall that a model can act on.
"""

import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mcp import types

from cli_mcp.execution import TIMEOUT_EXIT_CODE
from cli_mcp.sandbox_config import CommandLimits
from mcp_server.result_schema import COMMAND_SCHEMA

TOOL_NAME = "bash"
SESSION_HEADER = "X-Session-ID"
# A label of a host name (RFC 1123 section 2.1), since a session's id becomes part of object names.
_SESSION_ID = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_DEFAULT_DIGITS = 32
_DEFAULT_SESSION = re.compile(rf"default-[0-9a-f]{{{_DEFAULT_DIGITS}}}")
_RESERVED_PREFIX = "ssh-"
_SESSION_ID_RULE = (
    "1 to 63 lower-case letters, digits and hyphens, without a hyphen at either end, "
    f"and does not start with `{_RESERVED_PREFIX}`"
)
_NUMBER = re.compile(r"[+-]?[0-9]+(\.[0-9]*)?([eE][+-]?[0-9]{1,3})?")
_COMMAND_SCHEMA = {"type": "string", "description": "What bash runs, of one or many lines."}
_ARGUMENTS = ("command", "timeout")
# Of a command that gets the default time, so much is left for ending it and for the answer: many clients give
# up after the 60 s that are the default. A command that ignores signals takes 1.2 s.
_ANSWER_SECONDS = 5.0
_ANSWER_SHARE = 4
DEFAULT_LIMITS = CommandLimits()


class InvalidCall(Exception):
    """A call that cannot be run as it was sent; the message says what to send instead."""


@dataclass(frozen=True, slots=True)
class BashCall:
    """`too_long_seconds` is the timeout that was asked for, when that was more than the maximum."""

    command: str
    timeout_seconds: float
    too_long_seconds: float | None = None


HTTP_SESSION_HINT = (
    f"The client picks the session with the HTTP header {SESSION_HEADER}; another value is another sandbox."
)


def egress_hint(reach: Sequence[str]) -> str:
    """What a model is told about its network, when these are the endpoints that it reaches."""
    if not reach:
        return "There is no network: nothing outside the sandbox can be reached."
    return (
        f"The network ends at a proxy, which lets through to these hosts only: {', '.join(reach)}. "
        "HTTPS clients find it and its CA in the environment; credentials of your own are dropped."
    )


def timeout_schema(limits: CommandLimits) -> dict[str, Any]:
    """Without a maximum: a client that checks the schema itself would refuse what is merely cut."""
    return {
        "type": "number",
        "description": f"Seconds until the command is killed. Default {limits.default_seconds:g}, "
        f"at most {limits.max_seconds:g}.",
        "minimum": 0,
        "default": limits.default_seconds,
    }


def bash_tool(
    network_hint: str, session_hint: str = HTTP_SESSION_HINT, limits: CommandLimits = DEFAULT_LIMITS
) -> types.Tool:
    """The definition that tools/list gives. Hints are those of a tool that can do anything to its sandbox.

    `network_hint` and `session_hint` are a sentence each: what can be reached, and which sandbox it is.
    """
    return types.Tool(
        name=TOOL_NAME,
        title="Run a bash command",
        description=_description(network_hint, session_hint, limits),
        input_schema={
            "type": "object",
            "properties": {"command": _COMMAND_SCHEMA, "timeout": timeout_schema(limits)},
            "required": ["command"],
        },
        output_schema=COMMAND_SCHEMA,
        annotations=types.ToolAnnotations(
            read_only_hint=False, destructive_hint=True, idempotent_hint=False, open_world_hint=True
        ),
    )


def _description(network_hint: str, session_hint: str, limits: CommandLimits) -> str:
    return f"""\
Run a command in a bash shell that lives in a sandbox of its own and stays there between calls.

- Kept from call to call: working directory, variables, functions, aliases, shell options, and files in the \
workspace (the shell's home directory). After `exit` or a crash a new shell starts with the same state.
- No terminal and an empty stdin: give programs their input by arguments, pipes or here-documents.
- After `timeout` seconds (default {limits.default_seconds:g}, at most {limits.max_seconds:g}) the \
command is killed with exit code {TIMEOUT_EXIT_CODE}; the shell and its state stay. Run what takes longer in \
the background: `long-job > job.log 2>&1 &` returns at once, and later calls can look at the file.
- Of output over {limits.output_bytes:,} bytes a stream the beginning and the end are returned; all of it is \
in a file that the result names (`output_file`).
- {network_hint}
- One call at a time runs in a session; more wait their turn. {session_hint}"""


def parse_arguments(arguments: Mapping[str, object], limits: CommandLimits = DEFAULT_LIMITS) -> BashCall:
    """The call that `arguments` of tools/call describe.

    A timeout over the maximum is cut to it. The default, left out or sent, is the time in which the answer is
    to be there, so that the command ends before. Raises InvalidCall for what cannot be meant: unknown names,
    a command that is missing, blank or impossible to hand to bash, a timeout that is no positive number.
    """
    unknown = sorted(arguments.keys() - _ARGUMENTS)
    if unknown:
        names = ", ".join(_shown(name) for name in unknown[:10])
        raise InvalidCall(f"Unknown arguments: {names}. The tool takes `command` and `timeout`.")
    command = _command(arguments.get("command"))
    asked = _seconds(arguments.get("timeout"), limits)
    if asked == limits.default_seconds:
        return BashCall(command, asked - min(_ANSWER_SECONDS, asked / _ANSWER_SHARE))
    if asked > limits.max_seconds:
        return BashCall(command, limits.max_seconds, too_long_seconds=asked)
    return BashCall(command, asked)


def _command(value: object) -> str:
    if not isinstance(value, str):
        raise InvalidCall("`command` must be a string: the command for bash to run.")
    if not value.strip():
        raise InvalidCall("`command` is empty. Send the command for bash to run.")
    if "\0" in value:
        raise InvalidCall(
            "`command` contains a NUL character, which bash cannot read. Write it as $'\\0' or \\x00."
        )
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidCall("`command` is not valid Unicode: it contains half of a surrogate pair.") from None
    return value


def _seconds(value: object, limits: CommandLimits) -> float:
    if value is None:
        return limits.default_seconds
    if isinstance(value, str) and _NUMBER.fullmatch(value.strip()):
        value = float(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(_as_float(value)):
        raise InvalidCall(f"`timeout` must be a number of seconds, at most {limits.max_seconds:g}.")
    if value <= 0:
        raise InvalidCall(f"`timeout` must be more than 0 seconds, at most {limits.max_seconds:g}.")
    return _as_float(value)


def _as_float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:  # an integer beyond every float
        return math.inf


def default_session_id(owner: str) -> str:
    """The session of a caller who names none: another one for every owner."""
    return f"default-{hashlib.sha256(owner.encode(errors='surrogatepass')).hexdigest()[:_DEFAULT_DIGITS]}"


def session_of_caller(values: Sequence[str], owner: str, *, has_default: bool) -> str:
    """The session that a request of `owner` is for, by all of its X-Session-ID headers.

    Raises InvalidCall, also for the default session of somebody else, who would find it taken.
    """
    if not values and has_default:
        return default_session_id(owner)
    session_id = parse_session_id(values)
    if _DEFAULT_SESSION.fullmatch(session_id) and session_id != default_session_id(owner):
        raise InvalidCall(f"The session {_shown(session_id)} is another caller's. Choose another name.")
    return session_id


def parse_session_id(values: Sequence[str]) -> str:
    """The session that a request's X-Session-ID headers, all of them, name. Raises InvalidCall."""
    if not values:
        raise InvalidCall(
            f"No session. Configure the MCP client to send the HTTP header {SESSION_HEADER}, for example "
            f"`{SESSION_HEADER}: my-session`. The same value leads back to the same sandbox. "
            f"It is {_SESSION_ID_RULE}."
        )
    if len(values) > 1:
        raise InvalidCall(f"The HTTP header {SESSION_HEADER} came {len(values)} times. Send it once.")
    return check_session_id(values[0])


def check_session_id(value: str) -> str:
    """`value`, when it is a session's id. Raises InvalidCall."""
    if _SESSION_ID.fullmatch(value) is None or value.startswith(_RESERVED_PREFIX):
        raise InvalidCall(f"Not a session id ({SESSION_HEADER}): {_shown(value)}. It is {_SESSION_ID_RULE}.")
    return value


def _shown(name: str) -> str:
    """A name from outside, short and printable."""
    return f"`{name[:40].encode('ascii', 'replace').decode()}`"
