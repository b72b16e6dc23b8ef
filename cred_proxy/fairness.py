"""One client cannot take the proxy from the others: a bound on its connections, and turns for its work."""

import asyncio
from collections import Counter, deque


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
            return False
        self._open[client] += 1
        self._open_total += 1
        self.idle.clear()
        return True

    def release(self, client: str) -> None:
        self._open_total -= 1
        self._open[client] -= 1
        if not self._open[client]:
            del self._open[client]
        if not self._open_total:
            self.idle.set()

    def is_connected(self, client: str) -> bool:
        return client in self._open

    @property
    def open_connections(self) -> int:
        return self._open_total


class Turns:
    """Round robin over clients for the work of one event loop: one turn per client in each of its passes.

    A handshake, the head of a request and a chunk of a body are a turn each. A client that is alone never
    waits longer than a pass, and one with sixty busy connections gets as much as one with a single one.
    """

    def __init__(self) -> None:
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        self._served: set[str] = set()
        self._scheduled = False

    async def take(self, client: str) -> None:
        """Returns when it is the client's turn."""
        if client not in self._served and client not in self._waiting:
            self._serve(client)
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(client, deque()).append(turn)
        await turn

    def _serve(self, client: str) -> None:
        self._served.add(client)
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._next_pass)

    def _next_pass(self) -> None:
        self._scheduled = False
        self._served.clear()
        for client in list(self._waiting):
            queue = self._waiting[client]
            while queue:
                turn = queue.popleft()
                # A connection that was closed meanwhile has given its turn up.
                if not turn.done():
                    turn.set_result(None)
                    self._serve(client)
                    break
            if not queue:
                del self._waiting[client]
