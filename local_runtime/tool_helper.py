"""What serves the typed tools inside a sandbox of local mode: this host's Python with a program of ours.

It is a process of the sandbox like any other, with its user, limits and view, and what runs there can kill or
imitate it. It is started at the first call and again when it died; a small bash that waits for that is all
that every sandbox has of it.
"""

import os
import shlex
import shutil
import sys
import sysconfig
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import cli_mcp.execution
import sandbox_agent
from local_runtime.bubblewrap import SystemFiles
from local_runtime.state import first_closed
from sandbox_agent.launch import HELPER_PATH
from sandbox_agent.tools.runner import START

START_LINE = b"\n" + START
ENDED_LINE = b'{"ended": true}\n'
_PROGRAM_INSIDE = "/opt/cli-mcp/tools.pyz"
_PYTHON_INSIDE = "/opt/cli-mcp/python"
# Started by a line `start`, since what ends the program must not end what starts it again.
_HELPER = """\
while read -r word; do
  [[ $word == start ]] || continue
  {command}
  printf %s {ended}
done
"""
_ISOLATED = ("-I", "-S")
_LIBRARY_PATH = "LD_LIBRARY_PATH"
# Of the standard library, what is large and of no use to the program.
_LEFT_OUT = frozenset(
    {"site-packages", "test", "tests", "idlelib", "tkinter", "lib2to3", "ensurepip", "turtledemo"}
)
_MODULES = ("*.py", "tools/*.py")
_MAIN = """\
import asyncio, sys
from sandbox_agent.tools.runner import main
asyncio.run(main(sys.argv[1:]))
"""

# Those behind a virtual environment.
_INTERPRETER = Path(getattr(sys, "_base_executable", sys.executable))
_PREFIX = Path(sys.base_prefix)


@dataclass(frozen=True, slots=True)
class ToolProgram:
    """`read_only` is what a sandbox needs to see for it: paths inside and here."""

    read_only: Mapping[str, Path]

    def beside(
        self, argv: Sequence[str], requests_fd: int, answers_fd: int, others: Sequence[int] = ()
    ) -> list[str]:
        """The command line that runs `argv`, and beside it what waits for START_LINE on `requests_fd`. It
        does not get the `others`, which are for `argv` alone."""
        closed = f"{requests_fd}<&- {answers_fd}>&-"
        not_for_it = " ".join(f"{fd}<&-" for fd in others)
        helper = f"bash -p {HELPER_PATH} <&{requests_fd} >&{answers_fd} {closed} {not_for_it}"
        return ["bash", "-p", "-c", f'{helper} & exec "$@" {closed}', "bash", *argv]


def tool_program(
    system: SystemFiles,
    directory: Path,
    *,
    own_uids: bool,
    interpreter: Path = _INTERPRETER,
    prefix: Path = _PREFIX,
) -> ToolProgram:
    """Write into `directory` what sandboxes need to see. Raises OSError."""
    program, helper = directory / "tools.pyz", directory / "helper"
    _write_program(program)
    binds = {_PROGRAM_INSIDE: program, HELPER_PATH: helper}
    interpreter, prefix = interpreter.resolve(), prefix.resolve()
    command = [str(interpreter), *_ISOLATED, _PROGRAM_INSIDE]
    if not any(interpreter.is_relative_to(path) for path in system.paths):
        if own_uids and first_closed(prefix) is not None:
            prefix, interpreter = _copy(prefix, interpreter, directory / "python")
        binds[_PYTHON_INSIDE] = prefix
        command[0] = f"{_PYTHON_INSIDE}/{interpreter.relative_to(prefix)}"
        # One with a shared library of its own may look for that where it was installed.
        command = ["env", f"{_LIBRARY_PATH}={_PYTHON_INSIDE}/lib", *command, "--without", _LIBRARY_PATH]
    # The name of Python stands in no command line that lasts: `pkill -f python` is nothing unusual.
    helper.write_text(_HELPER.format(command=shlex.join(command), ended=shlex.quote(ENDED_LINE.decode())))
    helper.chmod(0o644)
    return ToolProgram(binds)


def _copy(prefix: Path, interpreter: Path, copy: Path) -> tuple[Path, Path]:
    """The interpreter with its standard library where other users may see it, since below its own prefix they
    may not. Where the file system permits it is made of links. Returns prefix and interpreter of the copy."""
    shutil.rmtree(copy, ignore_errors=True)
    library = Path(sysconfig.get_path("stdlib", vars={"installed_base": str(prefix), "base": str(prefix)}))
    shutil.copytree(
        library, copy / library.relative_to(prefix), copy_function=_link_or_copy, ignore=_not_needed
    )
    for path in (interpreter, *(prefix / "lib").glob("libpython*.so*")):
        target = copy / path.relative_to(prefix)
        target.parent.mkdir(parents=True, exist_ok=True)
        _link_or_copy(str(path), str(target))
    return copy, copy / interpreter.relative_to(prefix)


def _not_needed(directory: str, names: list[str]) -> set[str]:
    return {name for name in names if name in _LEFT_OUT or name.startswith("config-")}


def _link_or_copy(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def _write_program(path: Path) -> None:
    package = Path(sandbox_agent.__file__).parent
    written = path.with_name(f".{path.name}")
    with zipfile.ZipFile(written, "w") as archive:
        archive.writestr("__main__.py", _MAIN)
        archive.writestr("cli_mcp/__init__.py", "")
        archive.write(cli_mcp.execution.__file__, "cli_mcp/execution.py")
        for pattern in _MODULES:
            for module in sorted(package.glob(pattern)):
                archive.write(module, f"sandbox_agent/{module.relative_to(package)}")
    written.chmod(0o644)
    written.rename(path)
