"""Listening sockets in another process's network namespace, with real namespaces."""

import asyncio
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cli_mcp.execution import SandboxUnavailable
from local_runtime import netns
from local_runtime.bubblewrap import find_bubblewrap
from local_runtime.netns import NetworkNamespaces
from local_runtime.netns_helper import LISTEN_ADDRESS

HOST_NAMESPACE = Path("/proc/self/ns/net").stat().st_ino


@contextmanager
def sandboxed(script: str) -> Iterator[tuple[subprocess.Popen[bytes], int, int]]:
    """bash in namespaces of its own: the process, its pid and the inode of its network namespace."""
    info_read, info_write = os.pipe()
    command = [
        str(find_bubblewrap()),
        "--unshare-all",
        "--unshare-user",
        "--die-with-parent",
        "--dev-bind",
        "/",
        "/",
    ]
    process = subprocess.Popen(
        [*command, "--info-fd", str(info_write), "--", "bash", "-c", script],
        pass_fds=[info_write],
        stdout=subprocess.PIPE,
    )
    os.close(info_write)
    with os.fdopen(info_read) as info_file:
        info = json.load(info_file)
    try:
        yield process, info["child-pid"], Path(f"/proc/{info['child-pid']}/ns/net").stat().st_ino
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


async def test_what_connects_on_the_sandbox_loopback_arrives_at_the_socket() -> None:
    host, port = LISTEN_ADDRESS
    script = f"until exec 3<>/dev/tcp/{host}/{port}; do sleep 0.02; done 2>/dev/null; cat <&3"
    namespaces = NetworkNamespaces()
    with sandboxed(script) as (process, pid, inode):
        with await namespaces.listen_in(pid, inode) as listener:
            connection, _ = await asyncio.to_thread(listener.accept)
            with connection:
                connection.sendall(b"from outside")
        assert process.stdout is not None
        assert await asyncio.to_thread(process.stdout.read) == b"from outside"
    namespaces.close()


async def test_many_sandboxes_listen_on_the_same_port() -> None:
    namespaces = NetworkNamespaces()
    with sandboxed("sleep 60") as (_, one, one_inode), sandboxed("sleep 60") as (_, two, two_inode):
        first, second = await asyncio.gather(
            namespaces.listen_in(one, one_inode), namespaces.listen_in(two, two_inode)
        )
        assert first.getsockname() == second.getsockname() == LISTEN_ADDRESS
        first.close()
        second.close()
    namespaces.close()


@pytest.mark.parametrize(
    ("inode_offset", "own", "says"),
    [(1, False, "no network namespace of its own"), (0, True, "no network namespace of its own")],
    ids=["the pid is another process by now", "the process shares the host's network"],
)
async def test_a_wrong_namespace_is_refused(inode_offset: int, own: bool, says: str) -> None:
    namespaces = NetworkNamespaces()
    with sandboxed("sleep 60") as (_, pid, inode):
        target = (os.getpid(), HOST_NAMESPACE) if own else (pid, inode + inode_offset)
        with pytest.raises(SandboxUnavailable, match=says):
            await namespaces.listen_in(*target)
    namespaces.close()


async def test_a_dead_sandbox_is_reported_as_such() -> None:
    namespaces = NetworkNamespaces()
    with sandboxed("true") as (process, pid, inode):
        await asyncio.to_thread(process.wait)
        async with asyncio.timeout(10):
            while Path(f"/proc/{pid}/ns/net").exists():
                await asyncio.sleep(0.01)
        with pytest.raises(SandboxUnavailable, match="ended while it started"):
            await namespaces.listen_in(pid, inode)
    namespaces.close()


async def test_a_helper_that_was_killed_is_replaced_unnoticed() -> None:
    before = children()
    namespaces = NetworkNamespaces()
    (helper,) = children() - before
    with sandboxed("sleep 60") as (_, pid, inode):
        os.kill(int(helper), signal.SIGKILL)
        async with asyncio.timeout(10):
            while state_of(helper) != "Z":
                await asyncio.sleep(0.01)
        with await namespaces.listen_in(pid, inode) as listener:
            assert listener.getsockname() == LISTEN_ADDRESS
    namespaces.close()
    assert children() == before


async def test_the_late_answer_of_a_helper_is_not_taken_for_the_next_sandbox(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(netns, "_ANSWER_SECONDS", 0.2)
    monkeypatch.setattr(netns, "_EXIT_SECONDS", 0.2)
    before = children()
    namespaces = NetworkNamespaces()
    (helper,) = children() - before
    monkeypatch.setattr(netns, "_ANSWER_SECONDS", 10.0)
    with sandboxed("sleep 60") as (_, one, one_inode), sandboxed("sleep 60") as (_, two, two_inode):
        os.kill(int(helper), signal.SIGSTOP)
        with pytest.raises(SandboxUnavailable, match=r"does not answer.*try again"):
            await namespaces.listen_in(one, one_inode)
        assert helper not in children()
        with await namespaces.listen_in(two, two_inode):
            assert not listening(one)
            assert listening(two)
    namespaces.close()


async def test_who_stops_waiting_leaves_no_answer_for_the_next() -> None:
    namespaces = NetworkNamespaces()
    with sandboxed("sleep 60") as (_, one, one_inode), sandboxed("sleep 60") as (_, two, two_inode):
        for _ in range(20):
            given_up = asyncio.create_task(namespaces.listen_in(one, one_inode))
            await asyncio.sleep(0)
            given_up.cancel()
            with await namespaces.listen_in(two, two_inode):
                assert listening(two)
    namespaces.close()


async def test_closing_ends_the_helper() -> None:
    before = children()
    namespaces = NetworkNamespaces()
    helper = children() - before
    namespaces.close()
    assert len(helper) == 1
    assert not helper & children()


def listening(pid: int) -> bool:
    """Whether anything listens on a TCP port in the network namespace of `pid`."""
    return " 0A " in Path(f"/proc/{pid}/net/tcp").read_text()


def state_of(pid: str) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def children() -> set[str]:
    return set(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())
