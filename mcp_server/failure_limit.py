"""How often an address may fail: a limit on guesses that leaves alone who does not guess."""

from collections import OrderedDict

from mcp_server.client_address import network_of

FAILURES_AT_ONCE, FAILURES_PER_SECOND = 20, 1
_ADDRESSES = 10_000


class FailureLimit:
    """FAILURES_AT_ONCE for each address, refilled by FAILURES_PER_SECOND (token bucket). `now` is a clock in
    seconds."""

    def __init__(self) -> None:
        self._spent: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, address: str, now: float) -> bool:
        """Whether that address may fail once more; a success is to be given back."""
        network = network_of(address)
        spent = self._current(network, now)
        if spent + 1 > FAILURES_AT_ONCE:
            return False
        self._set(network, spent + 1, now)
        return True

    def give_back(self, address: str, now: float) -> None:
        network = network_of(address)
        self._set(network, max(0.0, self._current(network, now) - 1), now)

    def _current(self, network: str, now: float) -> float:
        spent, at = self._spent.get(network, (0.0, now))
        return max(0.0, spent - (now - at) * FAILURES_PER_SECOND)

    def _set(self, network: str, spent: float, now: float) -> None:
        self._spent.pop(network, None)
        self._spent[network] = (spent, now)
        if len(self._spent) > _ADDRESSES:
            self._spent.popitem(last=False)
