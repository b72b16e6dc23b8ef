"""Files without a name, held by this process and by others."""

import array
import mmap
import os
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from local_runtime.deleted import unnamed

SIZE_BYTES = 1 << 20


def held(path: Path) -> int:
    return unnamed([os.getpid()], path.stat().st_dev).used_bytes


def test_a_file_counts_once_it_is_deleted_and_until_it_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with path.open("wb") as file:
        file.write(b"x" * SIZE_BYTES)
        file.flush()
        os.fsync(file.fileno())
        assert held(tmp_path) == 0
        path.unlink()
        assert held(tmp_path) >= SIZE_BYTES
    assert held(tmp_path) == 0


def test_a_file_without_a_name_from_the_start_counts(tmp_path: Path) -> None:
    fd = os.open(tmp_path, os.O_TMPFILE | os.O_WRONLY, 0o600)
    os.write(fd, b"x" * SIZE_BYTES)
    os.fsync(fd)
    assert held(tmp_path) >= SIZE_BYTES
    os.close(fd)


def test_a_mapping_counts_although_the_file_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "odd name (deleted)\n"
    path.write_bytes(b"x" * SIZE_BYTES)
    with path.open("r+b") as file, mmap.mmap(file.fileno(), SIZE_BYTES) as mapped:
        path.unlink()
        both = held(tmp_path)
        file.close()
        assert len(mapped) == SIZE_BYTES == held(tmp_path)
        assert SIZE_BYTES <= both < 2 * SIZE_BYTES
    assert held(tmp_path) == 0


def test_a_file_that_two_processes_hold_counts_once_and_the_dead_hold_nothing(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with path.open("wb") as file:
        file.write(b"x" * SIZE_BYTES)
        file.flush()
        os.fsync(file.fileno())
        path.unlink()
        other = subprocess.Popen(["sleep", "60"], stdout=file)
    try:
        device = tmp_path.stat().st_dev
        assert SIZE_BYTES <= unnamed([other.pid, other.pid], device).used_bytes < 2 * SIZE_BYTES
    finally:
        other.kill()
        other.wait()
    assert unnamed([other.pid], device).used_bytes == 0


def test_other_file_systems_do_not_count(tmp_path: Path) -> None:
    fd = os.memfd_create("memory")
    os.write(fd, b"x" * SIZE_BYTES)
    assert held(tmp_path) == 0
    os.close(fd)


def test_a_descriptor_under_way_in_a_socket_is_noticed(tmp_path: Path) -> None:
    one, other = socket.socketpair()
    with one, other:
        assert unnamed([os.getpid()], tmp_path.stat().st_dev).descriptors_under_way == 0
        with (tmp_path / "file").open("wb") as file:
            rights = array.array("i", [file.fileno()])
            one.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
        assert unnamed([os.getpid()], tmp_path.stat().st_dev).descriptors_under_way == 1
        with ThreadPoolExecutor(1) as threads:
            threads.submit(int).result()
            seen = unnamed([os.getpid()], tmp_path.stat().st_dev)
        assert seen.descriptors_under_way == 1, "threads share their descriptors"


def test_whoever_asks_may_give_up_and_is_told(tmp_path: Path) -> None:
    descriptors = [os.open("/dev/null", os.O_RDONLY) for _ in range(600)]
    try:
        assert not unnamed([os.getpid()], tmp_path.stat().st_dev, lambda: True).complete
        assert unnamed([os.getpid()], tmp_path.stat().st_dev, lambda: False).complete
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


# Ends its first thread and holds on to a deleted file with another, which may have descriptors of its own.
_HEADLESS = """
import ctypes, os, sys, threading, time
def hold():
    time.sleep(0.2)
    if sys.argv[2] == "apart":
        ctypes.CDLL(None).unshare(0x400)  # CLONE_FILES
    fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
    os.write(fd, b"x" * (1 << 20))
    os.fsync(fd)
    os.unlink(sys.argv[1])
    if sys.argv[2] == "mapped":
        import mmap
        global mapped
        mapped = mmap.mmap(fd, 1 << 20)
        os.close(fd)
    print("ready", flush=True)
    time.sleep(60)
threading.Thread(target=hold).start()
if sys.argv[2] != "apart":
    ctypes.CDLL(None).pthread_exit(None)
time.sleep(60)
"""


@pytest.mark.parametrize("kind", ["open", "apart", "mapped"])
def test_what_any_thread_holds_counts_also_when_the_first_one_has_ended(tmp_path: Path, kind: str) -> None:
    command = [sys.executable, "-c", _HEADLESS, str(tmp_path / "file"), kind]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        try:
            assert other.stdout.readline() == b"ready\n"
            held_bytes = unnamed([other.pid], tmp_path.stat().st_dev).used_bytes
            assert SIZE_BYTES <= held_bytes < 2 * SIZE_BYTES
        finally:
            other.kill()
