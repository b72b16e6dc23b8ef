"""Serves the typed tools over pipes, for a server that is not in the sandbox itself.

Requests come as lines of JSON on stdin, `{"id", "name", "arguments"}`, and are answered on stdout in any
order: `{"id", "result"}` or `{"id", "error"}`. The line READY goes out first, and in answer to START.
The end of stdin ends this program and the processes that it started.
"""

import asyncio
import ctypes
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

from cli_mcp.execution import ROOT_VARIABLE, ToolFailed
from sandbox_agent.tools.toolbox import DEFAULT_ROOT, Toolbox

START = b"start\n"
READY = b'{"ready": true}\n'
_STDIN, _STDOUT = 0, 1
_PR_SET_NAME = 15  # prctl(2)

_prctl = ctypes.CDLL(None).prctl


class Runner:
    def __init__(self, toolbox: Toolbox, output: int) -> None:
        self._toolbox = toolbox
        self._output = output
        self._writing = asyncio.Lock()
        self._calls: set[asyncio.Task[None]] = set()

    async def serve(self, requests: BinaryIO) -> None:
        """Until there are no more requests. Whoever starts this program again reads the same pipe, so that it
        stays a blocking one."""
        await self._write(READY)
        while line := await asyncio.to_thread(requests.readline):
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


async def main(arguments: Sequence[str]) -> None:
    """`--without NAME...` are variables that are for this program and not for the processes it starts."""
    without = arguments[1:]
    _prctl(_PR_SET_NAME, b"cli-mcp-tools", 0, 0, 0)  # `pkill python` is nothing unusual in a sandbox
    # The tools' own children must not hold the pipes, nor print into them.
    source, output = os.dup(_STDIN), os.dup(_STDOUT)
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (_STDIN, _STDOUT):
        os.dup2(null, fd)
    environment = {name: value for name, value in os.environ.items() if name not in without}
    toolbox = Toolbox(Path(environment.get(ROOT_VARIABLE, DEFAULT_ROOT)), environment)
    try:
        await Runner(toolbox, output).serve(os.fdopen(source, "rb"))
    finally:
        await toolbox.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
