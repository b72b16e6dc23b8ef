"""A listening socket with a bound on the connections that are open, those in a TLS handshake among them.

What an HTTP server counts begins after the handshake; before it a connection costs the most memory and needs
no credential. Whoever holds connections on which nothing is asked must not keep out who asks: at the bound
the connection that has been silent for the longest is hung up on, in favour of the one that comes.
"""

import contextlib
import socket
from collections import Counter
from collections.abc import Callable
from typing import Any

from mcp_server.client_address import network_of


class BoundedListener(socket.socket):
    """At most `limit` connections are open, and `limit_per_address` from one address. Beyond that somebody
    new takes the place of a silent one, from the same address at its own limit; where none is silent the new
    one is hung up on."""

    def __init__(self, *arguments: Any, limit: int, limit_per_address: int, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._limit = limit
        self._limit_per_address = limit_per_address
        self._open: Counter[str] = Counter()
        # By descriptor; of the silent ones the longest silent first.
        self._accepted: dict[int, _Accepted] = {}
        self._silent: dict[int, _Accepted] = {}

    @classmethod
    def listen_on(cls, host: str, port: int, limit: int, limit_per_address: int) -> "BoundedListener":
        """`host` is an address, or "" for all of this machine. Raises OSError."""
        both = host == "" and socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if both or ":" in host else socket.AF_INET
        listener = socket.create_server((host, port), family=family, backlog=limit, dualstack_ipv6=both)
        return cls(fileno=listener.detach(), limit=limit, limit_per_address=limit_per_address)

    def listen(self, backlog: int = 0) -> None:
        """See socket.listen. The queue is as long as ever: what asyncio asks for here is also how many it
        accepts in one turn, which should be few."""
        super().listen(self._limit)

    def accept(self) -> tuple[socket.socket, Any]:
        """See socket.accept."""
        while True:
            connection, address = super().accept()
            network = network_of(address[0])
            if self._open.total() < self._limit and self._open[network] < self._limit_per_address:
                return self._taken(connection, network), address
            crowded = network if self._open[network] >= self._limit_per_address else None
            if self._hang_up_on_a_silent_one(crowded):
                return self._taken(connection, network), address
            connection.close()

    def asks(self, descriptor: int) -> None:
        """A request has come on this connection, which is not given up for another until `falls_silent`."""
        self._silent.pop(descriptor, None)

    def falls_silent(self, descriptor: int) -> None:
        """Nothing is asked on this connection now."""
        if (connection := self._accepted.get(descriptor)) is not None:
            self._silent.pop(descriptor, None)
            self._silent[descriptor] = connection

    def _taken(self, connection: socket.socket, network: str) -> "_Accepted":
        accepted = _Accepted(connection, network, self._release)
        self._open[network] += 1
        self._accepted[accepted.fileno()] = accepted
        self.falls_silent(accepted.fileno())
        return accepted

    def _hang_up_on_a_silent_one(self, network: str | None) -> bool:
        """The longest silent of all, or of one network. Its end is seen and its place given back soon."""
        for descriptor, connection in self._silent.items():
            if network is None or connection.network == network:
                del self._silent[descriptor]
                with contextlib.suppress(OSError):  # gone by itself
                    connection.shutdown(socket.SHUT_RDWR)
                return True
        return False

    def _release(self, connection: "_Accepted") -> None:
        descriptor = connection.fileno()
        self._accepted.pop(descriptor, None)
        self._silent.pop(descriptor, None)
        self._open[connection.network] -= 1
        if not self._open[connection.network]:
            del self._open[connection.network]


class _Accepted(socket.socket):
    """One that comes from `network`, and says when it is closed."""

    def __init__(
        self, connection: socket.socket, network: str, on_close: Callable[["_Accepted"], None]
    ) -> None:
        super().__init__(fileno=connection.detach())
        self.network = network
        self._on_close = on_close

    def close(self) -> None:
        """See socket.close."""
        if self.fileno() != -1:
            self._on_close(self)
        super().close()
