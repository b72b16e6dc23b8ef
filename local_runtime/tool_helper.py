"""What serves the typed tools inside a sandbox of local mode: this host's Python with a program of ours.

It is a process of the sandbox like any other, with its user, limits and view, and what runs there can kill or
imitate it. It is started at the first call and again when it died; a small bash that waits for that is all
that every sandbox has of it.
"""

import sys
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import cli_mcp.execution
import sandbox_agent
from local_runtime.bubblewrap import SystemFiles
from local_runtime.state import first_closed
from sandbox_agent.launch import HELPER_NAME
from sandbox_agent.tools.runner import START

START_LINE = b"\n" + START
ENDED_LINE = b'{"ended": true}\n'
_PROGRAM_INSIDE = "/opt/cli-mcp/tools.pyz"
_PYTHON_INSIDE = "/opt/cli-mcp/python"
_MODULES = ("openat2.py", "processes.py", "tools/*.py")
_MAIN = "import asyncio\nfrom sandbox_agent.tools.runner import main\nasyncio.run(main())\n"

# Those behind a virtual environment.
_INTERPRETER = Path(getattr(sys, "_base_executable", sys.executable))
_PREFIX = Path(sys.base_prefix)


class NoPythonForSandboxes(Exception):
    """The Python that runs the server cannot be shown to the sandboxes; the message says what to do."""


@dataclass(frozen=True, slots=True)
class ToolProgram:
    """The command that serves tools in a sandbox, and what it needs to see: paths inside and here."""

    argv: tuple[str, ...]
    read_only: Mapping[str, Path] = field(default_factory=dict)

    def beside(self, argv: Sequence[str], requests_fd: int, answers_fd: int) -> list[str]:
        """The command line that runs `argv`, and beside it what waits for START_LINE on `requests_fd`."""
        loop = (
            'while read -r word; do [[ $word == start ]] || continue; "$@"; '
            f"printf '%s' '{ENDED_LINE.decode()}'; done"
        )
        start = (
            f'helper=$1 count=$2; shift 2; bash -p -c "$helper" "${{@:1:count}}" '
            f"<&{requests_fd} >&{answers_fd} {requests_fd}<&- {answers_fd}>&- & "
            f'shift "$count"; exec "$@" {requests_fd}<&- {answers_fd}>&-'
        )
        helper = (HELPER_NAME, *self.argv)
        return ["bash", "-p", "-c", start, "bash", loop, str(len(helper)), *helper, *argv]


def tool_program(
    system: SystemFiles,
    directory: Path,
    *,
    own_uids: bool,
    interpreter: Path = _INTERPRETER,
    prefix: Path = _PREFIX,
) -> ToolProgram:
    """Write the program into `directory`. Raises NoPythonForSandboxes."""
    program = directory / Path(_PROGRAM_INSIDE).name
    _write_program(program)
    binds = {_PROGRAM_INSIDE: program}
    interpreter, prefix = interpreter.resolve(), prefix.resolve()
    if not any(interpreter.is_relative_to(path) for path in system.paths):
        if not interpreter.is_relative_to(prefix):
            raise NoPythonForSandboxes(_advice(f"{interpreter} is not below its own prefix {prefix}"))
        closed = first_closed(prefix) if own_uids else None
        if closed is not None:
            raise NoPythonForSandboxes(_advice(f"other users may not pass through {closed} to it"))
        binds[_PYTHON_INSIDE] = prefix
        interpreter = Path(_PYTHON_INSIDE) / interpreter.relative_to(prefix)
    return ToolProgram((str(interpreter), "-I", "-S", _PROGRAM_INSIDE), binds)


def _advice(reason: str) -> str:
    return (
        "spec.tools lists more than bash, and those tools need a Python inside the sandboxes. The one that "
        f"runs this server cannot be shown to them: {reason}. Use the system's (make clean, then "
        "make run PYTHON=/usr/bin/python3), or leave the tools out."
    )


def _write_program(path: Path) -> None:
    package = Path(sandbox_agent.__file__).parent
    written = path.with_name(f".{path.name}")
    with zipfile.ZipFile(written, "w") as archive:
        archive.writestr("__main__.py", _MAIN)
        archive.writestr("cli_mcp/__init__.py", "")
        archive.write(cli_mcp.execution.__file__, "cli_mcp/execution.py")
        archive.writestr("sandbox_agent/__init__.py", "")
        for pattern in _MODULES:
            for module in sorted(package.glob(pattern)):
                archive.write(module, f"sandbox_agent/{module.relative_to(package)}")
    written.chmod(0o644)
    written.rename(path)
