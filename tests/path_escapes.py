"""Paths that lead out of the workspace, for whoever calls typed tools in a real sandbox."""

import time
from collections.abc import Callable
from typing import Any

from tests.e2e_local.harness import Answer

# What a shell in the sandbox makes, and what a tool is asked for then. None of it may work.
ESCAPES: list[tuple[str, str, dict[str, Any]]] = [
    ("true", "read_file", {"path": "/etc/passwd"}),
    ("true", "read_file", {"path": "../etc/passwd"}),
    ("true", "read_file", {"path": "/workspace/../etc/passwd"}),
    ("true", "read_file", {"path": "/proc/self/environ"}),
    ("true", "read_file", {"path": "a\0b"}),
    ("true", "read_file", {"path": "x" * 5000}),
    ("true", "list_directory", {"path": "/"}),
    ("true", "list_directory", {"path": ".."}),
    ("true", "write_file", {"path": "/tmp/escaped", "content": "x"}),
    ("true", "write_file", {"path": "x" * 256, "content": "x"}),
    ("ln -sfn /etc/passwd l", "read_file", {"path": "l"}),
    ("ln -sfn ../etc/passwd l", "read_file", {"path": "l"}),
    ("ln -sfn /proc/self/root l", "read_file", {"path": "l/etc/passwd"}),
    ("ln -sfn /proc/1/root l", "list_directory", {"path": "l"}),
    ("ln -sfn /proc/self/fd/0 l", "read_file", {"path": "l"}),
    ("ln -sfn /tmp l", "write_file", {"path": "l/escaped", "content": "x"}),
    ("ln -sfn /tmp/escaped l", "write_file", {"path": "l", "content": "x"}),
    ("ln -sfn /tmp/escaped l", "write_file", {"path": "l", "content": "x", "atomic": False}),
    ("ln -sfn /tmp l; touch f", "move_file", {"source": "f", "destination": "l/escaped"}),
    ("ln -sfn /tmp l; touch /tmp/kept", "move_file", {"source": "l/kept", "destination": "stolen"}),
    ("ln -sfn /tmp l; touch /tmp/kept", "delete_file", {"path": "l/kept"}),
    ("true", "delete_file", {"path": "/workspace", "recursive": True}),
    ("true", "delete_file", {"path": ".", "recursive": True}),
    ("true", "tail_log", {"path": "/etc/passwd"}),
    ("ln -sfn /etc/passwd l", "tail_log", {"path": "l"}),
    ("ln -sfn /tmp l", "process_start", {"command": "touch escaped", "cwd": "l"}),
    ("true", "process_start", {"command": "touch escaped", "cwd": "/tmp"}),
    ("ln -sfn /tmp l", "shell_exec", {"command": "touch escaped", "cwd": "l"}),
    ("true", "shell_exec", {"command": "touch escaped", "cwd": "/tmp"}),
    ("true", "shell_exec", {"command": "touch escaped", "cwd": "../tmp"}),
    ("rm -f f; mkfifo f", "read_file", {"path": "f"}),
    ("rm -f f; mkfifo f", "write_file", {"path": "f", "content": "x"}),
    ("rm -f f; mkfifo f", "tail_log", {"path": "f", "follow": 1}),
]


def try_to_escape(bash: Callable[[str], Answer], tool: Callable[..., Answer]) -> None:
    """In one session; no path leads out of it, or holds up a call."""
    for setup, name, arguments in ESCAPES:
        bash(f"cd; {setup}")
        began = time.monotonic()
        answer = tool(name, **arguments)
        assert answer.is_error, (setup, name, arguments, answer.text)
        assert "root:x:" not in answer.text
        assert time.monotonic() - began < 20
    assert bash("ls -A /tmp; ls stolen").stdout == "kept\n"
