"""Sessions that take all of the disk that they can get, in every way that was ever found."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.attack.bystander import assert_unharmed, calling, quiet
from tests.attack.own_disk import MEBIBYTE, OwnDisk, own_disk
from tests.e2e_local.harness import Server, running
from tests.local_runtime.users import UNPRIVILEGED_UID, passable_directory

LIMIT_BYTES = 256 * MEBIBYTE
_LIMITS = {"memory": "1Gi", "ephemeral-storage": "256Mi"}
# With a file system of its own the tables of it come on top; without one, what can be written before somebody
# has looked.
_MOST_BYTES = {False: 1.25 * LIMIT_BYTES, True: 2.5 * LIMIT_BYTES}
_ATTACK_SECONDS = 8
_FILL_SECONDS = 15
_RESERVE_BYTES = 1 << 30

_PYTHON = "/usr/bin/python3 - <<'END'\n{}\nEND"
_WRITE = """
import ctypes, mmap, os, socket, struct, sys, threading, time, resource
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.getrlimit(resource.RLIMIT_FSIZE)[1],) * 2)
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
BLOCK = bytes(1 << 20)
def fill(fd, mebibytes=32):
    for _ in range(mebibytes):
        try:
            os.write(fd, BLOCK)
        except OSError:
            time.sleep(0.05)
def unnamed():
    return os.open(".", os.O_TMPFILE | os.O_RDWR, 0o600)
def exit_first_thread():
    ctypes.CDLL(None).syscall(93 if os.uname().machine == "aarch64" else 60, 0)
"""
ATTACKS = {
    "commands that raise the soft limit again": (
        "ulimit -S -f $(ulimit -H -f); for i in {1..40}; do head -c 64M /dev/zero > $RANDOM$RANDOM; done"
    ),
    "files without a name, under way in sockets": _PYTHON.format(
        _WRITE
        + """
kept = []
while True:
    fd = unnamed()
    fill(fd)
    pair = socket.socketpair()
    socket.send_fds(pair[0], [b"x"], [fd])
    os.close(fd)
    kept.append(pair)
"""
    ),
    "a process without its first thread": _PYTHON.format(
        _WRITE
        + """
def work():
    while True:
        fill(unnamed())
threading.Thread(target=work).start()
exit_first_thread()
"""
    ),
    "a process that may not be looked into": _PYTHON.format(
        _WRITE
        + """
ctypes.CDLL(None).prctl(4, 0)  # PR_SET_DUMPABLE
kept = []
while True:
    kept.append(unnamed())
    fill(kept[-1])
    if not os.fork():
        continue
    os._exit(0)
"""
    ),
    "directories that are moved while they are measured": _PYTHON.format(
        _WRITE
        + """
os.makedirs("a")
os.makedirs("b")
deep = "/".join(["d"] * 34)
os.makedirs("a/" + deep + "/x/y/z")
def move():
    while True:
        for source, target in (("a/" + deep + "/x", "b/x"), ("b/x", "a/" + deep + "/x")):
            try:
                os.rename(source, target)
            except OSError:
                pass
threading.Thread(target=move, daemon=True).start()
n = 0
while True:
    for place in ("a/" + deep + "/x/y/z", "b/x/y/z"):
        try:
            fd = os.open(place + "/" + str(n), os.O_CREAT | os.O_WRONLY)
        except OSError:
            continue
        n += 1
        fill(fd, 16)
        os.close(fd)
"""
    ),
    "so many empty files that measuring takes long": _PYTHON.format(
        _WRITE
        + """
os.makedirs("many", exist_ok=True)
try:
    for n in range(150_000):
        os.close(os.open("many/" + str(n), os.O_CREAT))
except OSError:
    pass
while True:
    fill(unnamed())
"""
    ),
    "mappings of deleted files": _PYTHON.format(
        _WRITE
        + """
fds = []
for n in range(10_000):
    try:
        fd = unnamed()
        os.ftruncate(fd, 4096)
        mapped = mmap.mmap(fd, 4096)
        fds.append(mapped)
        os.close(fd)
    except OSError:
        break
while True:
    fill(unnamed())
"""
    ),
    "holes that are written through mappings": _PYTHON.format(
        _WRITE
        + """
