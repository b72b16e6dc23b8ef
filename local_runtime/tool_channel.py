"""Calls of the typed tools in one sandbox, over two pipes to what `tool_helper` has running there.

Everything that arrives may have been written by any process of the sandbox. It is read only while a call
waits, in bounded memory, and what is not exactly an answer to it ends all calls that wait.
"""

import asyncio
import json
import os
import select
from collections.abc import Mapping

from cli_mcp import strict_json
from cli_mcp.execution import ExecutionError, SandboxUnavailable, SessionBusy, ToolFailed
from local_runtime.tool_helper import ENDED_LINE, START_LINE
from sandbox_agent.paced import Pace, PacedReader
from sandbox_agent.tools.runner import READY

ANSWER_LIMIT_BYTES = 2 << 20
MAX_WAITING_CALLS = 16
_START_SECONDS = 15.0
_READ_BYTES = 1 << 18
# A call that waits is ended by nonsense long before it counts as a flood.
_PACE = Pace(1 << 16, burst_seconds=0.1, share=0.05, flood_bytes=1 << 40)
# An honest other end says nothing but answers, each once; and seldom, when it was started again, READY.
_IDLE_LINES = 32
# More does not lie in a pipe that nobody reads.
_STALE_LIMIT_BYTES = 1 << 20
_ERROR_CHARACTERS = 2_000

_KILLED = (
    "The process that serves this tool in the sandbox was killed while the call ran, perhaps for lack of "
    "memory; whether the call took effect is unknown. Processes that it had started are not known any more. "
    "Look at what there is and call again."
)
_GONE = (
    "What serves this tool in the sandbox was killed, perhaps by a command like `kill -9 -1`. It starts "
    "again with the next call at which nothing else runs there: end commands and background processes."
)
_ENDED = "The sandbox ended while the tool was called. Call again to get a new one; files stay."
_NONSENSE = (
    "What serves this tool in the sandbox gave no valid answer; a process of the sandbox may interfere. "
    "Whether the call took effect is unknown."
)


