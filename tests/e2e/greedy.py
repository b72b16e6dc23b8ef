"""What a session runs that takes all it can get of what it shares: programs for the shell of its sandbox.

Each ends by itself. Those in Python find the proxy in HTTPS_PROXY and an origin in their first argument.
"""

import shlex
from dataclasses import dataclass

SECONDS = 12

_TUNNELS = """
import os, socket, ssl, struct, sys, threading, time, urllib.parse

proxy = urllib.parse.urlsplit(os.environ["HTTPS_PROXY"])
PROXY = (proxy.hostname, proxy.port)
ORIGIN = sys.argv[1]
UNTIL = time.monotonic() + float(sys.argv[2])
trust = ssl.create_default_context()
trust.check_hostname = False
trust.verify_mode = ssl.CERT_NONE

def tunnel():
    raw = socket.create_connection(PROXY, 10)
    raw.sendall(f"CONNECT {ORIGIN}:443 HTTP/1.1\\r\\n\\r\\n".encode())
    assert b" 200 " in raw.recv(4096)
    return trust.wrap_socket(raw, server_hostname=ORIGIN)

def head(path="/version", more=""):
    return f"GET {path} HTTP/1.1\\r\\nHost: {ORIGIN}\\r\\n{more}\\r\\n".encode()

def at_once(count, work):
    def again():
        while time.monotonic() < UNTIL:
            try:
                work()
            except (OSError, AssertionError):
                time.sleep(0.01)
    threads = [threading.Thread(target=again, daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
"""

_LARGE_HEADS = """
large = head(more="".join(f"X-{n}: {'a' * 8000}\\r\\n" for n in range(60)))
def pipelined():
    with tunnel() as one:
        one.settimeout(2)
        while time.monotonic() < UNTIL:
            try:
                one.sendall(large)
            except TimeoutError:
                pass
at_once(64, pipelined)
"""

_UNREAD = """
def unread():
    with tunnel() as one:
        one.settimeout(2)
        for _ in range(50):
            one.sendall(head("/openapi/v2"))
        while time.monotonic() < UNTIL:
            time.sleep(0.5)
at_once(64, unread)
"""

_RESETS = """
def reset():
    one = socket.create_connection(PROXY, 5)
    one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    one.close()
at_once(4, reset)
"""

_ONE_BYTE_CHUNKS = """
begin = f"POST /apis/x HTTP/1.1\\r\\nHost: {ORIGIN}\\r\\nTransfer-Encoding: chunked\\r\\n\\r\\n".encode()
def chunks():
    with tunnel() as one:
        one.sendall(begin)
        while time.monotonic() < UNTIL:
            one.sendall(b"1\\r\\nx\\r\\n" * 400)
at_once(8, chunks)
"""

_CONNECTION_FIELDS = """
fields = head(more="".join(f"Connection: {', '.join(['close-not'] * 700)}\\r\\n" for _ in range(60)))
def connection_fields():
    with tunnel() as one:
        one.settimeout(2)
        while time.monotonic() < UNTIL:
            one.sendall(fields)
            one.recv(65536)
at_once(8, connection_fields)
"""

_REFUSED = """
def refused():
    with socket.create_connection(PROXY, 5) as one:
        one.sendall(b"CONNECT refused.example.com:443 HTTP/1.1\\r\\n\\r\\n")
        one.recv(4096)
at_once(4, refused)
"""


def _python(program: str) -> str:
    return f"python3 -c {shlex.quote(_TUNNELS + program)} {{origin}} {{seconds}}"


# Into every pipe of the shell that a process of the session can write to.
_PIPES = (
    "for fd in /proc/$$/fd/*; do [ -p $fd ] && "
    "(exec timeout {seconds} sh -c 'yes 0123456789abcdef0123456789abcdef | tr -d \"\\n\" >'$fd) "
    "2>/dev/null & done; sleep {seconds}"
)


@dataclass(frozen=True, slots=True)
class Greed:
    """`program` has places for `origin` (a host of the instance's targets) and `seconds`."""

    program: str

    def command(self, origin: str, seconds: float = SECONDS) -> str:
        return self.program.replace("{origin}", origin).replace("{seconds}", str(seconds))


GREED = {
    "large heads": Greed(_python(_LARGE_HEADS)),
    "responses that nobody reads": Greed(_python(_UNREAD)),
    "connections that are reset": Greed(_python(_RESETS)),
    "chunks of one byte": Greed(_python(_ONE_BYTE_CHUNKS)),
    "fields about the connection": Greed(_python(_CONNECTION_FIELDS)),
    "refused requests": Greed(_python(_REFUSED)),
    "the pipes of its shell": Greed(_PIPES),
}
