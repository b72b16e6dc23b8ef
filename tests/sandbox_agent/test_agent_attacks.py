"""What the shell, which has the agent's own uid, can do to it: nothing that lasts.

As in a pod the agent is pid 1 here, and the shell is in the same pid namespace. Each attack is a command;
afterwards the agent answers, and the next command finds the shell's state.
"""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from textwrap import dedent

import pytest

from cli_mcp.agent_api import HEALTH_PATH, Failure, Finished
from tests.sandbox_agent.running_agent import (
    AS_PID_ONE,
    RunningAgent,
    SignedClient,
    agent_directory,
    free_port,
)

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0, reason="making a pid namespace and becoming another user takes root"
)

SECRET = "only-the-agent-has-this"
# rt_sigqueueinfo(2) with a siginfo_t of one's own: a code, and 0 for the sender's pid and uid.
SIGNAL = """
        info = ctypes.create_string_buffer(128)
        struct.pack_into('iii4xii', info, 0, signal.SIGTERM, 0, {code}, 0, 0)
        raise SystemExit(c.syscall(129, 1, signal.SIGTERM, info) != 0)"""


def python(text: str) -> str:
    """A command that runs `text`."""
    head = "import ctypes, os, signal, struct; c = ctypes.CDLL(None, use_errno=True)"
    return f"python3 - <<'END'\n{head}\n{dedent(text)}\nEND"


@contextmanager
def agent_as_pid_one(*prefix: str, environment: Mapping[str, str] | None = None) -> Iterator[RunningAgent]:
    with agent_directory() as directory:
        agent = RunningAgent(directory, free_port(), (), environment or {}, (*AS_PID_ONE, *prefix))
        agent.start()
        try:
            yield agent
        finally:
            agent.close()


@pytest.fixture(scope="module")
def agent() -> Iterator[RunningAgent]:
    """One for all attacks: what an attack leaves behind is there at the next one."""
    with agent_as_pid_one(environment={"CLI_MCP_SECRET": SECRET}) as agent:
        yield agent


@pytest.fixture
async def client(agent: RunningAgent) -> AsyncIterator[SignedClient]:
    async with SignedClient(agent) as client:
        assert await client.out("STATE=kept; echo $PPID") != "1\n"
        yield client
        # But for processes, of which too many would slow down the rest.
        await client.last_event("kill -9 -1")


async def still_works(client: SignedClient) -> None:
    """The agent is the same one, and answers; the shell has its state."""
    began = time.monotonic()
    health = await client.http.get(HEALTH_PATH)
    assert time.monotonic() - began < 5
    assert health.json()["boot"] == client.boot
    for _ in range(2):
        event = await client.last_event('echo "[$STATE]"', 15)
        if isinstance(event, Finished) and event.outcome.stdout.head == b"[kept]\n":
            return
    raise AssertionError(event)


