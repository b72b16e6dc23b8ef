"""Listening sockets inside the network namespaces of sandboxes.

The sandbox reaches such a socket on its own loopback; nothing relays and nothing identifies itself: the
socket that a connection came in by says which session it is. `netns_helper` does the joining.
"""

import asyncio
import os
import socket
import subprocess
import sys
from pathlib import Path

from cli_mcp.execution import SandboxUnavailable
from local_runtime import netns_helper

_ANSWER_SECONDS = 10.0


class NetworkNamespaces:
    """One helper process, asked for one listener at a time. Close it at the end."""

    def __init__(self) -> None:
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._requests.settimeout(_ANSWER_SECONDS)
        with theirs:
            # -I: neither the environment nor the working directory decides what this process imports.
            self._helper = subprocess.Popen(
                [sys.executable, "-I", str(Path(netns_helper.__file__)), str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # Ctrl-C at the terminal is for the server to handle
            )
        self._lock = asyncio.Lock()

    async def listen_in(self, pid: int, expected_inode: int) -> socket.socket:
        """A socket that listens on `netns_helper.LISTEN_ADDRESS` in the network namespace of `pid`.

        `expected_inode` identifies the namespace, since a pid may be another process by now.
        Raises SandboxUnavailable.
        """
        try:
            namespace = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise SandboxUnavailable(
                f"the sandbox ended while it started ({error.strerror}); try again"
            ) from None
        try:
            inode = os.fstat(namespace).st_ino
            if inode != expected_inode or inode == Path("/proc/self/ns/net").stat().st_ino:
                raise SandboxUnavailable("the sandbox has no network namespace of its own; nothing was run")
            async with self._lock:
                return await asyncio.to_thread(self._ask, namespace)
        finally:
            os.close(namespace)

    def close(self) -> None:
        self._requests.close()
        self._helper.wait()

    def _ask(self, namespace: int) -> socket.socket:
        try:
            socket.send_fds(self._requests, [b"n"], [namespace])
            answer, descriptors, _, _ = socket.recv_fds(self._requests, netns_helper.ANSWER_LIMIT_BYTES, 1)
        except OSError as error:
            raise SandboxUnavailable(
                f"the helper that opens the way to the proxy does not answer ({error}); restart the server"
            ) from None
        if not descriptors:
            raise SandboxUnavailable(
                f"the way to the proxy cannot be opened: {answer.decode(errors='replace')}"
            )
        return socket.socket(fileno=descriptors[0])