files = []
for n in range(20):
    fd = os.open("hole" + str(n), os.O_CREAT | os.O_RDWR)
    os.ftruncate(fd, 200 << 20)
    files.append(mmap.mmap(fd, 200 << 20))
for mapped in files:
    for at in range(0, len(mapped), 4096):
        mapped[at] = 1
"""
    ),
    "output that the server keeps": "for i in {1..4}; do head -c 1G /dev/zero; done",
    "output of background processes": (
        "for i in {1..12}; do (head -c 1G /dev/zero; sleep 1) & done; sleep 14"
    ),
}


@contextmanager
def attacked(server: Server, session: str, command: str) -> Iterator[None]:
    """The command again and again, each call with a few seconds, for as long as the attack lasts."""
    deadline = time.monotonic() + _ATTACK_SECONDS

    def work() -> None:
        while (left := deadline - time.monotonic()) > 1:
            server.call(session, command, timeout=left)
            time.sleep(0.05)

    thread = threading.Thread(target=work)
    thread.start()
    yield
    thread.join()


@pytest.fixture(params=[False, True], ids=["root", "user"])
def unprivileged(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@contextmanager
def disk_of(unprivileged: bool, size_bytes: int) -> Iterator[OwnDisk]:
    owner = UNPRIVILEGED_UID if unprivileged else None
    with passable_directory() as directory, own_disk(directory, size_bytes, owner) as disk:
        yield disk


@pytest.mark.parametrize("name", ATTACKS)
def test_a_session_gets_no_more_than_its_limit(name: str, unprivileged: bool) -> None:
    with (
        disk_of(unprivileged, 10 << 30) as disk,
        running(unprivileged=unprivileged, root=disk.path, resources={"limits": _LIMITS}) as server,
    ):
        before = quiet(lambda: server.call("bystander", "true"))
        server.call("attacker", "true")
        disk.start()
        with (
            attacked(server, "attacker", ATTACKS[name]),
            calling(lambda: server.call("bystander", "true")) as beside,
        ):
            time.sleep(_ATTACK_SECONDS)
        disk.stop()
        print(f"{name}, as {'a user' if unprivileged else 'root'}: {disk}")
        assert disk.taken_bytes <= _MOST_BYTES[unprivileged]
        assert_unharmed(name, before, beside)
        assert server.call("attacker2", "echo new > file && cat file").stdout == "new\n"


def test_the_reserve_of_the_disk_is_kept_and_whoever_lives_from_it_goes_on(unprivileged: bool) -> None:
    limits = {"memory": "1Gi", "ephemeral-storage": "10Gi"}
    fill = "while :; do head -c 512M /dev/zero > $RANDOM$RANDOM; done 2>/dev/null"
    with (
        disk_of(unprivileged, 4 << 30) as disk,
        running(unprivileged=unprivileged, root=disk.path, resources={"limits": limits}) as server,
    ):
        before = quiet(lambda: server.call("bystander", "true"))
        for number in range(4):
            server.call(f"attacker-{number}", "true")
        disk.start()
        threads = [
            threading.Thread(target=server.call, args=(f"attacker-{number}", fill, _FILL_SECONDS))
            for number in range(4)
        ]
        for thread in threads:
            thread.start()
        with calling(lambda: server.call("bystander", "true")) as beside:
            for thread in threads:
                thread.join()
        disk.stop()
        print(f"four sessions that fill the disk, as {'a user' if unprivileged else 'root'}: {disk}")
        assert disk.taken_bytes > _RESERVE_BYTES, "they did not fill it"
        assert disk.least_free_bytes > _RESERVE_BYTES / 4
        assert_unharmed("four sessions that fill the disk", before, beside, attackers=4)
        (disk.path / "of somebody else").write_bytes(bytes(64 * MEBIBYTE))
        assert server.call("new", "echo served").stdout == "served\n"
        # There is room again once somebody makes some.
        for number in range(4):
            assert server.end(f"attacker-{number}", workspace=True) == 204
        deadline = time.monotonic() + 30
        while server.call("bystander", "head -c 32M /dev/zero > file").is_error:
            assert time.monotonic() < deadline
            time.sleep(0.5)
