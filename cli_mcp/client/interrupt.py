"""Ctrl-C while a command runs: the first interrupts the command, whose output so far still comes."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from cli_mcp.client.connection import ClientError, Connection, Target

_PATIENCE_SECONDS = 10


@contextmanager
def cancelled_by_ctrl_c(target: Target, request_id: str) -> Iterator[list[bool]]:
    """The list is not empty once the call was cancelled. Raises KeyboardInterrupt when there is no answer
    within 10 s after that, and at once at the second Ctrl-C, or when the server cannot be told."""
    cancelled: list[bool] = []

    def on_interrupt(number: int, frame: FrameType | None) -> None:
        if cancelled:
            raise KeyboardInterrupt
        cancelled.append(True)
        signal.alarm(_PATIENCE_SECONDS)
        canceller = Connection(target)  # the call's own waits for the result
        try:
            canceller.cancel(request_id)
        except ClientError:
            raise KeyboardInterrupt from None
        finally:
            canceller.close()

    def on_alarm(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, on_interrupt), signal.signal(signal.SIGALRM, on_alarm)
    try:
        yield cancelled
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGINT, before[0])
        signal.signal(signal.SIGALRM, before[1])
