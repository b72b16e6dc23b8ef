"""Serves the typed tools over pipes, for a server that is not in the sandbox itself.

Requests come as lines of JSON on stdin, `{"id", "name", "arguments"}`, and are answered on stdout in any
order: `{"id", "result"}` or `{"id", "error"}`. The line READY goes out first, and in answer to START.
The end of stdin ends this
program and the processes that it started.
"""

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

from cli_mcp.execution import ToolFailed
from sandbox_agent.tools.toolbox import DEFAULT_ROOT, ROOT_VARIABLE, Toolbox

START = b"start\n"
READY = b'{"ready": true}\n'
_REQUEST_LIMIT_BYTES = 32 << 20
_STDIN, _STDOUT = 0, 1


class Runner:
    def __init__(self, toolbox: Toolbox, output: int) -> None:
        self._toolbox = toolbox
        self._output = output
        self._writing = asyncio.Lock()
        self._calls: set[asyncio.Task[None]] = set()

    async def serve(self, requests: asyncio.StreamReader) -> None:
        """Until there are no more requests."""
        await self._write(READY)
        while line := await requests.readline():
            if line == START:
                await self._write(READY)
                continue
            try:
                request = json.loads(line)
                number, name, arguments = request["id"], request["name"], request["arguments"]
            except (ValueError, TypeError, LookupError):
                continue  # what is left of a request that an earlier runner had begun to read
            call = asyncio.create_task(self._answer(number, name, arguments))
            self._calls.add(call)
            call.add_done_callback(self._calls.discard)

    async def _answer(self, number: int, name: str, arguments: dict[str, Any]) -> None:
        try:
            answer = {"id": number, "result": await self._toolbox.call(name, arguments)}
        except ToolFailed as error:
            answer = {"id": number, "error": str(error)}
        await self._write(json.dumps(answer).encode() + b"\n")

    async def _write(self, line: bytes) -> None:
        async with self._writing:
            await asyncio.to_thread(self._write_all, line)

    def _write_all(self, line: bytes) -> None:
        view = memoryview(line)
        while view:
            view = view[os.write(self._output, view) :]


async def main() -> None:
    loop = asyncio.get_running_loop()
    requests = asyncio.StreamReader(limit=_REQUEST_LIMIT_BYTES)
    # The tools' own children must not hold the pipes, nor print into them.
    source, output = os.dup(_STDIN), os.dup(_STDOUT)
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (_STDIN, _STDOUT):
        os.dup2(null, fd)
    with os.fdopen(source, "rb", buffering=0) as pipe:
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(requests), pipe)
        toolbox = Toolbox(Path(os.environ.get(ROOT_VARIABLE, DEFAULT_ROOT)), os.environ)
        try:
            await Runner(toolbox, output).serve(requests)
        finally:
            await toolbox.close()


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
