"""Socket pairs between this process and a sandbox: what comes out of one is known by who wrote it.

A socket cannot be opened again through /proc/PID/fd as a pipe can, and the kernel says of each piece which
process sent it (SO_PASSCRED, unix(7)). Only who holds the other end can write to it at all; of those, such as
subshells that inherited it, only the expected process is listened to.
"""

import fcntl
import os
import socket
import struct
import termios

_CREDENTIALS = struct.Struct("=iII")  # struct ucred: pid, uid, gid
_ANCILLARY_BYTES = socket.CMSG_SPACE(_CREDENTIALS.size)
_NOBODY = 0
# More pieces do not fit into a socket.
_DROPS, _DROP_BYTES = 512, 1 << 16


class Channel:
    """This process's end of a pair; it does not block. `close` must follow."""

    def __init__(self) -> None:
        """Raises OSError."""
        self._ours, theirs = socket.socketpair()
        self._ours.setblocking(False)
        self._ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._theirs = theirs.detach()
        self.sender = _NOBODY
        """The process that sent what was read last, by its pid as this process sees it."""

    @property
    def other_end(self) -> int:
        """The descriptor for the sandbox, until `hand_over`; a number that it has there as well."""
        return self._theirs

    def hand_over(self) -> None:
        """The other end is the sandbox's alone from now on."""
        os.close(self._theirs)

    def fileno(self) -> int:
        return self._ours.fileno()

    def read(self, limit_bytes: int) -> bytes:
        """What one process sent, at most that much; nothing at the end and when it was closed.

        Raises BlockingIOError.
        """
        self.sender = _NOBODY
        if self.fileno() < 0:
            return b""
        try:
            data, ancillary, _, _ = self._ours.recvmsg(limit_bytes, _ANCILLARY_BYTES)
        except ConnectionResetError:  # it ended with unread lines
            return b""
        for level, kind, content in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS):
                self.sender = int(_CREDENTIALS.unpack(content)[0])
        return data

    def drop(self) -> None:
        """What lies in it, for as long as nobody adds to it all the time."""
        try:
            for _ in range(_DROPS):
                if not self.read(_DROP_BYTES):
                    return
        except BlockingIOError:
            return

    def send(self, data: bytes) -> bool:
        """Whether there was room for all of it; false as well when nobody has the other end any more."""
        try:
            return self._ours.send(data) == len(data)
        except (BrokenPipeError, ConnectionResetError, BlockingIOError):
            return False

    def all_read(self) -> bool:
        """Whether the other end has read everything that was sent."""
        (count,) = struct.unpack("i", fcntl.ioctl(self._ours, termios.TIOCOUTQ, b"\0\0\0\0"))
        return bool(count == 0)

    def close(self) -> None:
        self._ours.close()
