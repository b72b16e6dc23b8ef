"""The calls that run right now: cancelled by their request's id, and waited for at the end.

Each is a task of its own, so that whoever waits for it may be torn down without cutting its clean-up short.
"""

import asyncio
import logging
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from cli_mcp.execution import KEEP_OUTPUT
from mcp_server.backend import SessionKey

logger = logging.getLogger(__name__)


class ShuttingDown(Exception):
    """No new call is taken any more."""

    def __init__(self) -> None:
        super().__init__("The server is shutting down and takes no new commands. Try again in a moment.")


class CallCancelled(Exception):
    """A call that ended before its command did."""


@dataclass(frozen=True, slots=True)
class CallKey:
    """What a cancellation names. Request ids are the clients' choice: two may well choose the same."""

    session: SessionKey
    request_id: int | str | None


T = TypeVar("T")


@dataclass(slots=True, eq=False)
class Call(Generic[T]):
    key: CallKey
    task: asyncio.Task[T]
    cancelled_because: str = ""

    async def wait(self, seconds: float | None) -> bool:
        """Whether the call is done, after `seconds` at most. Cancelling this does not cancel the call."""
        done, _ = await asyncio.wait({self.task}, timeout=seconds)
        return bool(done)

    def result(self) -> T:
        """The outcome of a call that is done; raises what its work raised, or CallCancelled."""
        if self.task.cancelled():
            because = self.cancelled_because or "The sandbox gave up"
            raise CallCancelled(f"{because}; the command was interrupted.")
        return self.task.result()

    def cancel(self, because: str = "The client went away", *, keep_output: bool = False) -> None:
        """Interrupt the command unless it is done. Once: its clean-up is not to be interrupted in turn.
        With `keep_output` the call still has a result where the command had begun."""
        if not self.cancelled_because and self.task.cancel(KEEP_OUTPUT if keep_output else None):
            self.cancelled_because = because


class RunningCalls:
    def __init__(self) -> None:
        self._calls: set[Call[Any]] = set()
        self._accepting = True

    def __len__(self) -> int:
        return len(self._calls)

    @property
    def accepting(self) -> bool:
        return self._accepting

    def start(self, key: CallKey, work: Coroutine[object, object, T]) -> Call[T]:
        """Raises ShuttingDown after `close`; then `work` has not begun."""
        if not self._accepting:
            work.close()
            raise ShuttingDown
        call = Call(key, asyncio.get_running_loop().create_task(work))
        self._calls.add(call)
        call.task.add_done_callback(lambda task: self._forget(call))
        return call

    def _forget(self, call: Call[Any]) -> None:
        self._calls.discard(call)
        # A call whose client went away has nobody left to ask what became of it.
        if call.cancelled_because and not call.task.cancelled() and (error := call.task.exception()):
            logger.info("a call that was cancelled ended with %s", type(error).__name__)

    def cancel(self, key: CallKey) -> None:
        """Cancel the one call that `key` names; none when two have that key, since either may be meant."""
        matching = [call for call in self._calls if call.key == key]
        if len(matching) == 1:
            matching[0].cancel("The client cancelled the call", keep_output=True)

    def cancel_all(self) -> None:
        for call in self._calls:
            call.cancel("The server is shutting down")

    def close(self) -> None:
        self._accepting = False

    async def finished(self) -> None:
        """Return when nothing runs."""
        while self._calls:
            await asyncio.wait({call.task for call in self._calls})
