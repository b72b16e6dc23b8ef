"""The sandbox backend of local mode: which session has which sandbox, since when, and for how long.

A session's sandbox ends after a time without commands, its workspace stays: when the session comes back it
gets a new shell in the old workspace.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TypeVar

from cli_mcp.execution import (
    NotSessionOwner,
    ProgressCallback,
    SandboxUnavailable,
)
from local_runtime.pool import WarmPool
from local_runtime.sandbox import Sandbox, SandboxFactory
from local_runtime.state import StateDirectory, session_name
from mcp_server.audit import CallRecord
from mcp_server.backend import (
    OpenSession,
    Readiness,
    SessionKey,
    SessionOutcome,
    SessionState,
    SessionToolResult,
)

log = logging.getLogger(__name__)

T = TypeVar("T")

_LONGEST_LOOK_SECONDS = 5.0
_LOOKS_PER_IDLE_TIMEOUT = 20
_CLOSED = "the server is shutting down"


@dataclass(frozen=True, slots=True)
class SessionLimits:
    """How many sessions there may be at a time, and how long one may be idle or live; None is no limit."""

    idle_seconds: float
    lifetime_seconds: float | None = None
    sessions: int | None = None
    sessions_per_owner: int | None = None


@dataclass(slots=True, eq=False)
class _Session:
    """A session that has a sandbox, or is getting one; `state` is what its next result says."""

    starting: asyncio.Task[Sandbox]
    state: SessionState
    calls: int = 0
    idle_since: float = field(default_factory=time.monotonic)


class LocalSessions:
    """See mcp_server.backend.SandboxBackend. In use between `start` and `close`.

    `remark` says what an operator should know although sessions can be served. `on_call` hears of each call
    that came to a sandbox, with its command if it has one.
    """

    def __init__(
        self,
        state: StateDirectory,
        factory: SandboxFactory,
        limits: SessionLimits,
        *,
        warm_pool_size: int = 0,
        remark: Callable[[], str | None] = lambda: None,
        on_call: Callable[[CallRecord], None] = lambda call: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._state = state
        self._factory = factory
        self._limits = limits
        self._remark = remark
        self._on_call = on_call
        self._clock = clock
        self._sessions: dict[SessionKey, _Session] = {}
        self._ending: dict[SessionKey, asyncio.Task[None]] = {}
        self._held: Counter[SessionKey] = Counter()
        self._pool = WarmPool(warm_pool_size, factory.create)
        self._trash_filled = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._closed = False

    def start(self) -> None:
        self._pool.start()
        self._trash_filled.set()  # with what an earlier server left
        self._tasks = [asyncio.create_task(self._expire()), asyncio.create_task(self._empty_trash())]

    async def close(self) -> None:
        """End every sandbox; workspaces stay."""
        self._closed = True
        unclaimed = await self._pool.close()
        for key in list(self._sessions):
            self._end(key, _CLOSED)
        await asyncio.gather(*self._ending.values(), *(sandbox.close(_CLOSED) for sandbox in unclaimed))
        for sandbox in unclaimed:
            await self._factory.discard(sandbox)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def run(
        self, session: SessionKey, command: str, timeout_seconds: float, on_progress: ProgressCallback
    ) -> SessionOutcome:
        outcome, found = await self._in_sandbox(
            session, command, lambda sandbox: sandbox.run(command, timeout_seconds, on_progress)
        )
        return SessionOutcome(outcome, found)

    async def call_tool(
        self, session: SessionKey, name: str, arguments: Mapping[str, object], timeout_seconds: float
    ) -> SessionToolResult:
        command = arguments.get("command")
        result, found = await self._in_sandbox(
            session,
            command if isinstance(command, str) else None,
            lambda sandbox: sandbox.call_tool(name, arguments, timeout_seconds),
        )
        return SessionToolResult(result, found)

    async def _in_sandbox(
        self, session: SessionKey, command: str | None, work: Callable[[Sandbox], Awaitable[T]]
    ) -> tuple[T, SessionState]:
        """What `work` returns for the session's sandbox, and how that was found."""
        entry = self._sessions.get(session) or self._begin(session)
        entry.calls += 1
        try:
            sandbox = await asyncio.shield(entry.starting)
            with self._recorded(session, command):
                done = await work(sandbox)
        finally:
            entry.calls -= 1
            entry.idle_since = self._clock()
        found, entry.state = entry.state, SessionState.CONTINUED
        return done, found

    @contextmanager
    def _recorded(self, session: SessionKey, command: str | None) -> Iterator[None]:
        started_at = datetime.now(UTC)
        try:
            yield
        finally:
            owner, id_ = session.owner, session.id
            name = session_name(owner, id_)
            self._on_call(CallRecord(owner, id_, name, id_, started_at, datetime.now(UTC), command))

    async def end(self, session: SessionKey, *, delete_workspace: bool) -> None:
        if session in self._sessions:
            self._end(session, "session ended by DELETE")
        elif any(other.id == session.id for other in self._sessions):
            raise NotSessionOwner("The session belongs to another caller.")
        ending = self._ending.get(session)
        if ending is not None:
            await asyncio.shield(ending)
        if delete_workspace and session not in self._sessions:
            await self._discard_workspace(session)

    @contextmanager
    def hold(self, session: SessionKey) -> Iterator[None]:
        self._held[session] += 1
        try:
            yield
        finally:
            self._held[session] -= 1
            if not self._held[session]:
                del self._held[session]
            if (entry := self._sessions.get(session)) is not None:
                entry.idle_since = self._clock()

    def open_sessions(self, owner: str) -> list[OpenSession]:
        now = self._clock()
        return [
            OpenSession(key.id, None if entry.calls else max(0.0, now - entry.idle_since))
            for key, entry in self._sessions.items()
            if key.owner == owner
        ]

    def readiness(self) -> Readiness:
        failure = self._factory.failure
        if failure is not None:
            return Readiness(False, failure)
        remark = self._remark()
        return Readiness(ready=True) if remark is None else Readiness(True, remark)

    def session_count(self) -> int:
        return len(self._sessions)

    def warm_count(self) -> int:
        return len(self._pool)

    def _begin(self, key: SessionKey) -> _Session:
        """Enter a session at once, so that all calls that come meanwhile wait for the same sandbox."""
        if self._closed:
            raise SandboxUnavailable(f"Not run: {_CLOSED}.")
        self._check_limits(key)
        kept = self._state.kept_workspace(session_name(key.owner, key.id)) is not None
        state = SessionState.RESUMED if kept else SessionState.NEW
        entry = _Session(
            asyncio.create_task(self._make(key, self._ending.get(key))), state, idle_since=self._clock()
        )
        entry.starting.add_done_callback(lambda starting: self._forget_failed(key, entry))
        self._sessions[key] = entry
        return entry

    def _check_limits(self, key: SessionKey) -> None:
        owned = sum(other.owner == key.owner for other in self._sessions)
        for count, limit, whose in (
            (len(self._sessions), self._limits.sessions, "on this server"),
            (owned, self._limits.sessions_per_owner, "of yours"),
        ):
            if limit is not None and count >= limit:
                raise SandboxUnavailable(
                    f"Not run: {count} sessions {whose} are open, which is the limit. Use one of them again, "
                    "end one (DELETE /sessions/ID), or wait until one has been idle long enough."
                )

    async def _make(self, key: SessionKey, before: asyncio.Task[None] | None) -> Sandbox:
        """The session's sandbox, once the one that it had `before` has ended and left the workspace."""
        if before is not None:
            await asyncio.shield(before)
        name = session_name(key.owner, key.id)
        kept = self._state.kept_workspace(name)
        if kept is not None:
            sandbox = await self._factory.create(kept)
            sandbox.assign(key.id)
            return sandbox
        sandbox = self._pool.claim() or await self._factory.create()
        sandbox.assign(key.id)
        try:
            workspace = await asyncio.to_thread(self._state.claim_workspace, sandbox.workspace, name)
            sandbox.move_workspace(workspace)
        except OSError as error:
            log.error("the workspace of session %s cannot be made: %s", name, error)
            await sandbox.close("its workspace cannot be made")
            await self._factory.discard(sandbox)
            raise SandboxUnavailable(
                "The session's workspace cannot be made; see the server's log."
            ) from None
        return sandbox

    def _forget_failed(self, key: SessionKey, entry: _Session) -> None:
        starting = entry.starting
        failed = starting.cancelled() or starting.exception() is not None
        if failed and self._sessions.get(key) is entry:
            del self._sessions[key]

    def _forget_ended(self, key: SessionKey, task: asyncio.Task[None]) -> None:
        if self._ending.get(key) is task:
            del self._ending[key]

    def _end(self, key: SessionKey, reason: str) -> None:
        entry = self._sessions.pop(key)
        task = asyncio.create_task(self._close_sandbox(entry, reason))
        self._ending[key] = task
        task.add_done_callback(lambda _: self._forget_ended(key, task))

    async def _close_sandbox(self, entry: _Session, reason: str) -> None:
        try:
            sandbox = await entry.starting
        except SandboxUnavailable:
            return
        await sandbox.close(reason)

    async def _discard_workspace(self, key: SessionKey) -> None:
        kept = self._state.kept_workspace(session_name(key.owner, key.id))
        if kept is not None:
            await asyncio.to_thread(self._state.discard, kept)
            self._trash_filled.set()

    async def _expire(self) -> None:
        look_seconds = min(self._limits.idle_seconds / _LOOKS_PER_IDLE_TIMEOUT, _LONGEST_LOOK_SECONDS)
        while True:
            await asyncio.sleep(look_seconds)
            now = self._clock()
            for key, entry in list(self._sessions.items()):
                reason = self._expiry(entry, now, held=key in self._held)
                if reason is not None:
                    log.info("session %s: %s", session_name(key.owner, key.id), reason)
                    self._end(key, reason)

    def _expiry(self, entry: _Session, now: float, *, held: bool) -> str | None:
        """Why a session's sandbox is to be ended now, if it is."""
        starting = entry.starting
        if not starting.done():
            return None
        if not held and entry.calls == 0 and now - entry.idle_since >= self._limits.idle_seconds:
            return f"the session was idle for {self._limits.idle_seconds:g} seconds"
        lifetime = self._limits.lifetime_seconds
        if lifetime is not None and now - starting.result().created_seconds >= lifetime:
            return f"the sandbox reached its greatest lifetime of {lifetime:g} seconds"
        return None

    async def _empty_trash(self) -> None:
        while True:
            await self._trash_filled.wait()
            self._trash_filled.clear()
            try:
                await asyncio.to_thread(self._state.empty_trash)
            except OSError as error:
                log.warning("a deleted workspace could not be removed from the disk: %s", error)
