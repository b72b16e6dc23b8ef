"""A sandbox of local mode: workspace, control groups, launcher, shell and disk guard as one."""

import asyncio
import logging
import os
import signal
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path

from cli_mcp.execution import (
    STREAM_LIMIT_BYTES,
    ExecutionError,
    Outcome,
    ProgressCallback,
    SandboxUnavailable,
)
from local_runtime import bubblewrap, deleted, identity, rlimits, standstill
from local_runtime.bubblewrap import SystemFiles, View
from local_runtime.cgroups import Cgroups, Limits, SessionGroups
from local_runtime.disk import CONCURRENT_MEASUREMENTS, DiskGuard, FileSystemGuard, Guard
from local_runtime.egress import Egress, Gateway
from local_runtime.host_disk import HostWatch, Usage
from local_runtime.identity import Identity, NoFreeUid
from local_runtime.images import MountedImage
from local_runtime.launcher import BubblewrapLauncher
from local_runtime.socket_watch import SocketWatch
from local_runtime.state import StateDirectory
from local_runtime.tool_helper import ToolProgram
from local_runtime.trees import GiveUp
from sandbox_agent import processes
from sandbox_agent.confined import ConfinedDirectory
from sandbox_agent.launch import is_helper
from sandbox_agent.processes import Process
from sandbox_agent.session import ShellSession
from sandbox_agent.spill import SpillLimits

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
    output_bytes: int = STREAM_LIMIT_BYTES
    """Of each stream in a result."""
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
        output_bytes: int,
        measurements: asyncio.Semaphore,
        host: HostWatch,
        sockets: SocketWatch,
        image: Path | None,
        on_closed: Callable[[Path], None],
    ) -> None:
        self.workspace = workspace
        self.created_seconds = time.monotonic()
        self.launcher = launcher
        self.shell = ShellSession(launcher, opened, spill=SpillLimits.within(workspace_bytes))
        self._opened = opened
        self._groups = groups
        self._gateway = gateway
        self._guard: Guard = (
            DiskGuard(opened.fileno(), workspace_bytes, self, measurements)
            if image is None
            else FileSystemGuard(MountedImage(opened.fileno(), image), workspace_bytes)
        )
        self._host = host
        self._sockets = sockets
        self._on_closed = on_closed
        self._closing: asyncio.Task[None] | None = None
        self._stopping: asyncio.Task[None] | None = None
        self._tool_calls = 0
        self._output_bytes = output_bytes

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
        self._host.add(self)
        self._sockets.add(self)

    async def run(self, command: str, timeout_seconds: float, on_progress: ProgressCallback) -> Outcome:
        """Raises ExecutionError."""
        await self._guard.before_command()
        self._check_not_refused()
        outcome = await self.shell.run(command, timeout_seconds, on_progress, self._output_bytes)
        busy = self.shell.running or bool(outcome.background) or self._tool_calls > 0
        await self._guard.after_command(busy=busy)
        stopped = self._guard.full is not None and self._guard.full.reason in outcome.notes
        if stopped and outcome.exit_code == 0:
            # A loop that is interrupted between two commands leaves the status of the last one.
            outcome = replace(outcome, exit_code=128 + signal.SIGKILL)
        causes = [
            *self._gateway.take_refused(),
            self.launcher.cause_of_death(),
            self._guard.full and self._guard.full.reason,
        ]
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
            self._check_not_refused()
            return await self.launcher.tools.call(name, arguments, timeout_seconds)
        finally:
            self._tool_calls -= 1
            await self._guard.after_command(busy=self.shell.running or self._tool_calls > 0)

    def _check_not_refused(self) -> None:
        if self._guard.refused is not None:
            raise ExecutionError(self._guard.refused)

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
        # Nothing else may go on writing while the shell ends its command.
        self._kill(shell_too=False)
        deadline = time.monotonic() + _STOP_SECONDS
        while self.shell.running and time.monotonic() < deadline:
            await asyncio.sleep(_STOP_POLL_SECONDS)
            self._kill(shell_too=False)
        self._kill(shell_too=shell_too)

    def _kill(self, *, shell_too: bool) -> None:
        shell = self.shell.shell_process
        for process in processes.descendants(self.launcher.root).values():
            is_shell = shell is not None and process.identity == shell.identity
            if shell_too or not (is_shell or is_helper(process.pid)):
                processes.send_signal(process, signal.SIGKILL)

    def standing_still(self) -> AbstractContextManager[None]:
        return standstill.standing_still(self._processes)

    def unnamed(self, device: int, give_up: GiveUp) -> deleted.Unnamed:
        return deleted.unnamed(self._pids(), device, give_up)

    def written_bytes(self) -> int:
        return sum(map(processes.written_bytes, self._pids()))

    def usage(self) -> Usage:
        return self._guard.usage()

    def allow(self, growth_bytes: int | None, *, host_low: bool) -> None:
        self._guard.allow(growth_bytes, host_low=host_low)

    def socket_bytes(self) -> int:
        return self._groups.socket_bytes()

    def stop_at_once(self, reason: str) -> None:
        if self._stopping is None or self._stopping.done():
            self._stopping = asyncio.create_task(self.stop_processes(reason, shell_too=True))

    def cpu_ticks(self) -> int:
        root = processes.read_process(self.launcher.root.pid)
        running = processes.descendants(self.launcher.root).values()
        return sum(process.cpu_ticks for process in (*running, *([root] if root else [])))

    def _pids(self) -> tuple[int, ...]:
        """Of everything in the sandbox, its first process included."""
        return tuple(process.pid for process in self._processes())

    def _processes(self) -> Iterable[Process]:
        root = processes.read_process(self.launcher.root.pid)
        if root is None or root.identity != self.launcher.root.identity:
            return ()
        return (root, *processes.descendants(root).values())

    async def _close(self, reason: str) -> None:
        self._host.remove(self)
        self._sockets.remove(self)
        await self.shell.close(reason)
        self.launcher.close_tools()
        await self._gateway.close()
        await self._guard.close()
        await asyncio.to_thread(self._groups.remove)
        if self._stopping is not None:
            await self._stopping
        self._opened.close()
        await asyncio.to_thread(self._on_closed, self.workspace)


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
        self._spare: asyncio.Task[Path | None] | None = None
        self._state_fd = os.open(state.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._host = HostWatch(self._state_fd)
        self._host.start()
        self._sockets = SocketWatch(settings.limits.socket_bytes)
        self._sockets.start()
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

    async def discard(self, sandbox: Sandbox) -> None:
        """Have the workspace of a closed sandbox deleted."""
        await asyncio.to_thread(self._state.discard, sandbox.workspace)

    async def close(self) -> None:
        """When all its sandboxes are closed."""
        await self._host.close()
        await self._sockets.close()
        os.close(self._state_fd)
        if self._spare is not None and (spare := await self._spare) is not None:
            await asyncio.to_thread(self._state.discard, spare)

    async def _create(self, kept: Path | None) -> Sandbox:
        try:
            spare = await self._take_spare() if kept is None else None
            async with self._preparing:
                who, workspace = await asyncio.to_thread(self._place, kept, spare)
            try:
                sandbox = await asyncio.to_thread(self._assemble, who, workspace)
            except OSError:
                leave = self._state.discard if kept is None else self._state.close_workspace
                await asyncio.to_thread(leave, workspace)
                raise
        except (OSError, NoFreeUid) as error:
            log.error("sandbox not made: %s", error)
            raise SandboxUnavailable(_CANNOT_MAKE) from None
        try:
            await sandbox.start()
        except BaseException:
            await sandbox.close("the sandbox did not start")
            if kept is None:
                await self.discard(sandbox)
            raise
        self._prepare_spare()
        return sandbox

    def _prepare_spare(self) -> None:
        """Making a file system takes longer than what else a new sandbox needs of the disk: one is ahead."""
        if self._spare is None and self._state.file_systems is not None:
            self._spare = asyncio.create_task(asyncio.to_thread(self._make_spare))

    def _make_spare(self) -> Path | None:
        try:
            return self._state.new_workspace()
        except OSError as error:
            log.debug("no workspace could be made ahead: %s", error)  # whoever needs one says why
            return None

    async def _take_spare(self) -> Path | None:
        spare, self._spare = self._spare, None
        return None if spare is None else await spare

    def _place(self, kept: Path | None, spare: Path | None) -> tuple[Identity, Path]:
        """Who the sandbox is and where it works, with that in place. Raises OSError, NoFreeUid."""
        own = self._settings.own_uids
        if kept is None:
            workspace = spare or self._state.new_workspace()
            who = identity.server_identity()
            if own:
                taken = identity.taken_on_this_host(self._state.workspace_uids())
                who = identity.session_identity(identity.choose_uid(taken))
                os.chown(workspace, who.uid, who.gid)
            return who, workspace
        uid = kept.lstat().st_uid
        if not (identity.in_session_range(uid) if own else uid == os.geteuid()):
            log.error("%s belongs to uid %d, which no session of this server can have", kept, uid)
            raise SandboxUnavailable(
                "The session's workspace belongs to another user of the machine; use another session id, "
                "or ask the operator to have a look at the server's log."
            )
        self._state.open_workspace(kept)
        return identity.session_identity(uid) if own else identity.server_identity(), kept

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
            settings.output_bytes,
            self._measurements,
            self._host,
            self._sockets,
            self._state.image_of(workspace),
            on_closed=lambda workspace: self._leave(exchange, workspace),
        )

    def _leave(self, exchange: Path, workspace: Path) -> None:
        self._state.remove_exchange(exchange)
        try:
            self._state.close_workspace(workspace)
        except OSError as error:
            log.error("%s stays in use: %s", workspace, error)
