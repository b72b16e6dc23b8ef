"""What the structured content of a result has, as JSON Schema: many clients show a model nothing else."""

from typing import Any

from cli_mcp.execution import TIMEOUT_EXIT_CODE
from mcp_server.backend import SessionState

NOTES_SCHEMA: dict[str, Any] = {
    "type": "array",
    "items": {"type": "string"},
    "description": "What else to know, a short text each: what was cut, changed, refused or lost.",
}
SESSION_SCHEMA: dict[str, Any] = {"type": "string", "enum": [state.value for state in SessionState]}

_STREAM = {"type": "string", "description": "Beginning and end if `truncated`; Base64 if `encoding` says so."}
COMMAND_PROPERTIES: dict[str, Any] = {
    "exit_code": {
        "type": "integer",
        "description": f"{TIMEOUT_EXIT_CODE} after a timeout, 128+n after signal n.",
    },
    "notes": NOTES_SCHEMA,
    "stdout": _STREAM,
    "stderr": _STREAM,
    "duration_ms": {"type": "integer", "description": "Without the time that the command waited for others."},
    "cwd": {"type": "string", "description": "Of the shell, after the command."},
    "timed_out": {"type": "boolean"},
    "truncated": {"type": "boolean"},
    "stdout_bytes": {"type": "integer"},
    "stderr_bytes": {"type": "integer"},
    "encoding": {"type": "string", "enum": ["utf-8", "base64"], "description": "Of both streams."},
    "output_file": {
        "anyOf": [{"type": "string"}, {"type": "null"}],
        "description": "The file with all of the output, if it was truncated.",
    },
    "background": {
        "type": "array",
        "items": {"type": "integer"},
        "description": "Process ids of what runs in the background.",
    },
    "shell_restarted": {"type": "boolean"},
    "session": SESSION_SCHEMA,
}
COMMAND_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": COMMAND_PROPERTIES,
    "required": list(COMMAND_PROPERTIES),
}
"""Of the result of a command, see mcp_server.results.tool_result."""
