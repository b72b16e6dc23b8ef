"""Sessions and their sandboxes: one for each, limits, ends. The sandboxes are made up, the state is real."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

from cli_mcp.execution import (
    NotSessionOwner,
    Outcome,
    Progress,
    ProgressCallback,
    SandboxUnavailable,
    SessionEnded,
    StreamOutput,
)
from local_runtime.sessions import LocalSessions, SessionLimits
from local_runtime.state import StateDirectory
from mcp_server.backend import SessionKey, SessionState

if TYPE_CHECKING:
    from local_runtime.sandbox import SandboxFactory

SHORT = SessionLimits(idle_seconds=0.2)
A, B = SessionKey("local", "a"), SessionKey("local", "b")


class FakeSandbox:
    """Runs `write NAME`, `sleep SECONDS` and nothing else."""

    def __init__(self, workspace: Path, created_seconds: float) -> None:
        self.workspace = workspace
        self.created_seconds = created_seconds
        self.closed = asyncio.get_running_loop().create_future()

    def move_workspace(self, path: Path) -> None:
        self.workspace = path

    def assign(self, session_id: str) -> None:
        self.session_id = session_id

    async def run(self, command: str, timeout_seconds: float, on_progress: ProgressCallback) -> Outcome:
        verb, _, argument = command.partition(" ")
        if verb == "write":
            (self.workspace / argument).touch()
        if verb == "sleep":
            await asyncio.wait([self.closed], timeout=float(argument))
        if self.closed.done():
            raise SessionEnded(self.closed.result())
        names = " ".join(sorted(path.name for path in self.workspace.iterdir()))
        return Outcome(0, StreamOutput(names.encode()), StreamOutput(b""), 1, "/workspace")

    async def close(self, reason: str) -> None:
        if not self.closed.done():
            self.closed.set_result(reason)
        await asyncio.sleep(0)


class FakeFactory:
    def __init__(self, state: StateDirectory, clock: Callable[[], float]) -> None:
        self.failure: str | None = None
        self.fails = False
        self.made: list[FakeSandbox] = []
        self._state = state
        self._clock = clock

    async def create(self, workspace: Path | None = None) -> FakeSandbox:
        await asyncio.sleep(0.01)
        if self.fails:
            self.failure = "no sandbox today"
            raise SandboxUnavailable(self.failure)
        self.failure = None
        sandbox = FakeSandbox(workspace or self._state.new_workspace(), self._clock())
        self.made.append(sandbox)
        return sandbox

    async def discard(self, sandbox: FakeSandbox) -> None:
        self._state.discard(sandbox.workspace)


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


class World:
    """Sessions with a clock that stands still unless it is told to go on."""

    def __init__(self, directory: Path, limits: SessionLimits, warm_pool_size: int) -> None:
        self.clock = Clock()
        self.state = StateDirectory.open(directory)
        self.factory = FakeFactory(self.state, self.clock)
        self.sessions = LocalSessions(
            self.state,
            cast("SandboxFactory", self.factory),
            limits,
            warm_pool_size=warm_pool_size,
            clock=self.clock,
        )

    async def run(self, key: SessionKey, command: str = "list") -> tuple[SessionState, str]:
        def ignore(progress: Progress) -> None:
            pass

        found = await self.sessions.run(key, command, 10, ignore)
        return found.session, found.outcome.stdout.head.decode()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(10):
            while not condition():
                await asyncio.sleep(0.01)


@asynccontextmanager
async def world(
    directory: Path, limits: SessionLimits = SHORT, warm_pool_size: int = 0
) -> AsyncIterator[World]:
    made = World(directory, limits, warm_pool_size)
    made.sessions.start()
    try:
        yield made
    finally:
        await made.sessions.close()
        made.state.close()


async def test_a_session_is_new_once_and_then_continued(tmp_path: Path) -> None:
    async with world(tmp_path) as it:
        assert await it.run(A, "write x") == (SessionState.NEW, "x")
        assert await it.run(A) == (SessionState.CONTINUED, "x")
        assert await it.run(B) == (SessionState.NEW, "")
        assert it.sessions.session_count() == 2


async def test_calls_at_the_same_time_share_one_sandbox(tmp_path: Path) -> None:
    async with world(tmp_path) as it:
        states = await asyncio.gather(*(it.run(A) for _ in range(20)))
        assert len(it.factory.made) == 1
        assert [state for state, _ in states].count(SessionState.NEW) == 1


async def test_owners_do_not_share_a_session_of_the_same_id(tmp_path: Path) -> None:
    async with world(tmp_path) as it:
        await it.run(A, "write x")
        assert await it.run(SessionKey("other", "a")) == (SessionState.NEW, "")
        with pytest.raises(NotSessionOwner):
            await it.sessions.end(SessionKey("third", "a"), delete_workspace=True)
        assert await it.run(A) == (SessionState.CONTINUED, "x")


async def test_a_failed_start_reaches_every_waiting_call_and_the_next_one_tries_again(tmp_path: Path) -> None:
    async with world(tmp_path) as it:
        it.factory.fails = True
        answers = await asyncio.gather(*(it.run(A) for _ in range(3)), return_exceptions=True)
        assert all(isinstance(answer, SandboxUnavailable) for answer in answers)
        assert not it.sessions.readiness().ready
        assert it.sessions.readiness().detail == "no sandbox today"
        assert it.sessions.session_count() == 0
        it.factory.fails = False
        assert await it.run(A) == (SessionState.NEW, "")
        assert it.sessions.readiness().ready


async def test_a_call_that_was_cancelled_while_the_sandbox_started_takes_nothing_from_the_others(
    tmp_path: Path,
) -> None:
    async with world(tmp_path) as it:
        first = asyncio.create_task(it.run(A))
        second = asyncio.create_task(it.run(A))
        await asyncio.sleep(0)
        first.cancel()
        assert await second == (SessionState.NEW, "")


async def test_an_idle_session_ends_and_is_resumed_with_its_workspace(tmp_path: Path) -> None:
    async with world(tmp_path) as it:
        await it.run(A, "write x")
        await asyncio.sleep(0.3)
        assert it.sessions.session_count() == 1  # by the clock no time has passed
        it.clock.now += 1
        await it.until(lambda: it.sessions.session_count() == 0)
        assert await it.run(A) == (SessionState.RESUMED, "x")


async def test_a_session_is_not_idle_while_a_command_runs(tmp_path: Path) -> None:
    async with world(tmp_path) as it:
        call = asyncio.create_task(it.run(A, "sleep 0.3"))
        await it.until(lambda: bool(it.factory.made))
        it.clock.now += 100
        assert (await call)[0] is SessionState.NEW


async def test_a_session_is_not_idle_while_it_is_held_and_gets_its_whole_time_afterwards(
    tmp_path: Path,
) -> None:
    async with world(tmp_path) as it:
        with it.sessions.hold(A):
            assert it.sessions.session_count() == 0  # holding makes no sandbox
            with it.sessions.hold(A):
                await it.run(A, "write x")
            it.clock.now += 100
            await asyncio.sleep(0.1)  # several looks
            assert it.sessions.session_count() == 1
        await asyncio.sleep(0.1)
        assert await it.run(A) == (SessionState.CONTINUED, "x")
        it.clock.now += 1
        await it.until(lambda: it.sessions.session_count() == 0)


async def test_a_sandbox_ends_at_its_lifetime_also_while_a_command_runs(tmp_path: Path) -> None:
    limits = SessionLimits(idle_seconds=0.2, lifetime_seconds=50)
    async with world(tmp_path, limits) as it:
        call = asyncio.create_task(it.run(A, "sleep 10"))
        await it.until(lambda: bool(it.factory.made))
        it.clock.now += 51
        with pytest.raises(SessionEnded, match="lifetime"):
            await call


@pytest.mark.parametrize(
    "limits", [SessionLimits(60, sessions=2), SessionLimits(60, sessions_per_owner=2)], ids=["all", "owner"]
)
async def test_beyond_the_limit_a_session_is_refused_until_another_ends(
    tmp_path: Path, limits: SessionLimits
) -> None:
    async with world(tmp_path, limits) as it:
        await it.run(A)
        await it.run(B)
        with pytest.raises(SandboxUnavailable, match="2 sessions"):
            await it.run(SessionKey("local", "c"))
        assert (await it.run(A))[0] is SessionState.CONTINUED
        await it.sessions.end(B, delete_workspace=False)
        assert (await it.run(SessionKey("local", "c")))[0] is SessionState.NEW


async def test_the_limit_of_an_owner_is_not_that_of_another(tmp_path: Path) -> None:
    async with world(tmp_path, SessionLimits(60, sessions_per_owner=1)) as it:
        await it.run(A)
        assert (await it.run(SessionKey("other", "a")))[0] is SessionState.NEW


async def test_ending_tells_the_running_call_and_keeps_the_workspace(tmp_path: Path) -> None:
    async with world(tmp_path) as it:
        await it.run(A, "write x")
        call = asyncio.create_task(it.run(A, "sleep 10"))
        await asyncio.sleep(0.05)
        await it.sessions.end(A, delete_workspace=False)
        with pytest.raises(SessionEnded, match=r"^session ended by DELETE$"):
            await call
        assert await it.run(A) == (SessionState.RESUMED, "x")


async def test_ending_with_the_workspace_leaves_nothing(tmp_path: Path) -> None:
    async with world(tmp_path) as it:
        await it.run(A, "write x")
        await it.sessions.end(A, delete_workspace=True)
        assert await it.run(A) == (SessionState.NEW, "")
        await it.until(lambda: list(it.state.trash.iterdir()) == [])


async def test_the_workspace_of_a_session_that_is_not_open_can_be_deleted(tmp_path: Path) -> None:
    async with world(tmp_path) as it:
        await it.run(A, "write x")
        await it.sessions.end(A, delete_workspace=False)
        await it.sessions.end(A, delete_workspace=True)
        assert await it.run(A) == (SessionState.NEW, "")


async def test_an_unknown_session_may_be_ended(tmp_path: Path) -> None:
    async with world(tmp_path) as it:
        await it.sessions.end(A, delete_workspace=True)


async def test_a_session_that_is_ended_while_it_starts_leaves_no_sandbox(tmp_path: Path) -> None:
    async with world(tmp_path) as it:
        call = asyncio.create_task(it.run(A))
        await asyncio.sleep(0)
        await it.sessions.end(A, delete_workspace=True)
        with pytest.raises(SessionEnded):
            await call
        assert all(sandbox.closed.done() for sandbox in it.factory.made)


async def test_a_new_session_takes_a_warm_sandbox_and_the_pool_is_filled_again(tmp_path: Path) -> None:
    async with world(tmp_path, warm_pool_size=1) as it:
        await it.until(lambda: it.sessions.warm_count() == 1)
        warm = it.factory.made[0]
        await it.run(A, "write x")
        assert warm.workspace == it.state.kept_workspace(warm.workspace.name)
        assert (warm.workspace / "x").exists()
        await it.until(lambda: it.sessions.warm_count() == 1)
        assert it.sessions.session_count() == 1


async def test_a_session_that_comes_back_does_not_take_a_warm_sandbox(tmp_path: Path) -> None:
    async with world(tmp_path, warm_pool_size=1) as it:
        await it.run(A, "write x")
        await it.sessions.end(A, delete_workspace=False)
        await it.until(lambda: it.sessions.warm_count() == 1)
        assert await it.run(A) == (SessionState.RESUMED, "x")
        assert it.sessions.warm_count() == 1


async def test_closing_ends_all_sandboxes_and_refuses_new_sessions(tmp_path: Path) -> None:
    async with world(tmp_path, warm_pool_size=2) as it:
        await it.until(lambda: it.sessions.warm_count() == 2)
        call = asyncio.create_task(it.run(A, "sleep 10"))
        await asyncio.sleep(0.05)
        await it.sessions.close()
        with pytest.raises(SessionEnded, match="shutting down"):
            await call
        with pytest.raises(SandboxUnavailable, match="shutting down"):
            await it.run(B)
        assert all(sandbox.closed.done() for sandbox in it.factory.made)
        assert list(it.state.pool.iterdir()) == []
