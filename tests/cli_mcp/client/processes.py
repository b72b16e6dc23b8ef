"""`cli-mcp` as a process that knows the token of the test's server."""

import asyncio
import sys
from asyncio.subprocess import DEVNULL, PIPE
from pathlib import Path

from tests.mcp_server.fake_backend import TOKEN

SCRIPT = "import sys, cli_mcp.cli; sys.exit(cli_mcp.cli.main())"


async def cli(tmp_path: Path, subcommand: str, *arguments: str) -> tuple[int | None, bytes, bytes]:
    """Exit status, stdout and stderr."""
    token = tmp_path / "token"
    token.write_text(TOKEN)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", SCRIPT, subcommand, "--token-file", str(token), *arguments),
        stdin=DEVNULL,
        stdout=PIPE,
        stderr=PIPE,
    )
    stdout, stderr = await process.communicate()
    return process.returncode, stdout, stderr
