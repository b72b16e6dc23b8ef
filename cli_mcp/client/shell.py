"""`cli-mcp shell`: a prompt over the `bash` tool. Each command is one call; the session keeps the state."""

import os
import readline
import secrets
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from cli_mcp.client.connection import ClientError, Connection, Target, new_request_id
from cli_mcp.client.interrupt import cancelled_by_ctrl_c
from cli_mcp.client.options import WrongUse, add_timeout, only_url, parse, parser, target
from cli_mcp.client.output import say, write
from cli_mcp.client.progress import ProgressLine
from cli_mcp.client.session import Result, Session
from cli_mcp.exit_status import INTERRUPTED, NO_RESULT
from cli_mcp.state_dir import own_state_directory

_HISTORY_FILE = "shell-history"
_HISTORY_LINES = 2_000
_PARSE_SECONDS = 5
# What bash says of input that ends too early, in the C locale.
_UNFINISHED = (b"unexpected end of file", b"unexpected EOF", b"delimited by end-of-file")
_COLOURS = ("amber", "azure", "coral", "green", "indigo", "ivory", "olive", "pearl", "ruby", "silver")
_ANIMALS = ("badger", "crane", "dolphin", "falcon", "gecko", "heron", "lynx", "otter", "raven", "tapir")


def main(arguments: list[str]) -> int:
    options = parser(
        "shell",
        "A prompt in a session of a running server. A command goes on over lines until bash would run it.",
        "[URL]",
        "Exit status: the last command's; 125 when there is no result.",
    )
    options.add_argument("--session", help="default: a new one, with a name of its own")
    add_timeout(options)
    chosen = parse(options, arguments)
    session = chosen.session or readable_id()
    try:
        url = only_url(chosen.words)
    except WrongUse as wrong:
        options.error(str(wrong))
    try:
        to = target(chosen, url, session)
        prompt = _Prompt(to, chosen.timeout)
        if not sys.stdin.isatty():
            return prompt.run_lines()
        print(f"Session {session} of {to.url}. Ctrl-C interrupts a command, Ctrl-D leaves.")
        with _history(own_state_directory()):
            status = prompt.converse()
        print(f"The session lives on: cli-mcp shell {url} --session {session}")
        return status
    except ClientError as error:
        say(str(error))
        return NO_RESULT
    except KeyboardInterrupt:
        return INTERRUPTED


def readable_id() -> str:
    """A new session's id that can be remembered and typed."""
    return f"{secrets.choice(_COLOURS)}-{secrets.choice(_ANIMALS)}-{secrets.token_hex(3)}"


class _Prompt:
    def __init__(self, to: Target, timeout_seconds: float | None) -> None:
        """Raises ClientError."""
        self._to = to
        self._timeout_seconds = timeout_seconds
        self._session = Session(Connection(to))

    def run_lines(self) -> int:
        """Run the commands on stdin; the exit status is the last one's, and without a result nothing more
        runs. Raises ClientError, KeyboardInterrupt."""
        status = 0
        lines = (line.rstrip("\n") for line in sys.stdin)
        while (command := read_command(lambda continued: next(lines, None))) is not None:
            if command.strip():
                result, interrupted = self._run(command)
                status = write(result, self._session, quiet=True)
                if interrupted:
                    return INTERRUPTED
        return status

    def converse(self) -> int:
        """Read and run until the end of input; the exit status is the last command's.
        Raises ClientError when not even the first command has a result."""
        first, _ = self._run(":")
        cwd, status = first.cwd, 0

        def read_line(continued: bool) -> str | None:
            return _read_line("> " if continued else f"{_printable(cwd)} $ ")

        while (command := _command_or_nothing(read_line)) not in (None, "exit"):
            if not command:
                continue
            try:
                result, interrupted = self._run(command)
                status = write(result, self._session)
            except ClientError as error:
                say(str(error))
                continue
            except KeyboardInterrupt:
                print()
                status = INTERRUPTED
                continue
            _end_line(result)
            cwd, status = result.cwd, INTERRUPTED if interrupted else status
            if status != 0:
                print(f"[exit code {status}]", file=sys.stderr)
        return status

    def _run(self, command: str) -> tuple[Result, bool]:
        """The result, and whether Ctrl-C ended it. Raises ClientError, KeyboardInterrupt."""
        progress = ProgressLine(sys.stderr)
        request_id = new_request_id()
        cancelled: list[bool] = []
        try:
            with cancelled_by_ctrl_c(self._to, request_id) as cancelled:
                result = self._session.run(command, self._timeout_seconds, progress.show, request_id)
                return result, bool(cancelled)
        except ClientError:
            if cancelled:
                raise KeyboardInterrupt from None
            raise
        finally:
            progress.clear()


def read_command(read_line: Callable[[bool], str | None]) -> str | None:
    """Lines up to where bash would run what they are; None at the end of input.

    `read_line` is told whether the line goes on with others, and gives None at the end of input.
    """
    command = read_line(False)
    while command is not None and is_unfinished(command):
        more = read_line(True)
        if more is None:
            break  # bash says what is missing
        command = f"{command}\n{more}"
    return command


def is_unfinished(command: str) -> bool:
    """Whether bash would read on: an open quote, `do` without `done`, a here-document. Nothing is run.

    False where there is no bash to ask."""
    if command.endswith("\\") and not command.endswith("\\\\"):
        return True
    try:
        parsed = subprocess.run(
            ["bash", "--norc", "--noprofile", "-n"],
            input=f"{command}\n".encode(errors="surrogateescape"),
            env={"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"},
            capture_output=True,
            timeout=_PARSE_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return any(sign in parsed.stderr for sign in _UNFINISHED)


def _command_or_nothing(read_line: Callable[[bool], str | None]) -> str | None:
    """Without the space around it; empty after Ctrl-C, None at the end of input."""
    try:
        command = read_command(read_line)
    except KeyboardInterrupt:
        print()
        return ""
    return None if command is None else command.strip(" \t")


def _read_line(prompt: str) -> str | None:
    try:
        return input(prompt)
    except EOFError:
        print()
        return None


def _end_line(result: Result) -> None:
    """The prompt belongs at the beginning of a line."""
    last = result.stderr.data or result.stdout.data
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
