"""Launching with real bubblewrap: what is let in, and above all what is not."""

import asyncio
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from cli_mcp.execution import SandboxUnavailable
from local_runtime import bubblewrap, cgroups, isolation, rlimits
from local_runtime.bubblewrap import View
from local_runtime.cgroups import Limits, SessionGroups
from local_runtime.identity import Identity, server_identity, session_identity
from local_runtime.launcher import BubblewrapLauncher, LaunchFailed
from sandbox_agent import seccomp

LIMITS = Limits(memory_bytes=256 << 20, processes=50, cpu_shares=102)
UID = 1_999_999_998
TOUCH = ["bash", "-c", "touch /workspace/ran; cat"]


@dataclass
class Workshop:
    """Directories of one sandbox, and the launchers that are made for it."""

    root: Path
    identity: Identity
    gateways: list[tuple[int, int]] = field(default_factory=list)

    @property
    def workspace(self) -> Path:
        return self.root / "workspace"

    def launcher(
        self, *, view: View | None = None, groups: SessionGroups | None = None, program: Path | None = None
    ) -> BubblewrapLauncher:
        async def open_gateway(pid: int, network_namespace: int) -> None:
            self.gateways.append((pid, network_namespace))

        return BubblewrapLauncher(
            program or bubblewrap.find_bubblewrap(),
            view or View(self.workspace, self.root / "exchange", 1 << 20, 1 << 20, {"PATH": "/usr/bin:/bin"}),
            bubblewrap.system_files(),
            identity=self.identity,
            limits=rlimits.session_rlimits(LIMITS, workspace_bytes=1 << 20, grouped=frozenset()),
            groups=groups or SessionGroups({}, LIMITS),
            seccomp=seccomp.filter_program(),
            open_gateway=open_gateway,
        )

    def ran(self) -> bool:
        return (self.workspace / "ran").exists()


@pytest.fixture
def workshop(state_root: Path) -> Iterator[Workshop]:
    root = os.geteuid() == 0
    made = Workshop(state_root, session_identity(UID) if root else server_identity())
    made.workspace.mkdir(mode=0o700)
    (state_root / "exchange").mkdir(mode=0o711)
    os.chown(made.workspace, made.identity.uid, made.identity.gid)
    yield made
    assert processes_that_see(made.workspace) == []


