"""Drives the bash of one sandbox: starts it, gives it commands, gets them stopped, brings it back.

One command at a time; the queue is the session's affair. Whatever a command does to the shell, `execute`
returns by its deadline and the time of the ladder, and the next `execute` finds a shell that works.
"""

import asyncio
import os
import secrets
import signal
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from cli_mcp.execution import SandboxUnavailable
from sandbox_agent import processes, protocol
from sandbox_agent.exchange import CommandFiles, Exchange
from sandbox_agent.launch import Launched, Launcher
from sandbox_agent.output import pending_bytes
from sandbox_agent.processes import Process
from sandbox_agent.protocol import ExitReader, Report, ReportReader, ShellExit
from sandbox_agent.snapshot import Snapshot, restore_script

_START_SECONDS = 10.0
# How often a running command is looked at, and how long a shell that has read everything may stay silent
# before it is asked again, and then before it counts as broken.
_LOOK_SECONDS = 0.1
_SILENCE_SECONDS = 0.5
_BROKEN_SECONDS = 2.0
# Each signal and how long it may take to work; a shell has about as long after a Ctrl-C on a terminal.
_TIMEOUT_LADDER = ((signal.SIGINT, 0.6), (signal.SIGTERM, 0.6), (signal.SIGKILL, 1.0))
_KILL_LADDER = ((signal.SIGINT, 0.1), (signal.SIGKILL, 1.0))
_LADDER_LOOK_SECONDS = 0.03
_DEATH_SECONDS = 2.0
# Walking more processes than this takes long enough to belong into a thread.
_FEW_PROCESSES = 50
_READ_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Stop:
    """A request to end the running command. `at_once` leaves out the patience of a timeout."""

    reason: str
    at_once: bool = True


@dataclass(frozen=True, slots=True)
class SandboxDeath:
    """The sandbox's first process ended."""


Event = Report | ShellExit | SandboxDeath | Stop


@dataclass(frozen=True, slots=True)
class Ending:
    """How a command ended. `stopped` is why it was, `timed_out` and `stopped` exclude each other."""

    status: int
    cwd: bytes
    timed_out: bool = False
    stopped: Stop | None = None
    shell_restarted: bool = False
    background: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()


class _Mailbox:
    """Events in order; the consumer waits for the next one until a moment of the loop's clock."""

    def __init__(self) -> None:
        self._events: deque[Event] = deque()
        self._waiter: asyncio.Future[None] | None = None

    def put(self, event: Event) -> None:
        self._events.append(event)
        self._wake()

    def clear(self) -> None:
        self._events.clear()

    async def get(self, until: float) -> Event | None:
        if not self._events:
            loop = asyncio.get_running_loop()
            self._waiter = loop.create_future()
            timer = loop.call_at(until, self._wake)
            try:
                await self._waiter
            finally:
                timer.cancel()
                self._waiter = None
        return self._events.popleft() if self._events else None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


@dataclass(slots=True)
class _Channel:
    """This side of a sandbox's pipes."""

    launched: Launched
    requests: int
    reports: int
    exits: int
    reports_number: int  # the number of the other end in the sandbox
    watcher: asyncio.Task[None] | None = None
    report_reader: ReportReader = field(default_factory=ReportReader)
    exit_reader: ExitReader = field(default_factory=ExitReader)


