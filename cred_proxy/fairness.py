"""One client cannot take the proxy from the others: bounds on its connections, and turns for its work."""

import asyncio
import time
from collections import Counter, deque
from collections.abc import Callable

# In each pass of the event loop so much work is done at once; what is more waits for the next pass. A pass is
# what everybody waits for, several times in a request.
PASS_SECONDS = 0.001
# What a turn costs beside the work that is measured: a pass of the event loop, TLS, system calls.
TURN_SECONDS = 0.0001
# How long it takes until what a client has used counts half.
HALF_LIFE_SECONDS = 0.1
_FORGOTTEN_SECONDS = 1e-5


class ConnectionLimit:
    """Counts open connections by client. Not for use by several threads."""

    def __init__(self, per_client: int, total: int) -> None:
        self._per_client = per_client
        self._total = total
        self._open: Counter[str] = Counter()
        self._open_total = 0
        self.idle = asyncio.Event()
        """Set while no connection is open."""
        self.idle.set()

    def admit(self, client: str) -> bool:
        """Whether one more connection may be open; if so, it is counted until `release`."""
        if self._open[client] >= self._per_client or self._open_total >= self._total:
            if not self._open[client]:
                del self._open[client]
            return False
        self._open[client] += 1
        self._open_total += 1
        self.idle.clear()
        return True

    def crowded_out_by(self, client: str) -> str | None:
        """Who has to give one of its connections up, so that `client` may have one more: the one with the
        most, when all are taken and `client` has not nearly as many."""
        if self._open_total < self._total:
            return None
        largest, count = self._open.most_common(1)[0]
        return largest if count > self._open.get(client, 0) + 1 else None

    def release(self, client: str) -> None:
        self._open_total -= 1
        self._open[client] -= 1
        if not self._open[client]:
            del self._open[client]
        if not self._open_total:
            self.idle.set()

    def connections_of(self, client: str) -> int:
        return self._open.get(client, 0)

    @property
    def open_connections(self) -> int:
        return self._open_total


class Turns:
    """Shares the time of one event loop out among clients.

    Work is done at once while the pass of the loop has time for it, or when the client has used less than
    half of what the greediest has. Otherwise it waits, and whose client has used least comes first. A client
    that is alone gets all there is; beside others one with sixty busy connections gets as much as one
    with a single one.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._waiting: dict[str, deque[Callable[[], None]]] = {}
        self._used: dict[str, float] = {}
        self._most = 0.0
        self._left = PASS_SECONDS
        self._halved = clock()
        self._scheduled = False

    def run(self, client: str, work: Callable[[], None]) -> None:
        """Call `work` now, or in a later pass of the event loop; the works of a client in their order."""
        if self.has_time_for(client):
            self._do(client, work)
        else:
            self._wait(client, work)

    async def take(self, client: str, seconds: float = TURN_SECONDS) -> None:
        """Returns when it is the client's turn, for work that takes so long."""
        if self.has_time_for(client):
            self.charge(client, seconds)
            return
        turn = asyncio.get_running_loop().create_future()

        def begin() -> None:
            # A connection that was closed meanwhile has given its turn up.
            if not turn.done():
                turn.set_result(None)
                self.charge(client, seconds)

        self._wait(client, begin)
        await turn

    def has_time_for(self, client: str) -> bool:
        """Whether work of this client would be done at once."""
        if client in self._waiting:
            return False
        return self._left > 0 or 2 * self._used.get(client, 0.0) < self._most

    def charge(self, client: str, seconds: float) -> None:
        """The client has used so much of the loop's time."""
        used = self._used[client] = self._used.get(client, 0.0) + seconds
        if used > self._most:
            self._most = used
        self._left -= seconds
        if self._left <= 0 and not self._scheduled:
            self._schedule()

    def _wait(self, client: str, work: Callable[[], None]) -> None:
        self._waiting.setdefault(client, deque()).append(work)
        self._schedule()

    def _do(self, client: str, work: Callable[[], None]) -> None:
        started = self._clock()
        try:
            work()
        finally:
            self.charge(client, TURN_SECONDS + self._clock() - started)

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._next_pass)

    def _next_pass(self) -> None:
        self._scheduled = False
        self._left = PASS_SECONDS
        self._forget()
        while self._waiting and self._left > 0:
            client = min(self._waiting, key=lambda name: self._used.get(name, 0.0))
            queue = self._waiting[client]
            work = queue.popleft()
            if not queue:
                del self._waiting[client]
            self._do(client, work)
        if self._waiting:
            self._schedule()

    def _forget(self) -> None:
        now = self._clock()
        if now - self._halved < HALF_LIFE_SECONDS:
            return
        share = 0.5 ** ((now - self._halved) / HALF_LIFE_SECONDS)
        self._halved = now
        self._used = {
            client: used * share
            for client, used in self._used.items()
            if used * share > _FORGOTTEN_SECONDS or client in self._waiting
        }
        self._most = max(self._used.values(), default=0.0)
