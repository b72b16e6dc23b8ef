"""`cli-mcp call`: runs one command in a session and becomes its output and exit status."""

import os
import select
import stat
import sys

from cli_mcp.client.connection import ClientError, Connection, Target, new_request_id
from cli_mcp.client.interrupt import cancelled_by_ctrl_c
from cli_mcp.client.options import (
    DEFAULT_SESSION,
    WrongUse,
    add_timeout,
    parse,
    parser,
    target,
    url_and_command,
)
from cli_mcp.client.output import say, write
from cli_mcp.client.progress import ProgressLine
from cli_mcp.client.session import Session, with_stdin
from cli_mcp.exit_status import INTERRUPTED, NO_RESULT

_SILENT_SECONDS = 2.0


def main(arguments: list[str]) -> int:
    options = parser(
        "call",
        "Run one command in a session of a running server. What stdin has, the command can read.",
        "[URL] COMMAND",
        "Exit status: the command's; 124 when it timed out, 125 when there is no result or not all of it.",
    )
    options.add_argument("--session", default=DEFAULT_SESSION, help=f"default: {DEFAULT_SESSION}")
    add_timeout(options)
    options.add_argument("-n", "--no-stdin", action="store_true", help="leave stdin alone")
    options.add_argument("-q", "--quiet", action="store_true", help="no notes and no progress on stderr")
    chosen = parse(options, arguments)
    try:
        url, command = url_and_command(chosen.words)
    except WrongUse as wrong:
        options.error(str(wrong))
    try:
        to = target(chosen, url, chosen.session)
        return run_once(to, command, chosen.timeout, stdin=not chosen.no_stdin, quiet=chosen.quiet)
    except ClientError as error:
        say(str(error))
        return NO_RESULT
    except KeyboardInterrupt:
        return INTERRUPTED


def run_once(
    to: Target, command: str, timeout_seconds: float | None, *, stdin: bool = False, quiet: bool = False
) -> int:
    """The exit status. Raises ClientError, and KeyboardInterrupt when Ctrl-C left no result."""
    session = Session(Connection(to))
    if stdin and (file := _upload_stdin(session)) is not None:
        command = with_stdin(command, file)
    progress = ProgressLine(sys.stderr)
    request_id = new_request_id()
    cancelled: list[bool] = []
    try:
        with cancelled_by_ctrl_c(to, request_id) as cancelled:
            show = _unheard if quiet else progress.show
            result = session.run(command, timeout_seconds, show, request_id)
    except ClientError:
        if cancelled:
            raise KeyboardInterrupt from None
        raise
    finally:
        progress.clear()
    status = write(result, session, quiet=quiet)
    return INTERRUPTED if cancelled else status


def _unheard(seconds: float, message: str) -> None:
    """Nobody watches."""


def _upload_stdin(session: Session) -> str | None:
    """Put what stdin has into the sandbox: the file, or None for nothing, a terminal or /dev/null.
    Raises ClientError."""
    if sys.stdin is None or sys.stdin.isatty():
        return None
    mode = os.fstat(sys.stdin.fileno()).st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or stat.S_ISBLK(mode)):
        return None
    if not select.select([sys.stdin], [], [], _SILENT_SECONDS)[0]:
        say("waiting for stdin to end, which the command gets; to leave it alone: --no-stdin")
    try:
        return session.upload(sys.stdin.buffer.read)
    except OSError as error:
        raise ClientError(f"Cannot read stdin: {error.strerror}") from None
