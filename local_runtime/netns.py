"""Listening sockets inside the network namespaces of sandboxes.

The sandbox reaches such a socket on its own loopback; nothing relays and nothing identifies itself: the
socket that a connection came in by says which session it is. `netns_helper` does the joining.
"""

import asyncio
import logging
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

from cli_mcp.execution import SandboxUnavailable
from local_runtime import netns_helper

_ANSWER_SECONDS = 10.0
_EXIT_SECONDS = 2.0

log = logging.getLogger(__name__)


class NetworkNamespaces:
    """One helper process, asked for one listener at a time and replaced when it ends. Close it at the end."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._helper = _Helper()

    async def listen_in(self, pid: int, expected_inode: int) -> socket.socket:
        """A socket that listens on `netns_helper.LISTEN_ADDRESS` in the network namespace of `pid`.

        `expected_inode` identifies the namespace, since a pid may be another process by now.
        Raises SandboxUnavailable.
        """
        # All of it in the thread: whoever is cancelled meanwhile must not leave an answer for the next.
        return await asyncio.to_thread(self._listen_in, pid, expected_inode)

    def close(self) -> None:
        with self._lock:
            self._helper.end()

    def _listen_in(self, pid: int, expected_inode: int) -> socket.socket:
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
            with self._lock:
                if self._helper.has_ended():
                    self._replace_helper()
                return self._ask(namespace)
        finally:
            os.close(namespace)

    def _ask(self, namespace: int) -> socket.socket:
        try:
            return self._helper.listen_in(namespace)
        except OSError as error:
            # Another helper: a late answer of this one would be taken for that of the next sandbox.
            self._replace_helper()
            raise SandboxUnavailable(
                f"the helper that opens the way to the proxy does not answer ({error}); try again"
            ) from None

    def _replace_helper(self) -> None:
        log.warning("the helper that opens the way to the proxy is started again")
        self._helper.end()
        self._helper = _Helper()


class _Helper:
    """The process that runs `netns_helper`."""

    def __init__(self) -> None:
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._requests.settimeout(_ANSWER_SECONDS)
        with theirs:
            # -I: neither the environment nor the working directory decides what this process imports.
            self._process = subprocess.Popen(
                [sys.executable, "-I", str(Path(netns_helper.__file__)), str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # Ctrl-C at the terminal is for the server to handle
            )

    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def listen_in(self, namespace: int) -> socket.socket:
        """Raises OSError when there is no answer, and SandboxUnavailable when it is that it failed."""
        socket.send_fds(self._requests, [b"n"], [namespace])
        answer, descriptors, _, _ = socket.recv_fds(self._requests, netns_helper.ANSWER_LIMIT_BYTES, 1)
        if descriptors:
            return socket.socket(fileno=descriptors[0])
        if not answer:
            raise ConnectionResetError("it has ended")
        raise SandboxUnavailable(f"the way to the proxy cannot be opened: {answer.decode(errors='replace')}")

    def end(self) -> None:
        self._requests.close()
        try:
            self._process.wait(_EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
