"""The shell of one session: takes commands one at a time and comes back whatever they do to it.

`execute` returns by its deadline and the time of the ladder, and the next one finds a shell that works, with
the state that the last report showed.
"""

import asyncio
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass

from cli_mcp.execution import TIMEOUT_EXIT_CODE, SandboxUnavailable
from sandbox_agent import ladder, processes
from sandbox_agent.exchange import CommandFiles, Exchange
from sandbox_agent.ladder import Ladder, end_shell
from sandbox_agent.launch import Launcher, is_helper
from sandbox_agent.processes import Identity, Process
from sandbox_agent.protocol import Report, ShellExit
from sandbox_agent.sandbox import Answer, Mailbox, Sandbox, SandboxDeath, Stop
from sandbox_agent.snapshot import Snapshot, restore_script

_START_SECONDS = 5.0
# How often a command is looked at, after how long a shell that has read everything is asked for its report
# again, and how long it may then stay silent though it has read the question.
_LOOK_SECONDS = 0.1
_ASK_SECONDS = 0.5
_SILENCE_SECONDS = 1.0
_KILLED = 128 + signal.SIGKILL
_SHELL_ENDED = (
    "The command ended the shell. The new one has the state from before it: what it changed (directory, "
    "variables, functions, options) is lost."
)
_INPUT_TAKEN = "Another process of the session took the shell's input, so the sandbox was ended."
_NOT_RUN = (
    "The command was not run: twice the shell did not get it. End the session and use a new one, and do not "
    "run what you ran there before."
)


@dataclass(frozen=True, slots=True)
class Silence:
    """The shell has read all there is to read and does not report: a command took its means to."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How a command ended. `status` is TIMEOUT_EXIT_CODE when it ran out of time."""

    status: int
    cwd: bytes
    timed_out: bool
    shell_restarted: bool
    background: tuple[int, ...]
    notes: tuple[str, ...]


