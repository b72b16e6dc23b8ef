"""Sessions with a real bash, without isolation, in the test's own directory."""

import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from cli_mcp.execution import Outcome, Progress
from sandbox_agent.confined import ConfinedDirectory
from sandbox_agent.launch import DirectLauncher
from sandbox_agent.session import ShellSession
from sandbox_agent.spill import SpillLimits

ENVIRONMENT = {"PATH": os.environ["PATH"], "HOME": "/", "LANG": "C.UTF-8"}


class TestSession(ShellSession):
    """A session with what most tests do, in short."""

    __test__ = False
    directory: Path

    async def sh(self, command: str, timeout_seconds: float = 20) -> Outcome:
        return await self.run(command, timeout_seconds, ignore_progress)

    async def sh_after_attack(self, command: str, timeout_seconds: float = 20) -> Outcome:
        """Like `sh`. Without a pid namespace a command can kill the sandbox's first process, whose death may
        then hit the next command; that one says so, and the one after it has to work."""
        outcome = await self.sh(command, timeout_seconds)
        if any("background processes are gone" in note for note in outcome.notes):
            outcome = await self.sh(command, timeout_seconds)
        return outcome

    async def out(self, command: str, timeout_seconds: float = 20) -> str:
        return stdout(await self.sh(command, timeout_seconds))


MakeSession = Callable[..., Awaitable[TestSession]]


def ignore_progress(progress: Progress) -> None:
    """For tests that do not look at it."""


def stdout(outcome: Outcome) -> str:
    return (outcome.stdout.head + outcome.stdout.tail).decode(errors="replace")


def stderr(outcome: Outcome) -> str:
    return (outcome.stderr.head + outcome.stderr.tail).decode(errors="replace")


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def processes_with(marker: str) -> list[int]:
    """Pids of live processes that have `marker` in their command line."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if marker.encode() in path.read_bytes() and alive(int(path.parent.name)):
                found.append(int(path.parent.name))
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def wait_until(condition: Callable[[], bool], seconds: float = 10) -> bool:
    """Poll in a thread of its own; see asyncio.to_thread."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


@pytest.fixture
async def make_session(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[MakeSession]:
    sessions: list[TestSession] = []
    workspaces: list[ConfinedDirectory] = []

    async def make(
        *, queue_limit: int = 16, queue_seconds: float = 55, spill: SpillLimits | None = None
    ) -> TestSession:
        directory = tmp_path_factory.mktemp("session")
        for name in ("exchange", "workspace"):
            (directory / name).mkdir()
        launcher = DirectLauncher(directory / "exchange", directory / "workspace", ENVIRONMENT)
        workspace = ConfinedDirectory(directory / "workspace")
        session = TestSession(
            launcher,
            workspace,
            queue_limit=queue_limit,
            queue_seconds=queue_seconds,
            spill=spill or SpillLimits(),
        )
        session.directory = directory
        workspaces.append(workspace)
        sessions.append(session)
        await session.start()
        return session

    yield make
    for session in sessions:
        await session.close("the test is over")
    for workspace in workspaces:
        workspace.close()


@pytest.fixture
async def session(make_session: MakeSession) -> TestSession:
    return await make_session()
