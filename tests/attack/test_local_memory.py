"""Sessions that take memory which is not counted as that of a process, beside one that downloads."""

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.attack.bystander import assert_unharmed, calling, quiet
from tests.e2e_local.harness import Server, running

MEBIBYTE = 1 << 20
LIMIT_BYTES = 256 * MEBIBYTE
_ATTACK_SECONDS = 12
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_LONGEST_DOWNLOAD_SECONDS = 3.0

_PYTHON = "/usr/bin/python3 - <<'END'\n{}\nEND"
_PROLOGUE = """
import ctypes, mmap, os, resource, socket, time
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
BLOCK = bytes(1 << 20)
kept = []
until = time.monotonic() + 10
def fill(sending):
    sending.setblocking(False)
    try:
        while True:
            sending.send(BLOCK)
    except OSError:
        pass
"""
_STAY = "time.sleep(max(0, until - time.monotonic()))\n"
_TCP = (
    _PROLOGUE
    + """
while time.monotonic() < until and len(kept) < 20_000:
    if len(kept) % 1000 == 0:
        listening = socket.create_server(("127.0.0.1", 0), backlog=1000)
    sending = socket.create_connection(listening.getsockname())
    kept.append((sending, listening.accept()[0]))
    fill(sending)
"""
    + _STAY
)
_UDP = (
    _PROLOGUE
    + """
sending = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
while time.monotonic() < until and len(kept) < 20_000:
    receiving = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    receiving.bind(("127.0.0.1", 0))
    receiving.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 24)
    kept.append(receiving)
    for _ in range(16):
        sending.sendto(BLOCK[:60_000], receiving.getsockname())
"""
    + _STAY
)
_UNIX = (
    _PROLOGUE
    + """
while time.monotonic() < until and len(kept) < 20_000:
    kept.append(socket.socketpair())
    fill(kept[-1][0])
"""
    + _STAY
)
_MEMFD = (
    _PROLOGUE
    + """
while time.monotonic() < until and len(kept) < 64:
    kept.append(os.memfd_create("x"))
    for _ in range(32):
        os.write(kept[-1], BLOCK)
"""
    + _STAY
)
_SHARED = (
    _PROLOGUE
    + """
while time.monotonic() < until and len(kept) < 64:
    kept.append(mmap.mmap(-1, 32 << 20))
    kept[-1].write(BLOCK * 32)
"""
    + _STAY
)
_DOWNLOAD = _PYTHON.format(
    """
import socket, threading
listening = socket.create_server(("127.0.0.1", 0))
def send():
    with listening.accept()[0] as sending:
        for _ in range(64):
            sending.sendall(bytes(1 << 20))
threading.Thread(target=send).start()
received = 0
with socket.create_connection(listening.getsockname()) as receiving:
    while data := receiving.recv(1 << 20):
        received += len(data)
print(received)
"""
)


def socket_bytes() -> int:
    """What the buffers of TCP and UDP take, of the whole machine."""
    lines = Path("/proc/net/sockstat").read_text().splitlines()
    words = {line.split(":")[0]: line.split() for line in lines}
    return sum(int(words[name][words[name].index("mem") + 1]) for name in ("TCP", "UDP")) * _PAGE_BYTES


def memory_bytes() -> int:
    lines = Path("/proc/meminfo").read_text().splitlines()
    fields = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines}
    return fields["MemTotal"] - fields["MemAvailable"]


ATTACKS: dict[str, tuple[str, Callable[[], int], int]] = {
    # What else happens on the machine counts here, too.
    "buffers of TCP": (_TCP, socket_bytes, 2 * LIMIT_BYTES),
    "buffers of UDP": (_UDP, socket_bytes, 2 * LIMIT_BYTES),
    "buffers of unix sockets": (_UNIX, memory_bytes, 4 * LIMIT_BYTES),
    "files in memory": (_MEMFD, memory_bytes, 4 * LIMIT_BYTES),
    "shared mappings": (_SHARED, memory_bytes, 4 * LIMIT_BYTES),
}


@pytest.fixture
def server() -> Iterator[Server]:
    with running(resources={"limits": {"memory": "256Mi", "ephemeral-storage": "64Mi"}}) as started:
        if any("no control group for memory" in line for line in started.log):
            pytest.skip("this user has no control groups for memory, and the log says what that leaves open")
        yield started


@pytest.mark.parametrize("name", ATTACKS)
def test_memory_that_is_no_process_s_counts_all_the_same(name: str, server: Server) -> None:
    script, measure, most_bytes = ATTACKS[name]
    before = quiet(lambda: server.call("bystander", "true"))
    server.call("attacker", "true")
    server.call("downloads", "true")
    used = measure()
    until = time.monotonic() + _ATTACK_SECONDS

    def attack() -> None:
        while (left := until - time.monotonic()) > 1:
            server.call("attacker", _PYTHON.format(script), left)

    def sample() -> None:
        while time.monotonic() < until:
            samples.append(measure() - used)
            time.sleep(0.02)

    samples: list[int] = []
    downloads: list[float] = []
    threads = [threading.Thread(target=work) for work in (attack, sample)]
    for thread in threads:
        thread.start()
    with calling(lambda: server.call("bystander", "true")) as beside:
        while time.monotonic() < until:
            started = time.monotonic()
            assert server.call("downloads", _DOWNLOAD).stdout == f"{64 * MEBIBYTE}\n"
            downloads.append(time.monotonic() - started)
    for thread in threads:
        thread.join()
    most = max(samples)
    print(
        f"{name}: taken at most {most / MEBIBYTE:,.0f} MiB at a limit of {LIMIT_BYTES // MEBIBYTE}; "
        f"{len(downloads)} downloads of 64 MiB, the longest {max(downloads):.2f} s"
    )
    assert most <= most_bytes
    assert max(downloads) <= _LONGEST_DOWNLOAD_SECONDS
    assert_unharmed(name, before, beside)