class Shell:
    """One bash after the other, in one sandbox after the other. `snapshot` is the state to start with."""

    def __init__(self, launcher: Launcher, snapshot: Snapshot | None = None) -> None:
        self._launcher = launcher
        self._exchange = Exchange(launcher.exchange, launcher.exchange_inside, launcher.fifo_owner)
        self._mailbox = Mailbox()
        self._sandbox: Sandbox | None = None
        self._bash: Process | None = None
        self._status = 0
        self._cwd = launcher.workspace_inside.encode()
        self._idle_processes: frozenset[Identity] = frozenset()
        self._state_missed = False
        self._closed = False
        self.snapshot = snapshot

    @property
    def process(self) -> Process | None:
        return self._bash

    async def start(self) -> list[str]:
        """Have a sandbox and a shell with the state of the snapshot. Raises SandboxUnavailable.

        Returns notes about what could not be brought back.
        """
        notes = []
        sandbox, report = await self._start_bash()
        if self.snapshot is not None:
            restored = await self._restore(sandbox, self.snapshot)
            if restored is None:
                if self._bash is not None and processes.still_runs(self._bash):
                    await end_shell(sandbox, self._mailbox, self._bash)
                sandbox, restored = await self._start_bash()
                notes.append(
                    "The shell's earlier state could not be brought back: variables and functions are gone."
                )
            elif self._state_missed:
                notes.append("What the last commands changed could not be kept: the shell's state is older.")
            report = restored
        self._idle_processes = frozenset()
        self._keep(report)
        return notes

    async def execute(self, command: bytes, until: float, on_files: Callable[[CommandFiles], None]) -> Ending:
        """Run `command`, at most until the moment `until` of the loop's clock.

        `on_files` gets the read ends of its output before it starts. Raises SandboxUnavailable when it did
        not run, or when no shell can be had after it.
        """
        notes = await self._revive()
        name = _unused_name()
        try:
            files = self._prepare(name, command)
            on_files(files)
            sandbox, bash, before = await self._idle()
            event = await self._source(sandbox, files, until)
            if lost := await self._lost(sandbox, event):
                notes += await self._restart(lost)
                sandbox, bash, before = await self._idle()
                event = await self._source(sandbox, files, until)
                if await self._lost(sandbox, event):
                    raise SandboxUnavailable(_NOT_RUN)
            restarted = bool(notes)
            if isinstance(event, Silence):
                notes.append("The shell could not report its state after the command and has an older one.")
                answer = await end_shell(sandbox, self._mailbox, bash)
            elif event is None or isinstance(event, Stop):
                rungs = ladder.AT_ONCE if event is not None and event.at_once else ladder.PATIENT
                answer = await Ladder(sandbox, self._mailbox, bash, before).climb(rungs)
            else:
                answer = event
            if not sandbox.begun():
                notes.append("The shell did not get to this command: it was not run.")
                sandbox.fault = _INPUT_TAKEN
                await sandbox.destroy()
                answer = SandboxDeath()
        finally:
            self._exchange.remove(name)
        if isinstance(answer, Report):
            self._keep(answer)
        else:
            restarted = True
            if isinstance(answer, ShellExit) and isinstance(event, ShellExit):
                notes.append(_SHELL_ENDED)
            notes += await self._restart(answer)
        self._status = _KILLED if isinstance(answer, SandboxDeath) else answer.status
        if self._status == _KILLED and (cause := self._launcher.cause_of_death()):
            notes.append(cause)
        if event is None:
            self._status = TIMEOUT_EXIT_CODE
        elif isinstance(event, Stop):
            self._status = _KILLED
            notes.append(event.reason)
        background = await self._background()
        return Ending(self._status, self._cwd, event is None, restarted, background, tuple(notes))

    def stop(self, stop: Stop) -> None:
        """Have the command ended that runs, or that is about to."""
        self._mailbox.put(stop)

    def drop_stop(self) -> None:
        """The command is over: a stop that came too late must not end the next one."""
        self._mailbox.drop_stop()

    async def close(self) -> None:
        """End the sandbox and all that runs in it, for good."""
        self._closed = True
        if self._sandbox is not None:
            await self._sandbox.destroy()

    def _prepare(self, name: str, command: bytes) -> CommandFiles:
        try:
            return self._exchange.prepare(name, command)
        except OSError as error:
            raise SandboxUnavailable(
                f"The command was not run, its files cannot be made: {error.strerror}. "
                "When it stays so, end this session and use a new one."
            ) from error

    async def _source(
        self, sandbox: Sandbox, files: CommandFiles, until: float
    ) -> Answer | Stop | Silence | None:
        """Have the shell run a command; what ends it, or None at `until`."""
        if not sandbox.source(files.script, files.stdout, files.stderr, self._status):
            return SandboxDeath()
        return await self._event(sandbox, until)

    async def _lost(
        self, sandbox: Sandbox, event: Answer | Stop | Silence | None
    ) -> ShellExit | SandboxDeath | None:
        """What is left to recover from, when the shell never began with a command and never will."""
        if event is None or isinstance(event, Stop) or sandbox.begun():
            return None
        if isinstance(event, ShellExit):
            return event
        if not isinstance(event, SandboxDeath):
            sandbox.fault = _INPUT_TAKEN
        await sandbox.destroy()
        return None if sandbox.begun() else SandboxDeath()

    async def _event(self, sandbox: Sandbox, until: float) -> Answer | Stop | Silence | None:
        """What ends the command, or None at `until`."""
        loop = asyncio.get_running_loop()
        ask_at = loop.time() + _ASK_SECONDS
        asked = False
        silent_at: float | None = None
        while (now := loop.time()) < until:
            if answer := await self._mailbox.answer_or_stop(min(until, now + _LOOK_SECONDS)):
                return answer
            if not sandbox.running:
                return SandboxDeath()
            if not sandbox.all_read():
                silent_at = None
            elif not asked:
                # Bash reads ahead, so only a question that stays unread shows that it is still busy.
                if loop.time() > ask_at:
                    asked = True
                    sandbox.ask_again()
            elif silent_at is None:
                silent_at = loop.time() + _SILENCE_SECONDS
            elif loop.time() > silent_at:
                return Silence()
        return None

    async def _running_sandbox(self) -> Sandbox:
        if self._closed:
            raise SandboxUnavailable("The sandbox was closed.")
        if self._sandbox is None or not self._sandbox.running or not self._sandbox.alive:
            if self._sandbox is not None:
                await self._sandbox.destroy()
            self._sandbox = await Sandbox.launch(self._launcher, self._mailbox)
        return self._sandbox

    async def _start_bash(self) -> tuple[Sandbox, Report]:
        """A fresh shell and its first report; in a fresh sandbox when the one that there is gives none."""
        self._bash = None
        for _ in range(2):
            sandbox = await self._running_sandbox()
            sandbox.start_shell()
            report = await self._mailbox.answer(asyncio.get_running_loop().time() + _START_SECONDS)
            if isinstance(report, Report):
                self._bash = sandbox.shell
                return sandbox, report
            await sandbox.destroy()
        raise SandboxUnavailable("The shell does not start. End the session to get a fresh sandbox.")

    async def _restore(self, sandbox: Sandbox, snapshot: Snapshot) -> Report | None:
        name = _unused_name()
        try:
            path = self._exchange.write(name, restore_script(snapshot))
            sandbox.source(path, "/dev/null", "/dev/null", last_status=0)
            report = await self._mailbox.answer(asyncio.get_running_loop().time() + _START_SECONDS)
        except OSError:
            return None  # the exchange directory is full or gone; the shell works without its state
        finally:
            self._exchange.remove(name)
        return report if isinstance(report, Report) and sandbox.begun() else None

    def _keep(self, report: Report) -> None:
        self._cwd = report.cwd
        self._state_missed = report.snapshot is None
        if report.snapshot is not None:
            self.snapshot = report.snapshot

    async def _revive(self) -> list[str]:
        """Have a shell that works, though something may have happened to it since the last command."""
        sandbox = self._sandbox
        if sandbox is None or not sandbox.running or not sandbox.alive:
            return await self._restart(SandboxDeath())
        if self._bash is None or not processes.still_runs(self._bash):
            return ["The shell had ended since the last command and was started again.", *await self.start()]
        if not sandbox.all_read() and not await self._reports(sandbox):
            await sandbox.destroy()
            return await self._restart(SandboxDeath())
        return []

    async def _idle(self) -> tuple[Sandbox, Process, frozenset[Identity]]:
        """The sandbox, the shell, and the processes that are there before a command."""
        assert self._sandbox is not None and self._bash is not None
        return self._sandbox, self._bash, self._idle_processes or await _identities(self._sandbox)

    async def _reports(self, sandbox: Sandbox) -> bool:
        """Whether the shell gets to its prompt, though lines lie in its input; they may be the sandbox's."""
        sandbox.request_report()
        return isinstance(
            await self._mailbox.answer(asyncio.get_running_loop().time() + _SILENCE_SECONDS), Report
        )

    async def _restart(self, answer: Answer) -> list[str]:
        """After a command that cost the shell, or the sandbox."""
        if isinstance(answer, ShellExit):
            return await self.start()
        fault = self._sandbox.fault if self._sandbox is not None else None
        cause = fault or self._launcher.cause_of_death() or "The sandbox had ended."
        return [f"{cause} A new one was started; background processes are gone.", *await self.start()]

    async def _background(self) -> tuple[int, ...]:
        """What runs on, as the sandbox's pids: children of the shell, and what was orphaned."""
        assert self._sandbox is not None and self._bash is not None
        found = await self._sandbox.processes()
        parents = {self._sandbox.root.pid, self._bash.pid}
        left = [
            processes.inner_pid(process.pid)
            for process in found.values()
            if process.parent in parents
            and process.alive
            and process.pid != self._bash.pid
            and not is_helper(process.pid)
        ]
        # A sandbox with nothing but an idle shell stays like that; spares a look before the next command.
        self._idle_processes = frozenset((self._bash.identity,)) if len(found) == 1 else frozenset()
        return tuple(sorted(pid for pid in left if pid is not None))


def _unused_name() -> str:
    """Where the sandbox can write to the exchange directory, it must not be there first."""
    return os.urandom(4).hex()


async def _identities(sandbox: Sandbox) -> frozenset[Identity]:
    return frozenset(process.identity for process in (await sandbox.processes()).values())
