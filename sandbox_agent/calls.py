"""Every call that was accepted, by the `jti` of its token, so that none runs twice.

A call runs by itself; connections follow it and may come and go. One that nobody follows for a while is
interrupted.
"""

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from cli_mcp.agent_api import Failure, FailureKind, RefusalKind
from cli_mcp.execution import KEEP_OUTPUT, ExecutionError, Progress, ProgressCallback
from sandbox_agent.refused import Refused

_log = logging.getLogger(__name__)

RECONNECT_SECONDS = 5.0
"""How long a call runs on that no connection follows."""
KEEP_SECONDS = 180.0
"""How long an ended call is known: as long as its token could be accepted once more. That is until 60 s after
its `exp`, which is at most 120 s after the call came, since its signer's clock may be 60 s ahead."""
_CALL_BYTES = 4096  # an estimate of what a call takes beside its result

Work = Callable[[ProgressCallback], Awaitable[bytes]]
"""Does what a call asks for and returns the answer, encoded. Raises ExecutionError."""
EncodeFailure = Callable[[Failure], bytes]


@dataclass(frozen=True, slots=True)
class CallLimits:
    """`results_bytes` is for all results that are kept for whoever asks again; beyond it the oldest are
    forgotten. That they were there is not, up to `finished` of them."""

    running: int = 64
    finished: int = 1 << 16
    results_bytes: int = 8 << 20


class Call:
    """One that runs, or has run. `content` tells it from another one; `failed` says, at the end, that its
    answer is a Failure."""

    def __init__(self, content: str, work: Work, encode: EncodeFailure) -> None:
        self.content = content
        self.failed = False
        self._encode = encode
        self._loop = asyncio.get_running_loop()
        self._followers = 0
        self._progress: Progress | None = None
        self._news = self._loop.create_future()
        self._interruption: str | None = None
        self._task = self._loop.create_task(self._perform(work))
        self._task.add_done_callback(self._ended)
        self._lonely = self._loop.call_later(RECONNECT_SECONDS, self._abandon)

    async def follow(self) -> AsyncGenerator[Progress, None]:
        """Progress until the call has ended; close the iterator to let go of it."""
        with self._followed():
            while not self._task.done():
                await asyncio.wait((self._task, news := self._news), return_when=asyncio.FIRST_COMPLETED)
                if news.done() and self._progress is not None:
                    yield self._progress

    async def ends_within(self, seconds: float) -> bool:
        """Whether it has ended, after `seconds` at most, in which it is followed."""
        with self._followed():
            await asyncio.wait((self._task,), timeout=seconds)
            return self._task.done()

    @contextmanager
    def _followed(self) -> Iterator[None]:
        self._followers += 1
        self._lonely.cancel()
        try:
            yield
        finally:
            self._followers -= 1
            if self._followers == 0 and not self._task.done():
                self._lonely = self._loop.call_later(RECONNECT_SECONDS, self._abandon)

    async def result(self) -> bytes:
        """The encoded answer."""
        return await asyncio.shield(self._task)

    def interrupt(self, reason: str, *, keep_output: bool = False) -> None:
        """End it soon; its result says `reason`, or with `keep_output` what it gave until then. Nothing
        happens when it has ended."""
        if self._interruption is None and not self._task.done():
            self._interruption = reason
            # Not before it has begun: cancelled earlier, a task has no result.
            self._loop.call_soon(self._task.cancel, KEEP_OUTPUT if keep_output else None)

    def on_end(self, callback: Callable[[int], None]) -> None:
        """Have `callback` called, at the end, with the length of the result."""
        self._task.add_done_callback(lambda task: callback(len(task.result()) if _has_result(task) else 0))

    def _abandon(self) -> None:
        self.interrupt(
            f"It was interrupted: no connection had asked for its result for {RECONNECT_SECONDS:g} s."
        )

    async def _perform(self, work: Work) -> bytes:
        try:
            return await work(self._publish)
        except ExecutionError as error:
            failure = Failure.of(error)
        except asyncio.CancelledError:
            if self._interruption is None:
                raise
            failure = Failure(FailureKind.INTERRUPTED, self._interruption)
        self.failed = True
        return self._encode(failure)

    def _publish(self, progress: Progress) -> None:
        self._progress = progress
        news, self._news = self._news, self._loop.create_future()
        news.set_result(None)

    def _ended(self, task: "asyncio.Task[bytes]") -> None:
        self._lonely.cancel()
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("a call ended by an error of the agent's own", exc_info=error)


