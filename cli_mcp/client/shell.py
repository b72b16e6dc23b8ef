"""`cli-mcp shell`: a prompt over the `bash` tool. Each line is one call; the session keeps the state."""

import asyncio
import os
import readline
import secrets
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cli_mcp.client.call import write
from cli_mcp.client.connection import ClientError, Result, Target, connect
from cli_mcp.client.options import EXIT_INTERRUPTED, EXIT_NO_RESULT, parser, target
from cli_mcp.client.progress import ProgressLine
from cli_mcp.state_dir import own_state_directory

_HISTORY_FILE = "shell-history"
_HISTORY_LINES = 2_000
_COLOURS = ("amber", "azure", "coral", "green", "indigo", "ivory", "olive", "pearl", "ruby", "silver")
_ANIMALS = ("badger", "crane", "dolphin", "falcon", "gecko", "heron", "lynx", "otter", "raven", "tapir")


def main(arguments: list[str]) -> int:
    options = parser("shell", "An interactive prompt in a session of a running server.")
    options.add_argument("--session", help="default: a new one, with a name of its own")
    chosen = options.parse_args(arguments)
    session = chosen.session or readable_id()
    try:
        to = target(chosen, session)
        if not sys.stdin.isatty():
            return asyncio.run(_run_lines(to, chosen.timeout))
        print(f"Session {session} of {to.url}. Ctrl-C interrupts a command, Ctrl-D leaves.")
        with _history(own_state_directory()):
            status = _converse(to, chosen.timeout)
        print(f"The session lives on: cli-mcp shell {chosen.url} --session {session}")
        return status
    except ClientError as error:
        print(f"cli-mcp: {error}", file=sys.stderr)
        return EXIT_NO_RESULT
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def readable_id() -> str:
    """A new session's id that can be remembered and typed."""
    return f"{secrets.choice(_COLOURS)}-{secrets.choice(_ANIMALS)}-{secrets.token_hex(3)}"


async def _run_lines(to: Target, timeout_seconds: float | None) -> int:
    """Run each line of stdin; the exit status is the last one's, and without a result nothing more runs."""
    progress = ProgressLine(sys.stderr)
    status = 0
    async with connect(to) as session:
        for line in sys.stdin:
            if not line.strip():
                continue
            result = await session.run(line.rstrip("\n"), timeout_seconds, progress.show)
            progress.clear()
            write(result)
            status = result.exit_code
    return status


def _converse(to: Target, timeout_seconds: float | None) -> int:
    """Read and run until the end of input; the exit status is the last command's.

    The connection lives in a thread of its own: readline keeps this one, and gets Ctrl-C at the prompt.
    """
    from anyio.from_thread import start_blocking_portal

    with start_blocking_portal() as portal, portal.wrap_async_context_manager(connect(to)) as session:

        def run(command: str) -> Result | None:
            """The result, or None when Ctrl-C interrupted the command. Raises ClientError."""
            progress = ProgressLine(sys.stderr)
            running = portal.start_task_soon(session.run, command, timeout_seconds, progress.show)
            try:
                return running.result()
            except KeyboardInterrupt:
                running.cancel()
                return None
            finally:
                progress.clear()

        first = run(":")
        cwd, status = first.cwd if first else "", 0
        while (line := _read_line(f"{_printable(cwd)} $ ")) not in (None, "exit"):
            if not line:
                continue
            try:
                result = run(line)
            except ClientError as error:
                print(f"cli-mcp: {error}", file=sys.stderr)
                continue
            if result is None:
                print()
                status = EXIT_INTERRUPTED
                continue
            write(result)
            _end_line(result)
            cwd, status = result.cwd, result.exit_code
    return status


def _read_line(prompt: str) -> str | None:
    """A line without the space around it; empty after Ctrl-C, None at the end of input."""
    try:
        return input(prompt).strip()
    except EOFError:
        print()
        return None
    except KeyboardInterrupt:
        print()
        return ""


def _end_line(result: Result) -> None:
    """The prompt belongs at the beginning of a line."""
    last = result.stderr or result.stdout
    if last and not last.endswith(b"\n"):
        print()


def _printable(text: str) -> str:
    """The sandbox chooses its working directory's name, and it must not draw on the terminal."""
    return "".join(character if character.isprintable() else "?" for character in text)


@contextmanager
def _history(directory: Path) -> Iterator[None]:
    """readline's history from and to a file that only its user can read: commands may hold secrets."""
    file = directory / _HISTORY_FILE
    try:
        directory.mkdir(parents=True, exist_ok=True)  # not for this user alone: sandboxes may live below
        os.close(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
        readline.read_history_file(file)
    except OSError as error:
        print(f"cli-mcp: no history: {error}", file=sys.stderr)
        yield
        return
    try:
        yield
    finally:
        readline.set_history_length(_HISTORY_LINES)
        readline.write_history_file(file)
