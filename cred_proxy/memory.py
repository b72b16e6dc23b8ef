"""What a connection may hold in memory, in bytes; how sockets, transports and the allocator are held to it.

A request has two connections, the client's and the origin's. The larger of two ways to fill them counts: what
goes up and is not read by the origin, or what comes down and is not read by the client.
"""

import asyncio
import ctypes
import socket
from typing import Any

# A whole request head, as in nginx. Parsed it is held three times: as bytes, as text, and as what is sent on.
HEAD_BYTES = 32 * 1024
# Of a body, between the one side's reader and the other side's writer; reading stops at the double.
BODY_BYTES = 32 * 1024
# What waits for the other side to read, above and below TLS.
UNSENT_BYTES = 32 * 1024
# What waits to be decrypted.
UNREAD_BYTES = 32 * 1024
# What asyncio reserves, and touches, for each TLS connection; uvloop reserves 256 KiB, and touches what one
# read brings.
TLS_BUFFER_BYTES = 64 * 1024
# The kernel makes it the double. A client is near. An origin may be far, and its window is how much is under
# way: large for a client with few connections, small beside many. They bound what one read brings too.
CLIENT_SOCKET_BYTES = 64 * 1024
ORIGIN_RECEIVE_BYTES = 128 * 1024
SOCKET_BYTES_OF_MANY = 32 * 1024
FEW_CONNECTIONS = 8

# mallopt(3). By default glibc raises both with what is freed, up to 32 MiB and 64 MiB. Blocks as large as a
# read must not be mapped anew each time.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_TRIM_THRESHOLD_BYTES = 8 * 1024 * 1024
_MMAP_THRESHOLD_BYTES = 512 * 1024


def bound_socket(connections: int, sock: socket.socket) -> None:
    """A socket of a client with so many connections."""
    size = CLIENT_SOCKET_BYTES if connections <= FEW_CONNECTIONS else SOCKET_BYTES_OF_MANY
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, size)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, size)


def origin_socket(connections: int, address: tuple[Any, ...]) -> socket.socket:
    """A socket for a connection to an origin, of a client with so many; `address` as getaddrinfo gives it."""
    sock = socket.socket(*address[:3])
    receive = ORIGIN_RECEIVE_BYTES if connections <= FEW_CONNECTIONS else SOCKET_BYTES_OF_MANY
    # Before it connects: the window is agreed on then.
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, CLIENT_SOCKET_BYTES)
    return sock


def bound_transport(transport: asyncio.Transport) -> None:
    """Of a connection, with TLS or below it."""
    transport.set_write_buffer_limits(high=UNSENT_BYTES)
    set_read_buffer_limits = getattr(transport, "set_read_buffer_limits", None)
    if set_read_buffer_limits is not None:
        set_read_buffer_limits(high=UNREAD_BYTES)


def give_freed_memory_back() -> None:
    """From now on, and without a limit on how much. Other C libraries than glibc do so by themselves."""
    library = ctypes.CDLL(None)
    if not hasattr(library, "mallopt"):
        return
    library.mallopt(_M_MMAP_THRESHOLD, _MMAP_THRESHOLD_BYTES)
    library.mallopt(_M_TRIM_THRESHOLD, _TRIM_THRESHOLD_BYTES)


def trim() -> None:
    """Give back what is free in the middle of the heap."""
    library = ctypes.CDLL(None)
    if hasattr(library, "malloc_trim"):
        library.malloc_trim(0)
