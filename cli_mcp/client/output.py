"""A result on this program's own streams: the command's bytes as they are, and what else to say on stderr."""

import sys
from typing import TextIO

from cli_mcp.client.connection import ClientError
from cli_mcp.client.session import Result, Session, Stream
from cli_mcp.exit_status import NO_RESULT, TIMED_OUT


def say(message: str) -> None:
    """One line for the person at the terminal. The sandbox has a say in it, and must not draw on theirs."""
    printable = "".join(
        character if character.isprintable() else " " for character in " ".join(message.split("\n"))
    )
    print(f"cli-mcp: {printable}", file=sys.stderr)


def write(result: Result, session: Session, *, quiet: bool = False) -> int:
    """The whole output, byte for byte; returns the exit status."""
    status = result.exit_code
    for ours, stream in ((sys.stdout, result.stdout), (sys.stderr, result.stderr)):
        try:
            _write_stream(ours, stream, session)
        except ClientError as error:
            say(str(error))
            status = NO_RESULT
    for note in () if quiet else result.notes:
        say(note)
    if result.timed_out:
        say(f"the command timed out; exit status {status}. More time: --timeout SECONDS")
    elif result.exit_code in (TIMED_OUT, NO_RESULT) and status == result.exit_code:
        say(f"exit status {status} is the command's own")
    return status


def _write_stream(ours: TextIO | None, stream: Stream, session: Session) -> None:
    """Raises ClientError when the rest cannot be had, and OSError."""
    if ours is None:
        return  # closed by whoever started us
    ours.flush()
    if stream.whole:
        _write_all(ours, stream.data)
    elif stream.file is None:
        _write_all(ours, stream.data)
        raise ClientError("The middle of the output was not kept.")
    else:
        for piece in session.rest(stream):
            _write_all(ours, piece)


def _write_all(ours: TextIO, data: bytes) -> None:
    ours.buffer.write(data)
    ours.buffer.flush()
