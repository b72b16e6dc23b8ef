"""A sandbox of local mode: workspace, control groups, launcher, shell and disk guard as one."""

import asyncio
import logging
import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from cli_mcp.execution import Outcome, ProgressCallback, SandboxUnavailable
from local_runtime import bubblewrap, deleted, identity, rlimits
from local_runtime.bubblewrap import SystemFiles, View
from local_runtime.cgroups import Cgroups, Limits, SessionGroups
from local_runtime.disk import CONCURRENT_MEASUREMENTS, DiskGuard
from local_runtime.egress import Egress, Gateway
from local_runtime.identity import Identity, NoFreeUid
from local_runtime.launcher import BubblewrapLauncher
from local_runtime.state import StateDirectory
from local_runtime.tool_helper import ToolProgram
from sandbox_agent import processes
from sandbox_agent.confined import ConfinedDirectory
from sandbox_agent.launch import is_helper
from sandbox_agent.session import ShellSession

log = logging.getLogger(__name__)

# tmpfs counts as memory of the session. Full, it must leave enough to run the commands that empty it.
TMP_SHARE_OF_MEMORY = 2
SHM_SHARE_OF_MEMORY = 8
# How long the shell may take to end its command before everything else in the sandbox is killed.
_STOP_SECONDS = 3.0
# A process that is killed closes its pipes a moment before it is gone.
_DYING_SECONDS = 0.5
_STOP_POLL_SECONDS = 0.05
_CANNOT_MAKE = "The sandbox could not be made and nothing was run; the server's log says why."


@dataclass(frozen=True, slots=True)
class SandboxSettings:
    """What all sandboxes of an instance have in common."""

    program: Path
    system: SystemFiles
    read_only: Mapping[str, Path]
    environment: Mapping[str, str]
    seccomp: bytes
    limits: Limits
    workspace_bytes: int
    own_uids: bool
    """Whether each session runs under a uid of its own, which takes root."""
    tools: ToolProgram | None = None
    """What serves the typed tools; None when `bash` is the only one on offer."""


