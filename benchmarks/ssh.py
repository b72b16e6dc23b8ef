"""What the SSH way in costs, beside OpenSSH's own server in the same run, and what it bears.

Run it with `make bench-ssh`. It needs OpenSSH's client and server, as root, and takes about two minutes.
"""

import argparse
import asyncio
import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncssh

from benchmarks.local import MEBIBYTE, Row, memory_bytes, percentiles
from tests.e2e_local.harness import Server
from tests.e2e_local.test_ssh import INITIALIZE, Door, call, open_door
from tests.ssh_gateway.harness import LineClient

SSHD = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin")
ATTACKING_ADDRESSES = 10


@contextlib.contextmanager
def openssh_server(files: Path) -> Iterator[list[str]]:
    """OpenSSH's own server for the same key; gives the command of a client of it."""
    assert SSHD is not None
    Path("/run/sshd").mkdir(exist_ok=True)  # where it confines itself to before a login
    port = 20_000 + os.getpid() % 10_000
    # Without the SHLVL bash would run the user's .bashrc, as it does for sshd alone.
    (files / "sshd_config").write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {files}/stranger\nUsePAM no\nPidFile none\n"
        f"AuthorizedKeysFile {files}/secrets/agents/authorized_keys\nStrictModes no\nMaxStartups 500\n"
        "PermitRootLogin yes\nSetEnv SHLVL=5\n"
    )
    server = subprocess.Popen([SSHD, "-D", "-e", "-f", str(files / "sshd_config")], stderr=subprocess.DEVNULL)
    options = ["-F", "none", "-i", str(files / "id"), "-p", str(port), "-o", "StrictHostKeyChecking=no"]
    client = ["ssh", *options, "-o", "UserKnownHostsFile=/dev/null", "-o", "LogLevel=ERROR", "127.0.0.1"]
    try:
        for _ in range(50):
            if subprocess.run([*client, "true"], capture_output=True).returncode == 0:
                break
            time.sleep(0.1)
        yield client
    finally:
        server.terminate()
        server.wait()


def timed_runs(count: int, run: Any) -> list[float]:
    taken = []
    for _ in range(count):
        started = time.perf_counter()
        run()
        taken.append(time.perf_counter() - started)
    return taken


def measure_first_results(door: Door, openssh: list[str], count: int) -> Row:
    """From starting `ssh` to the end of it, with one command run in a warm session."""

    def ours() -> None:
        ran = door.run(door.ssh("gateway"), call(1, "true"))
        assert '"exit_code":0' in ran.stdout, ran.stderr

    def theirs() -> None:
        subprocess.run([*openssh, "true"], check=True, capture_output=True, stdin=subprocess.DEVNULL)

    ours()
    baseline, taken = timed_runs(count, theirs), timed_runs(count, ours)
    return Row("ssh, handshake, `true`, end", percentiles(taken), f"ssh host true: {percentiles(baseline)}")


@dataclass
class Attack:
    """Failed logins, from several addresses so that none is slowed down by its rate."""

    port: int
    refused: int = 0
    turned_away: int = 0

    async def log_in(self, number: int) -> None:
        source = f"127.9.0.{number % ATTACKING_ADDRESSES + 1}"
        try:
            await asyncssh.connect(
                "127.0.0.1",
                self.port,
                local_addr=(source, 0),
                username="nobody",
                client_keys=[KEY],
                known_hosts=None,
                agent_path=None,
                config=None,
            )
        except asyncssh.PermissionDenied:
            self.refused += 1
        except (asyncssh.ConnectionLost, ConnectionError):
            self.turned_away += 1
        else:
            raise AssertionError("a stranger was let in")

    async def run(self, logins: int, at_a_time: int) -> None:
        numbers = iter(range(logins))

        async def worker() -> None:
            for number in numbers:
                await self.log_in(number)

        await asyncio.gather(*(worker() for _ in range(at_a_time)))


KEY = asyncssh.generate_private_key("ssh-ed25519")


