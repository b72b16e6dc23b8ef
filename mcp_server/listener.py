"""A listening socket with a bound on the connections that are open, those in a TLS handshake among them.

What an HTTP server counts begins after the handshake, for which a client has a minute; before it a connection
costs the most memory and needs no credential.
"""

import socket
from typing import Any


class BoundedListener(socket.socket):
    """Hangs up at once on whoever comes when `limit` connections are open."""

    def __init__(self, *arguments: Any, limit: int, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._limit = limit
        self._open: set[int] = set()

    @classmethod
    def listen_on(cls, host: str, port: int, limit: int) -> "BoundedListener":
        """`host` is an address, or "" for all of this machine. Raises OSError."""
        both = host == "" and socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if both or ":" in host else socket.AF_INET
        listener = socket.create_server((host, port), family=family, backlog=limit, dualstack_ipv6=both)
        return cls(fileno=listener.detach(), limit=limit)

    def accept(self) -> tuple[socket.socket, Any]:
        """See socket.accept."""
        while True:
            connection, address = super().accept()
            if len(self._open) < self._limit:
                return _Accepted(connection, self._open), address
            connection.close()


class _Accepted(socket.socket):
    def __init__(self, connection: socket.socket, among: set[int]) -> None:
        super().__init__(fileno=connection.detach())
        self._among = among
        among.add(self.fileno())

    def close(self) -> None:
        """See socket.close."""
        self._among.discard(self.fileno())
        super().close()