class Sandbox:
    """A sandbox with its shell. Made by `SandboxFactory`."""

    def __init__(
        self,
        workspace: Path,
        opened: ConfinedDirectory,
        launcher: BubblewrapLauncher,
        groups: SessionGroups,
        gateway: Gateway,
        workspace_bytes: int,
        measurements: asyncio.Semaphore,
        on_closed: Callable[[], None],
    ) -> None:
        self.workspace = workspace
        self.created_seconds = time.monotonic()
        self.launcher = launcher
        self.shell = ShellSession(launcher, opened)
        self._opened = opened
        self._groups = groups
        self._gateway = gateway
        self._guard = DiskGuard(opened.fileno(), workspace_bytes, self, measurements)
        self._on_closed = on_closed
        self._closing: asyncio.Task[None] | None = None
        self._tool_calls = 0

    def move_workspace(self, path: Path) -> None:
        """Tell the sandbox that its workspace was renamed to `path`."""
        self.workspace = path
        self.launcher.move_workspace(path)

    def assign(self, session_id: str) -> None:
        """From now on the sandbox is that of a session: the proxy's records name it."""
        self._gateway.assign(session_id)

    async def start(self) -> None:
        """Raises SandboxUnavailable; close it then."""
        await self.shell.start()
        self._guard.start()

    async def run(self, command: str, timeout_seconds: float, on_progress: ProgressCallback) -> Outcome:
        """Raises ExecutionError."""
        await self._guard.before_command()
        outcome = await self.shell.run(command, timeout_seconds, on_progress)
        busy = self.shell.running or bool(outcome.background) or self._tool_calls > 0
        await self._guard.after_command(busy=busy)
        stopped = self._guard.full is not None and self._guard.full.reason in outcome.notes
        if stopped and outcome.exit_code == 0:
            # A loop that is interrupted between two commands leaves the status of the last one.
            outcome = replace(outcome, exit_code=128 + signal.SIGKILL)
        causes = [self.launcher.cause_of_death(), self._guard.full and self._guard.full.reason]
        missing = [cause for cause in causes if cause and cause not in outcome.notes]
        return replace(outcome, notes=(*outcome.notes, *missing)) if missing else outcome

    async def call_tool(
        self, name: str, arguments: Mapping[str, object], timeout_seconds: float
    ) -> Mapping[str, object]:
        """What a typed tool answers, unchecked. Raises ExecutionError."""
        if self.launcher.tools is not None and self.launcher.tools.gone:
            await self._end_idle()
        if not processes.still_runs(self.launcher.root):
            await self.run(":", timeout_seconds, lambda progress: None)  # makes a new sandbox
        if self.launcher.tools is None:
            raise SandboxUnavailable("This sandbox has no tools but bash.")
        self._tool_calls += 1
        try:
            await self._guard.before_command()
            return await self.launcher.tools.call(name, arguments, timeout_seconds)
        finally:
            self._tool_calls -= 1
            await self._guard.after_command(busy=self.shell.running or self._tool_calls > 0)

    async def _end_idle(self) -> None:
        """End the sandbox, if nothing runs in it but the shell; that comes back with its state."""
        deadline = time.monotonic() + _DYING_SECONDS
        while not self._is_idle():
            if time.monotonic() > deadline:
                return
            await asyncio.sleep(_STOP_POLL_SECONDS)
        processes.send_signal(self.launcher.root, signal.SIGKILL)
        deadline = time.monotonic() + _STOP_SECONDS
        while processes.still_runs(self.launcher.root) and time.monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(_STOP_POLL_SECONDS)

    def _is_idle(self) -> bool:
        shell = self.shell.shell_process
        others = [it for it in processes.descendants(self.launcher.root).values() if it.alive]
        return not self.shell.running and all(shell and it.identity == shell.identity for it in others)

    async def close(self, reason: str) -> None:
        """End everything that runs in it; waiting and running calls get `reason`. The workspace stays."""
        if self._closing is None:
            self._closing = asyncio.create_task(self._close(reason))
        await asyncio.shield(self._closing)

    def forbid_writing(self, forbidden: bool) -> None:
        for pid in self._pids():
            try:
                rlimits.limit_file_size(pid, 0 if forbidden else None)
            except ProcessLookupError:
                continue
            except PermissionError:
                return  # the guard stops what writes nevertheless, once it has written

    async def stop_processes(self, reason: str, *, shell_too: bool) -> None:
        await self.shell.kill_command(reason)
        deadline = time.monotonic() + _STOP_SECONDS
        while self.shell.running and time.monotonic() < deadline:  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(_STOP_POLL_SECONDS)
        shell = self.shell.shell_process
        for process in processes.descendants(self.launcher.root).values():
            is_shell = shell is not None and process.identity == shell.identity
            if shell_too or not (is_shell or is_helper(process.pid)):
                processes.send_signal(process, signal.SIGKILL)

    def deleted_bytes(self, device: int) -> int:
        return deleted.deleted_bytes(self._pids(), device)

    def cpu_ticks(self) -> int:
        root = processes.read_process(self.launcher.root.pid)
        running = processes.descendants(self.launcher.root).values()
        return sum(process.cpu_ticks for process in (*running, *([root] if root else [])))

    def _pids(self) -> tuple[int, ...]:
        """Of everything in the sandbox, its first process included."""
        root = self.launcher.root
        return (root.pid, *processes.descendants(root)) if processes.still_runs(root) else ()

    async def _close(self, reason: str) -> None:
        await self.shell.close(reason)
        self.launcher.close_tools()
        await self._gateway.close()
        await self._guard.close()
        await asyncio.to_thread(self._groups.remove)
        self._opened.close()
        self._on_closed()


