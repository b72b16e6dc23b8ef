"""`cli-mcp call`: runs one command in a session and becomes its output and exit status."""

import asyncio
import os
import sys

from cli_mcp.client.connection import ClientError, OnProgress, Result, Target, connect
from cli_mcp.client.options import EXIT_INTERRUPTED, EXIT_NO_RESULT, parser, target
from cli_mcp.client.progress import ProgressLine

_DEFAULT_SESSION = "cli"
_EXIT_BROKEN_PIPE = 141  # 128 + SIGPIPE


def main(arguments: list[str]) -> int:
    options = parser("call", "Run one command in a session of a running server.")
    options.add_argument("command", help="what bash runs")
    options.add_argument("--session", default=_DEFAULT_SESSION, help=f"default: {_DEFAULT_SESSION}")
    chosen = options.parse_intermixed_args(arguments)
    progress = ProgressLine(sys.stderr)
    try:
        result = asyncio.run(
            run_once(target(chosen, chosen.session), chosen.command, chosen.timeout, progress.show)
        )
    except ClientError as error:
        progress.clear()
        print(f"cli-mcp: {error}", file=sys.stderr)
        return EXIT_NO_RESULT
    except KeyboardInterrupt:
        progress.clear()
        return EXIT_INTERRUPTED
    progress.clear()
    try:
        write(result)
    except BrokenPipeError:
        # What is left in the buffer would fail once more when the interpreter ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _EXIT_BROKEN_PIPE
    return result.exit_code


async def run_once(
    to: Target, command: str, timeout_seconds: float | None, on_progress: OnProgress
) -> Result:
    """Raises ClientError."""
    async with connect(to) as session:
        return await session.run(command, timeout_seconds, on_progress)


def write(result: Result) -> None:
    """The command's output, byte for byte, and where the rest of it is."""
    for stream, output in ((sys.stdout, result.stdout), (sys.stderr, result.stderr)):
        stream.flush()
        stream.buffer.write(output)
        stream.buffer.flush()
    if result.truncated:
        where = f"; in the sandbox see {result.output_file}" if result.output_file else ""
        print(f"cli-mcp: the output was cut{where}", file=sys.stderr)
