"""A listening socket with a bound on the connections that are open, those in a TLS handshake among them.

What an HTTP server counts begins after the handshake; before it a connection costs the most memory and needs
no credential.
"""

import socket
from collections import Counter
from typing import Any

from mcp_server.client_address import network_of


class BoundedListener(socket.socket):
    """Hangs up at once on whoever comes when `limit` connections are open, or `limit_per_address` from
    there."""

    def __init__(self, *arguments: Any, limit: int, limit_per_address: int, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._limit = limit
        self._limit_per_address = limit_per_address
        self._open: Counter[str] = Counter()

    @classmethod
    def listen_on(cls, host: str, port: int, limit: int, limit_per_address: int) -> "BoundedListener":
        """`host` is an address, or "" for all of this machine. Raises OSError."""
        both = host == "" and socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if both or ":" in host else socket.AF_INET
        listener = socket.create_server((host, port), family=family, backlog=limit, dualstack_ipv6=both)
        return cls(fileno=listener.detach(), limit=limit, limit_per_address=limit_per_address)

    def accept(self) -> tuple[socket.socket, Any]:
        """See socket.accept."""
        while True:
            connection, address = super().accept()
            network = network_of(address[0])
            if self._open.total() < self._limit and self._open[network] < self._limit_per_address:
                return _Accepted(connection, network, self._open), address
            connection.close()


class _Accepted(socket.socket):
    """Counted in `among`, by where it comes from, until it is closed."""

    def __init__(self, connection: socket.socket, network: str, among: Counter[str]) -> None:
        super().__init__(fileno=connection.detach())
        self._network = network
        self._among = among
        among[network] += 1

    def close(self) -> None:
        """See socket.close."""
        if self.fileno() != -1:
            self._among[self._network] -= 1
            if not self._among[self._network]:
                del self._among[self._network]
        super().close()