ATTACKS = {
    "every-signal": "for n in {1..64}; do kill -$n 1; done 2>/dev/null",
    "every-signal-by-thread": "for n in {1..64}; do for t in /proc/1/task/*; do kill -$n ${t:13}; done; done",
    "a-flood-of-signals": "timeout 2 bash -c 'while :; do kill -TERM 1; kill -INT 1; kill -CHLD 1; done'",
    "everybody": "kill -9 -1",
    "everybody-in-the-background": "(sleep 0.2; kill -9 -1) & disown",
    "its-group": "kill -9 -- -$(ps -o pgid= 1)",
    "supervisor": "kill -9 $PPID",
    "freeze-the-shell": "kill -STOP $PPID $$",
    "remove-state": "rm -rf ../state/*",
    "replace-exchange": "rm -rf ../state/exchange; ln -s /etc ../state/exchange",
    "replace-state": "(cd ../state; rm -r shell.state; mkdir shell.state shell.state.new)",
    "fifos-for-files": "(cd ../state; rm -r shell.state* used; mkfifo shell.state shell.state.new used)",
    "close-state": "chmod 0 ../state ../state/exchange",
    "fill-state-with-names": "for n in {1..3000}; do : >../state/exchange/$n; done",
    "lease-the-state": python("""
        import fcntl, time
        f = os.open('../state/shell.state', os.O_RDONLY)
        fcntl.fcntl(f, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        os.fork() and os._exit(0)
        time.sleep(30)"""),
    "connections": python("""
        import socket, time
        to = ('127.0.0.1', int(os.environ['PORT']))
        all = [socket.create_connection(to, source_address=(f'127.0.{n % 200}.2', 0)) for n in range(400)]
        os.fork() and os._exit(0)
        time.sleep(30)"""),
    "half-requests": python("""
        import socket, time
        all = [socket.create_connection(('127.0.0.1', int(os.environ['PORT']))) for n in range(200)]
        for one in all[-60:]:
            try: one.sendall(b'POST /v1/run HTTP/1.1\\r\\nContent-Length: 4000000\\r\\n')
            except ConnectionError: pass
        os.fork() and os._exit(0)
        time.sleep(30)"""),
    "busy": "for n in {1..30}; do (while :; do :; done) & done",
    "slower": "renice 19 -p 1; for n in {1..10}; do (while :; do :; done) & done",
    "orphans": "for n in {1..50}; do (setsid sleep 0.01 &) ; done",
    "large-environment": "for n in {1..300}; do export V$n=$(printf %01000d 1); done",
}  # fmt: skip


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS.keys())
async def test_the_agent_survives(agent: RunningAgent, client: SignedClient, attack: str) -> None:
    event = await client.last_event(f"export PORT={agent.port}\n{attack}", 4)
    assert isinstance(event, Finished | Failure)
    await still_works(client)


SPYING = {
    "environment": "cat /proc/1/environ",
    "memory": "cat /proc/1/mem",
    "descriptors": "ls /proc/1/fd/",
    "descriptor-of-the-log": "echo forged >/proc/1/fd/2",
    "maps": "cat /proc/1/maps",
    "directory": "ls /proc/1/cwd/",
    "oom-score": "echo 1000 >/proc/1/oom_score_adj",
    "attach": python("raise SystemExit(c.ptrace(16, 1, 0, 0) != 0)"),
    "seize": python("raise SystemExit(c.ptrace(0x4206, 1, 0, 0) != 0)"),
    "read-memory": python("""
        class Vector(ctypes.Structure): _fields_ = [('base', ctypes.c_void_p), ('size', ctypes.c_size_t)]
        buffer = ctypes.create_string_buffer(8)
        here, there = Vector(ctypes.addressof(buffer), 8), Vector(0x400000, 8)
        raise SystemExit(c.process_vm_readv(1, ctypes.byref(here), 1, ctypes.byref(there), 1, 0) < 0)"""),
    "take-a-descriptor": python("""
        agent = os.pidfd_open(1)
        raise SystemExit(all(c.syscall(438, agent, n, 0) < 0 for n in range(30)))"""),
    "signal-as-if-from-outside": python(SIGNAL.format(code=0)),
    "listen-in-its-place": python("""
        import socket
        for address in ('127.0.0.1', '0.0.0.0'):
            s = socket.socket()
            s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            s.bind((address, int(os.environ['PORT'])))
            s.listen()"""),
}  # fmt: skip


async def test_nothing_of_the_agent_can_be_read_or_taken(agent: RunningAgent, client: SignedClient) -> None:
    for name, command in SPYING.items():
        outcome = await client.run(f"export PORT={agent.port}\n{command}")
        assert outcome.exit_code != 0, name
        assert SECRET.encode() not in outcome.stdout.head + outcome.stderr.head, name
    assert SECRET not in await client.out("env; cat /proc/[0-9]*/environ 2>/dev/null | tr '\\0' '\\n'")
    assert "forged" not in agent.log
    await still_works(client)