def _has_result(task: "asyncio.Task[bytes]") -> bool:
    return not task.cancelled() and task.exception() is None


@dataclass(slots=True)
class _Finished:
    at: float
    call: Call | None  # None once it is forgotten
    kept_bytes: int


class CallTable:
    """`clock` gives seconds and never goes back."""

    def __init__(
        self,
        limits: CallLimits = CallLimits(),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limits = limits
        self._clock = clock
        self._running: dict[str, Call] = {}
        self._finished: OrderedDict[str, _Finished] = OrderedDict()
        self._kept: OrderedDict[str, None] = OrderedDict()  # of the finished ones those with a result
        self._kept_bytes = 0

    def knows(self, jti: str) -> bool:
        """Whether a call with this `jti` was accepted already."""
        self._forget_old()
        return jti in self._running or jti in self._finished

    def enter(self, jti: str, content: str, work: Work, encode: EncodeFailure) -> Call:
        """The call with this `jti`, started now if there was none. Raises Refused: MALFORMED when it was one
        for something else, TOO_MANY_CALLS."""
        call = self._find(jti, encode)
        if call is None:
            return self._start(jti, content, work, encode)
        if call.content not in (content, _FORGOTTEN):
            raise Refused(RefusalKind.MALFORMED, "the jti was used for another request")
        return call

    def interrupt(self, jti: str, reason: str) -> None:
        """End the call with this `jti` soon, if it runs, and keep its output."""
        if (call := self._running.get(jti)) is not None:
            call.interrupt(reason, keep_output=True)

    def _find(self, jti: str, encode: EncodeFailure) -> Call | None:
        if (call := self._running.get(jti)) is not None:
            return call
        if (finished := self._finished.get(jti)) is None:
            return None
        return finished.call or Call(_FORGOTTEN, _say_forgotten, encode)

    def _start(self, jti: str, content: str, work: Work, encode: EncodeFailure) -> Call:
        self._forget_old()
        if len(self._running) >= self._limits.running or len(self._finished) >= self._limits.finished:
            raise Refused(RefusalKind.TOO_MANY_CALLS, "too many calls run, or ran in the last minutes")
        call = self._running[jti] = Call(content, work, encode)
        call.on_end(lambda result_bytes: self._finish(jti, result_bytes))
        return call

    def _finish(self, jti: str, result_bytes: int) -> None:
        finished = _Finished(self._clock(), self._running.pop(jti), result_bytes + _CALL_BYTES)
        self._finished[jti] = finished
        self._kept[jti] = None
        self._kept_bytes += finished.kept_bytes
        # The newest stays, however large it is: it is the one that somebody may ask for again.
        while self._kept_bytes > self._limits.results_bytes and len(self._kept) > 1:
            self._drop_result(next(iter(self._kept)))

    def _forget_old(self) -> None:
        until = self._clock() - KEEP_SECONDS
        while self._finished and next(iter(self._finished.values())).at < until:
            jti = next(iter(self._finished))
            if jti in self._kept:
                self._drop_result(jti)
            del self._finished[jti]

    def _drop_result(self, jti: str) -> None:
        finished = self._finished[jti]
        del self._kept[jti]
        self._kept_bytes -= finished.kept_bytes
        finished.call = None


_FORGOTTEN = ""


async def _say_forgotten(on_progress: ProgressCallback) -> bytes:
    raise ExecutionError("It has run, and its result is no longer kept.")
