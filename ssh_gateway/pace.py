"""What a client's input may cost: a burst of the gateway's time, and a share of it in the long run.

All connections are served by one thread. Who sends what takes more than its share waits, and nobody else.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

# What is remembered of addresses and users; each takes some hundred bytes.
_REMEMBERED = 20_000


@dataclass(frozen=True, slots=True)
class Pace:
    """Of what a payer's connections send together. A turn ends after `turn_seconds` or `turn_bytes`, so that
    others have theirs; all turns may take `burst_seconds` of the processor at once and `share` of it in the
    long run."""

    turn_seconds: float = 0.001
    turn_bytes: int = 16 * 1024
    burst_seconds: float = 0.05
    share: float = 0.05


class Debt:
    """What one payer has taken and not yet waited for. `clock` gives seconds."""

    def __init__(self, pace: Pace, clock: Callable[[], float]) -> None:
        self._pace = pace
        self._clock = clock
        self._owed_seconds = 0.0
        self._owed_at = clock()

    def charge(self, seconds: float) -> None:
        """Note that so much of the processor's time was taken, or with a negative value given back."""
        now = self._clock()
        paid = (now - self._owed_at) * self._pace.share
        self._owed_seconds = max(0.0, max(0.0, self._owed_seconds - paid) + seconds)
        self._owed_at = now

    def delay_seconds(self) -> float:
        """How long from now the payer's next turn has to wait; 0 when it need not."""
        self.charge(0)
        return max(0.0, self._owed_seconds - self._pace.burst_seconds) / self._pace.share


class Debts:
    """The debt of each payer, also while it has no connection: closing one pays nothing."""

    def __init__(self, pace: Pace, clock: Callable[[], float]) -> None:
        self._pace = pace
        self._clock = clock
        self._debts: OrderedDict[str, Debt] = OrderedDict()

    def of(self, payer: str) -> Debt:
        debt = self._debts.pop(payer, None) or Debt(self._pace, self._clock)
        self._debts[payer] = debt
        if len(self._debts) > _REMEMBERED:
            self._debts.popitem(last=False)
        return debt