class ToolChannel:
    """Owns both descriptors, which are those of pipes, from the construction to `close`."""

    def __init__(self, requests: int, answers: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._requests, self._answers = requests, answers
        self._buffer = bytearray()
        self._searched = 0  # so much of it has no line feed
        self._idle_lines = 0
        self._reader = PacedReader(answers, _PACE, self._read, on_flood=self._end_nonsense)
        self._waiting: dict[int, asyncio.Future[Mapping[str, object]]] = {}
        self._ready: asyncio.Future[None] | None = None
        self._number = 0
        self._closed = False
        self._sending = asyncio.Lock()
        self._blocked: asyncio.Future[None] | None = None  # while the pipe is full
        for fd in (requests, answers):
            os.set_blocking(fd, False)

    @property
    def gone(self) -> bool:
        """Whether nothing is at the other end any more."""
        poll = select.poll()
        poll.register(self._answers, 0)
        return any(event & select.POLLHUP for _, event in poll.poll(0))

    async def call(
        self, name: str, arguments: Mapping[str, object], timeout_seconds: float
    ) -> Mapping[str, object]:
        """The tool's result as it came. Raises ToolFailed when the tool says no, and ExecutionError."""
        if self._closed:
            raise SandboxUnavailable(_ENDED)
        if self.gone:
            raise SandboxUnavailable(_GONE)
        if len(self._waiting) >= MAX_WAITING_CALLS:
            raise SessionBusy("Too many calls of the session run at the same time. Try again in a moment.")
        self._number += 1
        request = {"id": self._number, "name": name, "arguments": arguments}
        number, answer = self._number, self._loop.create_future()
        self._waiting[number] = answer
        self._listen()
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._start()
                await self._send(json.dumps(request).encode() + b"\n")
                result: Mapping[str, object] = await answer
                return result
        except TimeoutError:
            self._ready = None  # a request may be in the pipe in part
            raise ExecutionError(
                f"The tool gave no answer within {timeout_seconds:g} s; whether it took effect is unknown."
            ) from None
        finally:
            del self._waiting[number]
            if answer.done() and not answer.cancelled():
                answer.exception()  # which nobody awaits when sending failed first
            self._listen()

    def close(self) -> None:
        if not self._closed:
            self._fail(SandboxUnavailable(_ENDED))
            self._reader.close()
            self._loop.remove_writer(self._requests)
            if self._blocked is not None:
                _set(self._blocked)
            self._closed = True
            os.close(self._requests)
            os.close(self._answers)

    async def _start(self) -> None:
        """Have the program run. Raises ExecutionError."""
        if len(self._waiting) == 1 and ENDED_LINE in self._drop_stale_answers():
            self._ready = None
        if self._ready is None:
            self._ready = self._loop.create_future()
            await self._send(START_LINE)
        ready = self._ready
        try:
            async with asyncio.timeout(_START_SECONDS):
                await asyncio.shield(ready)
        except TimeoutError:
            self._ready = None
            raise SandboxUnavailable(_GONE) from None

    async def _send(self, data: bytes) -> None:
        """One request at a time goes into the pipe, as fast as the other end reads."""
        async with self._sending:
            view = memoryview(data)
            while view:
                if self._closed:
                    raise SandboxUnavailable(_ENDED)
                try:
                    view = view[os.write(self._requests, view) :]
                except BlockingIOError:
                    await self._writable()
                except BrokenPipeError:
                    raise SandboxUnavailable(_GONE) from None

    async def _writable(self) -> None:
        self._blocked = self._loop.create_future()
        self._loop.add_writer(self._requests, _set, self._blocked)
        try:
            await self._blocked
        finally:
            self._blocked = None
            if not self._closed:
                self._loop.remove_writer(self._requests)

    def _listen(self) -> None:
        """Read while somebody waits: whoever floods the pipe otherwise waits himself."""
        if self._closed:
            return
        if self._waiting:
            self._reader.start()
        else:
            self._reader.stop()

    def _drop_buffer(self) -> None:
        self._buffer.clear()
        self._searched = self._idle_lines = 0

    def _drop_stale_answers(self) -> bytearray:
        """What came while no call waited."""
        dropped = bytearray(self._buffer)
        self._drop_buffer()
        while len(dropped) < _STALE_LIMIT_BYTES:
            try:
                data = os.read(self._answers, _READ_BYTES)
            except BlockingIOError:
                break
            if not data:
                break
            dropped += data
        return dropped

    def _read(self, data: bytes) -> None:
        if not data:
            self._fail(SandboxUnavailable(_GONE))
            return
        self._buffer += data
        while (end := self._buffer.find(b"\n", self._searched)) >= 0:
            line = bytes(self._buffer[: end + 1])
            del self._buffer[: end + 1]
            self._searched = 0
            try:
                self._take(line)
            except strict_json.MalformedMessage:
                self._end_nonsense()
        self._searched = len(self._buffer)
        if self._searched > ANSWER_LIMIT_BYTES:
            self._end_nonsense()

    def _end_nonsense(self) -> None:
        """What else has come is not looked at: a flood costs one line."""
        self._fail(ExecutionError(_NONSENSE))

    def _take(self, line: bytes) -> None:
        """Raises MalformedMessage."""
        if line == ENDED_LINE:
            self._fail(ExecutionError(_KILLED))
        elif not (self._is_ready() if line == READY else self._answer(line)):
            self._idle_lines += 1
            if self._idle_lines > _IDLE_LINES:
                raise strict_json.MalformedMessage("many lines that nobody waits for")

    def _is_ready(self) -> bool:
        """Whether that was waited for."""
        if self._ready is None or self._ready.done():
            return False
        self._ready.set_result(None)
        return True

    def _answer(self, line: bytes) -> bool:
        """Whether it is of a call that waits. Raises MalformedMessage."""
        value = strict_json.parse(line)
        if not isinstance(value, dict) or type(value.get("id")) is not int:
            raise strict_json.MalformedMessage("no answer")
        if not 0 < value["id"] <= self._number:
            raise strict_json.MalformedMessage("the answer to no call")
        waiting = self._waiting.get(value["id"])
        if waiting is None or waiting.done():
            return False  # of a call that nobody waits for any more
        match value:
            case {"result": dict(result), **rest} if rest.keys() == {"id"}:
                waiting.set_result(result)
            case {"error": str(message), **rest} if rest.keys() == {"id"}:
                waiting.set_exception(ToolFailed(message[:_ERROR_CHARACTERS]))
            case _:
                raise strict_json.MalformedMessage("neither result nor error")
        self._idle_lines = 0
        return True

    def _fail(self, error: ExecutionError) -> None:
        """End all calls that wait; the next one starts afresh. Nothing is read until then."""
        self._reader.stop()
        self._drop_buffer()
        if self._ready is not None and not self._ready.done():
            self._ready.set_exception(error)
            self._ready.exception()  # also when nobody waits for it any more
        self._ready = None
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(error)


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