@contextlib.asynccontextmanager
async def many_clients(door: Door, count: int) -> AsyncIterator[list[LineClient]]:
    """Logins of different users, each with a sandbox that has run a command."""
    port = port_of(door)
    key = asyncssh.read_private_key(door.files / "id")
    at_a_time = asyncio.Semaphore(12)
    clients = []

    async def connect(number: int) -> LineClient:
        async with at_a_time:
            connection = await asyncssh.connect(
                "127.0.0.1",
                port,
                local_addr=(f"127.8.0.{number % 50 + 1}", 0),
                username=f"agent-{number}",
                client_keys=[key],
                known_hosts=None,
                agent_path=None,
                config=None,
            )
            process = await connection.create_process(encoding=None)
            client = LineClient(connection, process)
            client.send(INITIALIZE)
            await client.read()
            return client

    try:
        clients = await asyncio.gather(*(connect(number) for number in range(count)))
        yield clients
    finally:
        for client in clients:
            client.connection.abort()


def port_of(door: Door) -> int:
    return int(door.ssh_config("--format", "known-hosts").split("]:")[1].split()[0])


async def measure_calls(door: Door, count: int) -> Row:
    """Calls one after the other on one connection, beside the same sandbox over HTTP."""
    async with many_clients(door, 1) as (client,):
        await client.run("true")
        taken = []
        for _ in range(count):
            started = time.perf_counter()
            await client.run("true")
            taken.append(time.perf_counter() - started)
    http = []
    door.server.call("over-http", "true")
    for _ in range(count):
        started = time.perf_counter()
        await asyncio.to_thread(door.server.call, "over-http", "true")
        http.append(time.perf_counter() - started)
    return Row("`true` on one connection", percentiles(taken), f"over HTTP: {percentiles(http)}")


async def measure_crowd(door: Door, connections: int, failed_logins: int) -> list[Row]:
    """Many connections at once, and strangers who try meanwhile."""
    before = memory_of(door.server)
    started = time.perf_counter()
    async with many_clients(door, connections) as clients:
        took = time.perf_counter() - started
        each = (memory_of(door.server) - before) / connections
        rows = [
            Row(
                f"{connections} connections",
                f"{took:.1f} s to log in all, {each / 1024:.0f} KiB of the server's memory each",
                f"server before: {before / MEBIBYTE:.0f} MiB",
            )
        ]
        await make_sandboxes(clients)
        quiet = await latencies(clients, 1, None)
        attack = Attack(port_of(door))
        trying = asyncio.create_task(attack.run(failed_logins, 32))
        started = time.perf_counter()
        busy = await latencies(clients, 1, trying)
        await trying
        took = time.perf_counter() - started
        rows.append(
            Row(
                f"a call meanwhile, {failed_logins} failed logins",
                f"{percentiles(busy)}; in {took:.0f} s {attack.refused} refused, "
                f"{attack.turned_away} turned away",
                f"without them: {percentiles(quiet)}",
            )
        )
    return rows


async def make_sandboxes(clients: Sequence[LineClient]) -> None:
    at_a_time = asyncio.Semaphore(4)

    async def make(client: LineClient) -> None:
        async with at_a_time:
            await client.run("true")

    await asyncio.gather(*map(make, clients))


async def latencies(
    clients: Sequence[LineClient], rounds: int, until: "asyncio.Task[None] | None"
) -> list[float]:
    """Of one call after the other, each on the next connection; for `rounds` and until a task is done."""
    taken: list[float] = []
    while rounds > 0 or (until is not None and not until.done()):
        rounds -= 1
        for client in clients:
            started = time.perf_counter()
            result = await client.run("true")
            assert not result["isError"], result
            taken.append(time.perf_counter() - started)
            if rounds < 0 and until is not None and until.done():
                break
    return taken


def memory_of(server: Server) -> int:
    return memory_bytes([server.pid], "Pss")


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--connections", type=int, default=200)
    parser.add_argument("--failed-logins", type=int, default=1000)
    arguments = parser.parse_args()
    if SSHD is None or os.geteuid() != 0:
        sys.exit("This compares with OpenSSH's own server: install openssh-server, and run it as root.")
    with open_door() as door:
        with openssh_server(door.files) as openssh:
            rows = [await asyncio.to_thread(measure_first_results, door, openssh, arguments.count)]
        rows.append(await measure_calls(door, arguments.count * 5))
        rows += await measure_crowd(door, arguments.connections, arguments.failed_logins)
    for row in rows:
        print(f"{row.name}\n    {row.values}\n    {row.baseline}")
    print(f"load average: {', '.join(f'{load:.1f}' for load in os.getloadavg())}")


if __name__ == "__main__":
    asyncio.run(main())