async def test_the_shell_is_under_the_system_call_filter(client: SignedClient) -> None:
    """Seen by what nothing else refuses: space that is reserved, which file systems here have."""
    outcome = await client.run("fallocate -l 4096 reserved")
    assert b"not supported" in outcome.stderr.head
    outcome = await client.run("python3 -c 'import socket; socket.socket(socket.AF_VSOCK)'")
    assert b"Address family not supported" in outcome.stderr.head


async def test_a_signal_that_was_queued_with_a_false_sender_stops_nothing(client: SignedClient) -> None:
    """sigqueue(3) may name any sender, and its code shows that it was that call."""
    forged = python(SIGNAL.format(code=-1))
    assert (await client.run(forged)).exit_code == 0
    await asyncio.sleep(0.3)
    await still_works(client)


async def test_the_order_to_stop_comes_from_outside() -> None:
    with agent_as_pid_one() as agent:
        async with SignedClient(agent) as client:
            assert (await client.run("kill -TERM 1; kill -INT 1")).exit_code == 0
            assert (await client.run("true")).exit_code == 0
        assert await asyncio.to_thread(agent.stop) == 143


async def test_the_shells_processes_are_the_first_to_go() -> None:
    with agent_as_pid_one() as agent:
        async with SignedClient(agent) as client:
            assert await client.out("cat /proc/self/oom_score_adj; nice") == "1000\n5\n"
            await client.last_event("renice 19 -p 1; kill -9 -1")
            await client.last_event("true")
            assert await client.out("cat /proc/self/oom_score_adj; nice") == "1000\n19\n"


async def test_no_zombies_are_left(client: SignedClient) -> None:
    await client.run("for n in {1..20}; do setsid sleep 0.1 & done; disown -a; kill -9 $PPID")
    await still_works(client)
    deadline = time.monotonic() + 15
    while zombies := await client.out("cat /proc/[0-9]*/stat 2>/dev/null | grep -c ') Z 1 ' || true"):
        if zombies == "0\n":
            break
        assert time.monotonic() < deadline, zombies
        await asyncio.sleep(0.5)
    # asyncio still gets the status of what it starts.
    assert (await client.run("exit 7")).exit_code == 7


async def test_when_all_processes_are_taken_the_agent_answers_and_the_next_command_too() -> None:
    """RLIMIT_NPROC, which counts the processes of one uid, stands for the pod's limit."""
    with agent_as_pid_one("prlimit", "--nproc=60") as agent:
        async with SignedClient(agent) as client:
            await client.run("STATE=kept")
            bomb = asyncio.create_task(client.last_event("bomb() { bomb | bomb & }; bomb; sleep 60", 4))
            for _ in range(5):
                await asyncio.sleep(0.5)
                began = time.monotonic()
                assert (await client.http.get(HEALTH_PATH)).status_code == 200
                assert time.monotonic() - began < 3
            assert isinstance(await bomb, Finished | Failure)
            await still_works(client)
            # A shell that is lost while nothing can be started comes back all the same.
            await client.last_event("for n in {1..80}; do setsid sleep 60 & done; kill -9 $PPID", 4)
            await still_works(client)


def test_nothing_in_the_workspace_or_the_environment_becomes_the_agents_code() -> None:
    with agent_directory() as directory:
        workspace = directory / "workspace"
        for name in ("asyncio", "json", "sitecustomize", "usercustomize", "sandbox_agent", "ctypes"):
            (workspace / f"{name}.py").write_text(f"open({str(directory / 'state/ran')!r}, 'w')")
        environment = {
            "PYTHONPATH": str(workspace),
            "PYTHONSTARTUP": str(workspace / "json.py"),
            "PYTHONUSERBASE": str(workspace),
            "PYTHONINSPECT": "1",
            "HOME": str(workspace),
        }
        prefix = (*AS_PID_ONE, "env", "-C", str(workspace))
        agent = RunningAgent(directory, free_port(), (), environment, prefix)
        agent.start()
        try:
            asyncio.run(_one_command(agent))
        finally:
            agent.close()
        assert not (directory / "state/ran").exists()


async def _one_command(agent: RunningAgent) -> None:
    async with SignedClient(agent) as client:
        assert (await client.run("true")).exit_code == 0