class SandboxFactory:
    """Makes the sandboxes of an instance."""

    def __init__(
        self, state: StateDirectory, cgroups: Cgroups, egress: Egress, settings: SandboxSettings
    ) -> None:
        self._state = state
        self._cgroups = cgroups
        self._egress = egress
        self._settings = settings
        self._rlimits = rlimits.session_rlimits(
            settings.limits, workspace_bytes=settings.workspace_bytes, grouped=cgroups.controllers
        )
        self._measurements = asyncio.Semaphore(CONCURRENT_MEASUREMENTS)
        self.failure: str | None = None
        """Why the last attempt to make a sandbox failed, until one succeeds."""
        self._preparing = asyncio.Lock()  # two sandboxes must not choose the same uid

    async def create(self, workspace: Path | None = None) -> Sandbox:
        """A started sandbox with a new workspace in the pool, or with one that is there.

        Raises SandboxUnavailable; then nothing is left of it.
        """
        try:
            sandbox = await self._create(workspace)
        except SandboxUnavailable as error:
            self.failure = str(error)
            raise
        self.failure = None
        return sandbox

    def discard(self, sandbox: Sandbox) -> None:
        """Have the workspace of a closed sandbox deleted."""
        self._state.discard(sandbox.workspace)

    async def _create(self, kept: Path | None) -> Sandbox:
        try:
            async with self._preparing:
                who, workspace = await asyncio.to_thread(self._place, kept)
            sandbox = await asyncio.to_thread(self._assemble, who, workspace)
        except (OSError, NoFreeUid) as error:
            log.error("sandbox not made: %s", error)
            raise SandboxUnavailable(_CANNOT_MAKE) from None
        try:
            await sandbox.start()
        except BaseException:
            await sandbox.close("the sandbox did not start")
            if kept is None:
                self.discard(sandbox)
            raise
        return sandbox

    def _place(self, workspace: Path | None) -> tuple[Identity, Path]:
        """Who the sandbox is and where it works."""
        own = self._settings.own_uids
        if workspace is None:
            who = identity.server_identity()
            if own:
                taken = identity.taken_on_this_host(self._state.workspace_uids())
                who = identity.session_identity(identity.choose_uid(taken))
            return who, self._state.new_workspace(who)
        uid = workspace.lstat().st_uid
        if not (identity.in_session_range(uid) if own else uid == os.geteuid()):
            log.error("%s belongs to uid %d, which no session of this server can have", workspace, uid)
            raise SandboxUnavailable(
                "The session's workspace belongs to another user of the machine; use another session id, "
                "or ask the operator to have a look at the server's log."
            )
        return identity.session_identity(uid) if own else identity.server_identity(), workspace

    def _assemble(self, who: Identity, workspace: Path) -> Sandbox:
        settings = self._settings
        exchange = self._state.new_exchange()
        groups = self._cgroups.create(exchange.name, settings.limits)
        gateway = self._egress.gateway()
        view = View(
            workspace,
            exchange,
            tmp_bytes=settings.limits.memory_bytes // TMP_SHARE_OF_MEMORY,
            shm_bytes=settings.limits.memory_bytes // SHM_SHARE_OF_MEMORY,
            environment={
                **settings.environment,
                **bubblewrap.FIXED_ENVIRONMENT,
                **self._egress.environment,
            },
            read_only={
                **settings.read_only,
                **self._egress.read_only,
                **(settings.tools.read_only if settings.tools else {}),
            },
        )
        launcher = BubblewrapLauncher(
            settings.program,
            view,
            settings.system,
            identity=who,
            limits=self._rlimits,
            groups=groups,
            seccomp=settings.seccomp,
            open_gateway=gateway.open,
            tools=settings.tools,
        )
        return Sandbox(
            workspace,
            ConfinedDirectory(workspace),
            launcher,
            groups,
            gateway,
            settings.workspace_bytes,
            self._measurements,
            on_closed=lambda: self._state.remove_exchange(exchange),
        )