def processes_that_see(workspace: Path) -> list[str]:
    """The processes that have the workspace mounted: a sandbox that was left running."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdecimal():
            try:
                mounts = (process / "mountinfo").read_text()
            except OSError:
                continue
            if f" {workspace} /workspace " in mounts:
                found.append(process.name)
    return found


@dataclass
class Pipes:
    stdin: int
    write: int
    read: int
    output: int

    async def line(self) -> bytes:
        return await asyncio.to_thread(os.read, self.read, 4096)


@pytest.fixture
def pipes() -> Iterator[Pipes]:
    stdin, write = os.pipe()
    read, output = os.pipe()
    yield Pipes(stdin, write, read, output)
    for fd in (stdin, write, read, output):
        os.close(fd)


async def test_what_was_launched_is_isolated_and_its_own_first_process(
    workshop: Workshop, pipes: Pipes
) -> None:
    launcher = workshop.launcher()
    argv = ["bash", "-c", "echo $$ $(id -u) $PWD; cat"]
    launched = await launcher.launch(argv, stdin=pipes.stdin, output=pipes.output, pass_fds=[])
    assert await pipes.line() == b"1 1000 /workspace\n"
    namespaces = isolation.namespaces_of(launched.root_pid)
    assert not set(namespaces.inodes.values()) & set(isolation.namespaces_of("self").inodes.values())
    assert workshop.gateways == [(launched.root_pid, namespaces.inodes["net"])]
    launched.process.kill()
    await launched.process.wait()


async def test_only_the_descriptors_that_are_passed_are_open(workshop: Workshop, pipes: Pipes) -> None:
    spare = os.open("/etc/passwd", os.O_RDONLY)
    os.set_inheritable(spare, True)
    argv = ["bash", "-c", "echo /proc/1/fd/*; cat"]
    launched = await workshop.launcher().launch(
        argv, stdin=pipes.stdin, output=pipes.output, pass_fds=[pipes.write]
    )
    os.close(spare)
    found = {int(path.rsplit("/", 1)[1]) for path in (await pipes.line()).decode().split()}
    listing = {3, 255}  # bash holds its script and the directory that it lists
    assert found - listing == {0, 1, 2, pipes.write}
    launched.process.kill()
    await launched.process.wait()


async def test_a_sandbox_whose_limits_cannot_be_set_never_runs(workshop: Workshop, pipes: Pipes) -> None:
    missing = cgroups.Parent(1, ("memory",), Path("/nonexistent"))
    groups = SessionGroups({Path("/nonexistent/group"): missing}, LIMITS)
    with pytest.raises(LaunchFailed):
        await workshop.launcher(groups=groups).launch(
            TOUCH, stdin=pipes.stdin, output=pipes.output, pass_fds=[]
        )
    await asyncio.sleep(0.3)
    assert not workshop.ran()


@pytest.mark.parametrize(
    ("lie", "value"),
    [("net-namespace", 1), ("pid-namespace", "x"), ("child-pid", 1), ("child-pid", None)],
)
async def test_a_report_that_does_not_fit_the_kernels_own_ends_the_launch(
    workshop: Workshop, pipes: Pipes, monkeypatch: pytest.MonkeyPatch, lie: str, value: object
) -> None:
    import json

    true_loads = json.loads
    monkeypatch.setattr("json.loads", lambda text: {**true_loads(text), lie: value})
    with pytest.raises(LaunchFailed):
        await workshop.launcher().launch(TOUCH, stdin=pipes.stdin, output=pipes.output, pass_fds=[])
    await asyncio.sleep(0.3)
    assert not workshop.ran()


async def test_a_host_namespace_that_is_shared_ends_the_launch(
    workshop: Workshop, pipes: Pipes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """bubblewrap that keeps the network, because of a bug or since it is another program."""
    true_options = bubblewrap.options

    def keep_network(*args: object, **kwargs: object) -> list[str]:
        words = true_options(*args, **kwargs)  # type: ignore[arg-type]
        return [*words[:1], "--share-net", *words[1:]]

    monkeypatch.setattr(bubblewrap, "options", keep_network)
    with pytest.raises(LaunchFailed) as failure:
        await workshop.launcher().launch(TOUCH, stdin=pipes.stdin, output=pipes.output, pass_fds=[])
    assert "net" in failure.value.detail
    await asyncio.sleep(0.3)
    assert not workshop.ran()


async def test_a_sandbox_without_a_filter_is_not_admitted(
    workshop: Workshop, pipes: Pipes, monkeypatch: pytest.MonkeyPatch
) -> None:
    true_options = bubblewrap.options

    def without_filter(*args: object, **kwargs: object) -> list[str]:
        words = true_options(*args, **kwargs)  # type: ignore[arg-type]
        at = words.index("--seccomp")
        return words[:at] + words[at + 2 :]

    monkeypatch.setattr(bubblewrap, "options", without_filter)
    with pytest.raises(LaunchFailed, match="log") as failure:
        await workshop.launcher().launch(
            ["bash", "-c", "read -r && touch /workspace/ran"],
            stdin=pipes.stdin,
            output=pipes.output,
            pass_fds=[],
        )
    assert "filter" in failure.value.detail
    assert not workshop.ran()


async def test_the_message_of_bubblewrap_is_for_the_operator_alone(workshop: Workshop, pipes: Pipes) -> None:
    view = View(workshop.root / "missing", workshop.root / "exchange", 1 << 20, 1 << 20)
    with pytest.raises(LaunchFailed) as failure:
        await workshop.launcher(view=view).launch(TOUCH, stdin=pipes.stdin, output=pipes.output, pass_fds=[])
    assert "missing" in failure.value.detail
    assert "missing" not in str(failure.value)


async def test_a_program_that_is_not_there_is_a_failed_launch(workshop: Workshop, pipes: Pipes) -> None:
    with pytest.raises(SandboxUnavailable):
        await workshop.launcher(program=Path("/nonexistent/bwrap")).launch(
            TOUCH, stdin=pipes.stdin, output=pipes.output, pass_fds=[]
        )


async def test_a_program_that_only_pretends_is_a_failed_launch(workshop: Workshop, pipes: Pipes) -> None:
    fake = workshop.root / "bwrap"
    fake.write_text('#!/bin/bash\nwhile [[ $1 != -- ]]; do shift; done; shift; exec "$@"\n')
    fake.chmod(0o755)
    with pytest.raises(LaunchFailed):
        await workshop.launcher(program=fake).launch(
            ["bash", "-c", "true"], stdin=pipes.stdin, output=pipes.output, pass_fds=[]
        )


async def test_cancelling_a_launch_leaves_nothing(workshop: Workshop, pipes: Pipes) -> None:
    for delay_seconds in (0.0, 0.002, 0.004, 0.006, 0.008, 0.012):
        launching = asyncio.create_task(
            workshop.launcher().launch(
                ["bash", "-c", "read -r"], stdin=pipes.stdin, output=pipes.output, pass_fds=[]
            )
        )
        await asyncio.sleep(delay_seconds)
        if launching.cancel():
            with pytest.raises(asyncio.CancelledError):
                await launching
        else:
            launched = launching.result()
            launched.process.kill()
            await launched.process.wait()


async def test_killing_bubblewrap_ends_every_process_of_the_sandbox(workshop: Workshop, pipes: Pipes) -> None:
    argv = ["bash", "-c", "setsid sleep 100 & trap '' TERM HUP; sleep 100 & echo up; wait"]
    launched = await workshop.launcher().launch(argv, stdin=pipes.stdin, output=pipes.output, pass_fds=[])
    await pipes.line()
    assert len(processes_that_see(workshop.workspace)) >= 3
    launched.process.send_signal(signal.SIGKILL)
    await launched.process.wait()
    async with asyncio.timeout(10):
        while processes_that_see(workshop.workspace):
            await asyncio.sleep(0.05)


async def test_limits_hold_for_what_is_launched(workshop: Workshop, pipes: Pipes) -> None:
    argv = ["bash", "-c", "echo $(ulimit -Hc) $(ulimit -Hf) $(ulimit -Hu); cat"]
    launched = await workshop.launcher().launch(argv, stdin=pipes.stdin, output=pipes.output, pass_fds=[])
    assert await pipes.line() == b"0 1024 50\n"
    launched.process.kill()
    await launched.process.wait()


async def test_a_moved_workspace_is_used_by_the_next_launch(workshop: Workshop, pipes: Pipes) -> None:
    launcher = workshop.launcher()
    moved = workshop.root / "moved"
    workshop.workspace.rename(moved)
    launcher.move_workspace(moved)
    launched = await launcher.launch(
        ["bash", "-c", "touch ran; echo done; cat"], stdin=pipes.stdin, output=pipes.output, pass_fds=[]
    )
    await pipes.line()
    launched.process.kill()
    await launched.process.wait()
    assert (moved / "ran").exists()
