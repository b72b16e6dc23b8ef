"""Makes listening sockets inside other network namespaces, for the process that started it.

A program of its own, since joining the user namespace that owns a network namespace is refused to a process
with threads (setns(2)) and cannot be undone: every request is served by a fork. Standard library only.

Each request is one byte with one descriptor, a network namespace (SCM_RIGHTS); the answer is one descriptor,
a TCP socket that listens on LISTEN_ADDRESS there, or a text that says what failed.
"""

import ctypes
import fcntl
import os
import socket
import sys

LISTEN_ADDRESS = ("127.0.0.1", 3128)
ANSWER_LIMIT_BYTES = 500
_BACKLOG = 128
_CLONE_NEWUSER = 0x10000000
_CLONE_NEWNET = 0x40000000
_NS_GET_USERNS = 0xB701  # ioctl_ns(2)

_libc = ctypes.CDLL(None, use_errno=True)


def serve(requests: socket.socket) -> None:
    """Answer requests until the other end is closed."""
    while True:
        message, descriptors, _, _ = socket.recv_fds(requests, 1, 1)
        if not message:
            return
        child = os.fork()
        if child == 0:
            _answer_and_exit(requests, descriptors[0])
        os.close(descriptors[0])
        _, status = os.waitpid(child, 0)
        if os.waitstatus_to_exitcode(status) != 0:
            requests.send(b"the helper died while it joined the namespace")


def _answer_and_exit(requests: socket.socket, namespace: int) -> None:
    """In the fork: whatever happens, exactly one answer is sent and the process ends."""
    try:
        with _listen_in(namespace) as listener:
            socket.send_fds(requests, [b"\0"], [listener.fileno()])
    except OSError as error:
        requests.send(f"{error.strerror or error}"[:ANSWER_LIMIT_BYTES].encode())
    finally:
        os._exit(0)


def _listen_in(namespace: int) -> socket.socket:
    if os.geteuid() != 0:
        # Without privileges the rights over a network namespace come from the user namespace that owns it.
        _join(fcntl.ioctl(namespace, _NS_GET_USERNS), _CLONE_NEWUSER, "join the sandbox's user namespace")
    _join(namespace, _CLONE_NEWNET, "join the sandbox's network namespace")
    return socket.create_server(LISTEN_ADDRESS, backlog=_BACKLOG)


def _join(descriptor: int, kind: int, what: str) -> None:
    if _libc.setns(descriptor, kind) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"cannot {what}: {os.strerror(code)}")


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
