"""Takes connections off a listening socket, so that those a client may not have cost next to nothing.

asyncio's own server makes a transport and a task of each before anybody can look at it.
"""

import asyncio
import errno
import socket
from collections.abc import Callable

# In one pass of the event loop. What is not accepted waits in the kernel, and everybody behind it.
_AT_ONCE = 128
# While the process has no file descriptors left (accept(2)), nothing is accepted.
_NO_MORE = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_RETRY_SECONDS = 0.5

Accepted = Callable[[socket.socket, str], None]
"""What to do with a connection of a peer (an IP address, or `local`)."""


class Acceptor:
    """From the construction to `close`, which closes the socket."""

    def __init__(self, sock: socket.socket, backlog: int, accepted: Accepted) -> None:
        sock.setblocking(False)
        sock.listen(backlog)
        self._socket = sock
        self._accepted = accepted
        self._loop = asyncio.get_running_loop()
        self._retry: asyncio.TimerHandle | None = None
        self._loop.add_reader(sock, self._accept)

    def close(self) -> None:
        if self._retry is not None:
            self._retry.cancel()
        if self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket)
            self._socket.close()

    def _accept(self) -> None:
        for _ in range(_AT_ONCE):
            try:
                connection, address = self._socket.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno in _NO_MORE:
                    self._loop.remove_reader(self._socket)
                    self._retry = self._loop.call_later(
                        _RETRY_SECONDS, self._loop.add_reader, self._socket, self._accept
                    )
                    return
                continue  # of that one connection, which has ended already
            connection.setblocking(False)
            self._accepted(connection, str(address[0]) if isinstance(address, tuple) else "local")