class Shell:
    """The bash of one sandbox. `snapshot` is the state to start with, if any."""

    def __init__(self, launcher: Launcher, snapshot: Snapshot | None = None) -> None:
        self._launcher = launcher
        self._exchange = Exchange(launcher.exchange, launcher.exchange_inside, launcher.fifo_owner)
        self._mailbox = _Mailbox()
        self._channel: _Channel | None = None
        self._bash: Process | None = None
        self._closed = False
        self._status = 0
        self._cwd = launcher.workspace_inside.encode()
        self._known: Mapping[int, Process] = {}
        self.snapshot = snapshot

    @property
    def cwd(self) -> bytes:
        return self._cwd

    @property
    def process(self) -> Process | None:
        """The bash that runs now, unless it is being replaced."""
        return self._bash

    async def start(self) -> None:
        """Launch the sandbox and bring the shell into the state of the snapshot. Raises SandboxUnavailable."""
        await self._start_bash()

    async def execute(
        self, name: str, command: bytes, until: float, on_files: Callable[[CommandFiles], None]
    ) -> Ending:
        """Run `command`, at most until the moment `until` of the loop's clock.

        `name` is new for each command. `on_files` takes the read ends of its output before it starts.
        Raises SandboxUnavailable when the command did not run.
        """
        self._mailbox.clear()
        notes = await self._revive()
        restarted = bool(notes)
        channel, bash = self._channel, self._bash
        assert channel is not None and bash is not None
        try:
            files = self._exchange.prepare(name, command)
        except OSError as error:
            self._exchange.remove(name)
            raise SandboxUnavailable(
                f"The command was not run: its files cannot be made ({error.strerror})."
            ) from error
        on_files(files)
        before = frozenset(process.identity for process in (await self._processes()).values())
        try:
            self._send(
                protocol.source_line(
                    files.script,
                    files.stdout,
                    files.stderr,
                    last_status=self._status,
                    reports_fd=channel.reports_number,
                )
            )
            self._request_report()
            event = await self._answer(until)
            timed_out = event is None
            stopped = event if isinstance(event, Stop) else None
            if event is None or isinstance(event, Stop):
                ladder = _KILL_LADDER if stopped is not None and stopped.at_once else _TIMEOUT_LADDER
                event = await self._abort(before, ladder)
        finally:
            self._exchange.remove(name)
        if isinstance(event, Report):
            self._keep(event)
            status = event.status
        else:
            restarted = True
            status = await self._recover(event, notes)
        if status == 128 + signal.SIGKILL and (cause := self._launcher.cause_of_death()):
            notes.append(cause)
        background = await self._background()
        return Ending(
            status, self._cwd, timed_out, stopped, restarted, background=background, notes=tuple(notes)
        )

    def stop(self, stop: Stop) -> None:
        """Have the running command ended."""
        self._mailbox.put(stop)

    async def close(self) -> None:
        """End the sandbox with everything in it."""
        self._closed = True
        if self._channel is not None:
            await self._destroy(self._channel)

    # --- starting ---------------------------------------------------------------------------------------

    async def _launch(self) -> None:
        if self._closed:
            raise SandboxUnavailable("The sandbox was closed.")
        loop = asyncio.get_running_loop()
        requests_in, requests = os.pipe()
        reports, reports_out = os.pipe()
        exits, exits_out = os.pipe()
        null = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        try:
            launched = await self._launcher.launch(
                protocol.supervisor_argv(reports_out, exits_out),
                stdin=requests_in,
                output=null,
                pass_fds=(reports_out, exits_out),
            )
        except BaseException:
            for fd in (requests, reports, exits):
                os.close(fd)
            raise
        finally:
            for fd in (requests_in, reports_out, exits_out, null):
                os.close(fd)
        for fd in (requests, reports, exits):
            os.set_blocking(fd, False)
        channel = self._channel = _Channel(launched, requests, reports, exits, reports_out)
        self._mailbox.clear()
        loop.add_reader(reports, self._read, channel, reports, channel.report_reader)
        loop.add_reader(exits, self._read, channel, exits, channel.exit_reader)
        channel.watcher = loop.create_task(self._watch(channel))

    async def _watch(self, channel: _Channel) -> None:
        await channel.launched.process.wait()
        if channel is self._channel:
            self._mailbox.put(SandboxDeath())

    def _read(self, channel: _Channel, fd: int, reader: ReportReader | ExitReader) -> None:
        try:
            data = os.read(fd, _READ_BYTES)
        except BlockingIOError:
            return
        if not data:
            asyncio.get_running_loop().remove_reader(fd)
            return
        if event := reader.feed(data):
            self._mailbox.put(event)

    async def _start_bash(self) -> None:
        """Run a shell in the sandbox that there is. Raises SandboxUnavailable when none comes up."""
        for snapshot in (self.snapshot, None) if self.snapshot else (None,):
            if not self._sandbox_runs():
                await self._launch()
            report = await self._try_bash(snapshot)
            if report is not None:
                self._keep(report)
                return
            await self._end_bash()
        raise SandboxUnavailable("The shell does not start; end the session to get a fresh sandbox.")

    async def _try_bash(self, snapshot: Snapshot | None) -> Report | None:
        channel = self._channel
        assert channel is not None
        until = asyncio.get_running_loop().time() + _START_SECONDS
        nonce = _nonce()
        channel.exit_reader.expect(nonce)
        self._mailbox.clear()
        self._send(protocol.start_line(nonce) + protocol.setup_lines())
        self._request_report()
        report = await self._mailbox.get(until)
        if not isinstance(report, Report):
            return None
        self._bash = self._find_bash(report.pid)
        if self._bash is None or snapshot is None:
            return report if self._bash else None
        name = f"restore-{nonce}"
        try:
            path = self._exchange.write(name, restore_script(snapshot))
            self._send(
                protocol.source_line(
                    path, "/dev/null", "/dev/null", last_status=0, reports_fd=channel.reports_number
                )
            )
            self._request_report()
            report = await self._mailbox.get(until)
        except OSError:
            return None
        finally:
            self._exchange.remove(name)
        return report if isinstance(report, Report) else None

    def _find_bash(self, pid_inside: int) -> Process | None:
        assert self._channel is not None
        root = self._channel.launched.root_pid
        found = processes.descendants(root)
        for process in found.values():
            if processes.inner_pid(process.pid) == pid_inside and process.parent == root:
                return process
        return None

    # --- talking ----------------------------------------------------------------------------------------

    def _send(self, lines: bytes) -> None:
        if not self._sandbox_runs():
            return
        try:
            os.write(self._channel.requests, lines)
        except (BrokenPipeError, BlockingIOError):
            pass  # the sandbox is gone or does not read; the answer stays out, and that is dealt with

    def _request_report(self) -> None:
        assert self._channel is not None
        nonce = _nonce()
        self._channel.report_reader.expect(nonce)
        self._send(protocol.report_line(nonce, self._channel.reports_number))

    def _all_read(self) -> bool:
        """Whether the shell has read all that was sent: then the command is over, whatever comes back."""
        return self._sandbox_runs() and pending_bytes(self._channel.requests) == 0

    async def _answer(self, until: float) -> Event | None:
        """The event that ends the command, or None at `until`. A shell that stays silent is killed."""
        loop = asyncio.get_running_loop()
        silent_since: float | None = None
        asked_again = False
        while (now := loop.time()) < until:
            if event := await self._mailbox.get(min(until, now + _LOOK_SECONDS)):
                return event
            if not self._all_read():
                silent_since = None
                continue
            silent_since = silent_since or loop.time()
            silence = loop.time() - silent_since
            if silence > _BROKEN_SECONDS:
                return await self._end_bash()
            if silence > _SILENCE_SECONDS and not asked_again:
                asked_again = True
                self._ask_again()
        return None

    def _ask_again(self) -> None:
        if self._bash is not None:
            processes.send_signal(self._bash, signal.SIGCONT)
        self._send(b"\n")
        self._request_report()

    def _keep(self, report: Report) -> None:
        self._status = report.status
        self._cwd = report.cwd
        if report.snapshot is not None:
            self.snapshot = report.snapshot

    # --- stopping ---------------------------------------------------------------------------------------

    async def _abort(
        self, before: frozenset[tuple[int, int]], ladder: tuple[tuple[signal.Signals, float], ...]
    ) -> Event:
        """End the command: its processes first by persuasion, and the shell only when it does not answer."""
        loop = asyncio.get_running_loop()
        answer: Event | None = None
        for number, grace in ladder:
            until = loop.time() + grace
            signalled: set[tuple[int, int]] = set()
            asked_at = 0.0
            self._interrupt_bash()
            while loop.time() < until:
                victims = await self._victims(before)
                if number == signal.SIGKILL:
                    # Stopped first, so that none forks while the others are killed.
                    processes.send_signals(victims, signal.SIGSTOP)
                    victims = await self._victims(before)
                new = [process for process in victims if process.identity not in signalled]
                processes.send_signals(new, number)
                processes.send_signals(new, signal.SIGCONT)
                signalled.update(process.identity for process in new)
                if answer is None:
                    event = await self._mailbox.get(min(until, loop.time() + _LADDER_LOOK_SECONDS))
                    answer = event if not isinstance(event, Stop) else None
                    if answer is None and not victims and loop.time() > asked_at + 0.2:
                        asked_at = loop.time()
                        # SIGINT at the wrong moment takes a line of ours along.
                        if self._all_read():
                            self._ask_again()
                        else:
                            self._interrupt_bash()
                elif victims:
                    await asyncio.sleep(_LADDER_LOOK_SECONDS)
                if answer is not None and not await self._victims(before):
                    return answer
        if answer is None:
            answer = await self._end_bash()
        if await self._victims(before):
            assert self._channel is not None
            await self._destroy(self._channel)
            return SandboxDeath()
        return answer

    def _interrupt_bash(self) -> None:
        if self._bash is not None:
            processes.send_signal(self._bash, signal.SIGCONT)
            processes.send_signal(self._bash, signal.SIGINT)

    async def _end_bash(self) -> Event:
        """Kill the shell; when even that is not seen to work, the sandbox."""
        loop = asyncio.get_running_loop()
        assert self._channel is not None
        if self._bash is not None:
            processes.send_signal(self._bash, signal.SIGKILL)
            until = loop.time() + _DEATH_SECONDS
            while loop.time() < until:
                event = await self._mailbox.get(until)
                if isinstance(event, ShellExit | SandboxDeath):
                    return event
        await self._destroy(self._channel)
        return SandboxDeath()

    async def _destroy(self, channel: _Channel) -> None:
        """End the sandbox and let go of it."""
        loop = asyncio.get_running_loop()
        below = processes.descendants(channel.launched.root_pid)
        process = channel.launched.process
        if process.returncode is None:
            try:
                process.kill()
            except ProcessLookupError:
                pass  # it ended by itself just now
        # Where no pid namespace does it: also what the first process leaves behind.
        processes.send_signals({**self._known, **below}.values(), signal.SIGKILL)
        await process.wait()
        if channel.watcher is not None:
            await channel.watcher
        for fd in (channel.reports, channel.exits):
            loop.remove_reader(fd)
        for fd in (channel.requests, channel.reports, channel.exits):
            os.close(fd)
        channel.requests = channel.reports = channel.exits = -1

    # --- coming back ------------------------------------------------------------------------------------

    async def _revive(self) -> list[str]:
        """Have a shell that works, though something may have killed it since the last command."""
        bash = self._bash
        if not self._sandbox_runs():
            return await self._relaunch()
        current = processes.read_process(bash.pid) if bash else None
        if bash and current and current.identity == bash.identity and current.alive:
            return []
        await self._start_bash()
        return ["The shell had ended since the last command and was restarted with its last state."]

    async def _recover(self, event: Event, notes: list[str]) -> int:
        """After a command that cost the shell or the sandbox. Returns the command's exit status."""
        if isinstance(event, ShellExit):
            self._status = event.status
            await self._start_bash()
            self._status = event.status
            return event.status
        notes += await self._relaunch()
        self._status = 128 + signal.SIGKILL
        return self._status

    def _sandbox_runs(self) -> bool:
        channel = self._channel
        return channel is not None and channel.requests >= 0 and channel.launched.process.returncode is None

    async def _relaunch(self) -> list[str]:
        if self._channel is not None and self._channel.requests >= 0:
            await self._destroy(self._channel)
        cause = self._launcher.cause_of_death() or "The sandbox ended."
        await self.start()
        return [f"{cause} A new one was started with the shell's last state; background jobs are gone."]

    # --- looking ----------------------------------------------------------------------------------------

    async def _processes(self) -> Mapping[int, Process]:
        assert self._channel is not None
        root = self._channel.launched.root_pid
        if len(self._known) > _FEW_PROCESSES:
            self._known = await asyncio.to_thread(processes.descendants, root)
        else:
            self._known = processes.descendants(root)
        return self._known

    async def _victims(self, before: frozenset[tuple[int, int]]) -> list[Process]:
        assert self._channel is not None and self._bash is not None
        ancestors = {self._channel.launched.root_pid, self._bash.pid}
        return processes.of_command(await self._processes(), before, ancestors)

    async def _background(self) -> tuple[int, ...]:
        """What runs on, as the sandbox's pids: children of the shell and what was orphaned."""
        assert self._channel is not None and self._bash is not None
        parents = {self._channel.launched.root_pid, self._bash.pid}
        left = [
            process
            for process in (await self._processes()).values()
            if process.parent in parents and process.alive and process.pid != self._bash.pid
        ]
        inner = (processes.inner_pid(process.pid) for process in left)
        return tuple(sorted(pid for pid in inner if pid is not None))


def _nonce() -> str:
    return secrets.token_hex(8)
