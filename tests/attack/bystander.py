"""What an innocent session notices of the others: the time of its calls, quiet and under attack."""

import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

# What any one attacker may cost a bystander, and any six together. The median counts in multiples of the same
# session's median just before, since machines differ.
SLOWER_AT_MOST = 3.0
LONGEST_BESIDE_ONE_SECONDS = 0.3
LONGEST_BESIDE_SIX_SECONDS = 1.0
# A median below this is as good as none: no ratio is asked of it.
_UNNOTICED_SECONDS = 0.015
_QUIET_CALLS = 100
_PAUSE_SECONDS = 0.005

Call = Callable[[], object]


@dataclass
class Figures:
    """Times of calls in seconds; `failures` are calls that raised."""

    seconds: list[float] = field(default_factory=list)
    failures: list[BaseException] = field(default_factory=list)

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def longest(self) -> float:
        return max(self.seconds)

    def __str__(self) -> str:
        if not self.seconds:
            return "no call came back"
        return f"{len(self.seconds)} calls, p50 {self.median * 1000:.1f} ms, max {self.longest * 1000:.0f} ms"


def time_call(call: Call, figures: Figures) -> None:
    """One call; what it raises is kept, not raised."""
    started = time.monotonic()
    try:
        call()
    except Exception as error:  # noqa: BLE001  # what a bystander sees is what the test is about
        figures.failures.append(error)
    figures.seconds.append(time.monotonic() - started)


def quiet(call: Call, calls: int = _QUIET_CALLS) -> Figures:
    """The figures of a number of calls, one after the other, while nothing else happens."""
    figures = Figures()
    for _ in range(calls):
        time_call(call, figures)
    return figures


@contextmanager
def calling(call: Call) -> Iterator[Figures]:
    """Calls one after the other in a thread of their own, for as long as the block runs."""
    figures, stop = Figures(), threading.Event()

    def work() -> None:
        while not stop.wait(_PAUSE_SECONDS):
            time_call(call, figures)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield figures
    finally:
        stop.set()
        thread.join()


def assert_unharmed(name: str, before: Figures, beside: Figures, *, attackers: int = 1) -> None:
    """Prints both and holds the second to the bounds above, for one attacker or for several (up to six)."""
    print(f"{name}, {attackers} attacker(s): quiet {before}; under attack {beside}")
    longest = LONGEST_BESIDE_ONE_SECONDS if attackers == 1 else LONGEST_BESIDE_SIX_SECONDS
    assert beside.failures == []
    assert len(beside.seconds) >= 10, "too few calls to say anything"
    assert beside.longest <= longest
    assert beside.median <= max(SLOWER_AT_MOST * before.median, _UNNOTICED_SECONDS)
