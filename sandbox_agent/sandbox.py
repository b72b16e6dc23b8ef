"""A sandbox that runs, and the conversation with the supervisor and the shell in it.

What it says comes out as events in a mailbox. Nothing here decides what to do about them.
"""

import asyncio
import os
import signal
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from cli_mcp.execution import SandboxUnavailable
from sandbox_agent import private_bash, processes, protocol
from sandbox_agent.channel import Channel
from sandbox_agent.launch import Launched, Launcher
from sandbox_agent.paced import Pace, PacedReader
from sandbox_agent.processes import Process
from sandbox_agent.protocol import Descriptors, ExitReader, Report, ReportReader, ShellExit

# A shell may have large variables; all that the supervisor ever says is a few bytes for each shell.
_REPORTS_PACE = Pace(1 << 16, burst_seconds=0.1, share=0.05, flood_bytes=1 << 30)
_EXITS_PACE = Pace(1 << 12, burst_seconds=0.01, share=0.01, flood_bytes=1 << 18)
# What others may write among the reports: more, and the shell's own come too late.
_FOREIGN_LIMIT_BYTES = 1 << 16
_BEGIN_BYTES = 1 << 12
# What bash takes for the report of an ordinary state.
_REPORT_SECONDS = 0.00015
# Walking more processes than this takes long enough to belong into a thread.
_FEW_PROCESSES = 50


@dataclass(frozen=True, slots=True)
class SandboxDeath:
    """The sandbox's first process ended, and with it the sandbox."""


@dataclass(frozen=True, slots=True)
class Stop:
    """A request to end the running command. `at_once` leaves out the patience of a timeout."""

    reason: str
    at_once: bool


Answer = Report | ShellExit | SandboxDeath


class Mailbox:
    """Answers in order, and beside them at most one request to stop."""

    def __init__(self) -> None:
        self._answers: deque[Answer] = deque()
        self._stop: Stop | None = None
        self._waiter: asyncio.Future[None] | None = None

    def put(self, item: Answer | Stop) -> None:
        if isinstance(item, Stop):
            self._stop = self._stop or item
        else:
            self._answers.append(item)
        self._wake()

    def drop_reports(self) -> None:
        """What ended stays to be told."""
        self._answers = deque(answer for answer in self._answers if not isinstance(answer, Report))

    def drop_answers(self) -> None:
        self._answers.clear()

    def drop_stop(self) -> None:
        self._stop = None

    async def answer(self, until: float) -> Answer | None:
        """The next answer, or None when the loop's clock reaches `until`."""
        await self._wait(until, stoppable=False)
        return self._answers.popleft() if self._answers else None

    async def answer_or_stop(self, until: float) -> Answer | Stop | None:
        """The same, but a request to stop comes before any answer."""
        await self._wait(until, stoppable=True)
        if self._stop is not None:
            stop, self._stop = self._stop, None
            return stop
        return self._answers.popleft() if self._answers else None

    async def _wait(self, until: float, *, stoppable: bool) -> None:
        loop = asyncio.get_running_loop()
        while not self._answers and not (stoppable and self._stop) and loop.time() < until:
            self._waiter = loop.create_future()
            timer = loop.call_at(until, self._wake)
            try:
                await self._waiter
            finally:
                timer.cancel()
                self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Sandbox:
    """Made by `launch`; `destroy` must follow. All answers go into `mailbox`."""

    def __init__(
        self, launched: Launched, root: Process, mailbox: Mailbox, channels: "_Channels", fds: Descriptors
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._process = launched.process
        self._mailbox = mailbox
        self._channels = channels
        self._fds = fds
        self._report_reader = ReportReader()
        self._exit_reader = ExitReader()
        self._start_nonce = self._begin_nonce = self._nonce = ""
        self._report_expected = False
        self._foreign_bytes = 0
        self._prompts = b""
        self._known: Mapping[int, Process] = {}
        self._usable = True
        self._destruction: asyncio.Task[None] | None = None
        self.root = root
        self.shell: Process | None = None
        """The shell that the supervisor started last, once it said so."""
        self.fault: str | None = None
        """Why it was ended from here, in a sentence for the caller."""
        self._reports_in = PacedReader(
            channels.reports.fileno(),
            _REPORTS_PACE,
            self._feed_report,
            on_flood=self._end_flood,
            before_turn=self._let_report_come,
            read=channels.reports.read,
        )
        self._exits_in = PacedReader(
            channels.exits.fileno(),
            _EXITS_PACE,
            self._feed_exit,
            on_flood=self._end_flood,
            read=channels.exits.read,
        )
        self._exits_in.start()
        self._watcher = self._loop.create_task(self._watch())

    @classmethod
    async def launch(cls, launcher: Launcher, mailbox: Mailbox) -> "Sandbox":
        """Start the supervisor. Raises SandboxUnavailable."""
        program = private_bash.private_bash()
        channels = _Channels(Channel(), Channel(), Channel(), Channel())
        reports, begins, exits = outs = channels.outs
        fds = Descriptors(reports, begins, exits, program)
        null = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        try:
            launched = await launcher.launch(
                protocol.supervisor_argv(fds),
                stdin=channels.requests.other_end,
                output=null,
                pass_fds=outs if program is None else [*outs, program],
            )
        except BaseException:
            channels.close()
            raise
        finally:
            os.close(null)
            channels.hand_over()
        root = processes.read_process(launched.root_pid)
        if root is None or private_bash.is_traced(root.pid):
            channels.close()
            if launched.process.returncode is None:
                launched.process.kill()
            await launched.process.wait()
            raise SandboxUnavailable("The sandbox ended as soon as it was started.")
        return cls(launched, root, mailbox, channels, fds)

    @property
    def running(self) -> bool:
        """Whether it is there and takes requests; if not, all that is left to do is `destroy`."""
        return self._usable and self._process.returncode is None

    def start_shell(self) -> None:
        """Have the supervisor run a shell; it reports when it is ready."""
        self._start_nonce = _nonce()
        self.shell = None
        self._mailbox.drop_answers()
        self._exit_reader.expect(self._start_nonce)
        self._reports_in.stop()
        self._send(protocol.start_lines(self._start_nonce, self._fds) + self._report_request())

    def source(self, path: str, stdout: str, stderr: str, last_status: int) -> bool:
        """Have the shell run the file `path`; it reports when it is done. False when that cannot be sent."""
        self._mailbox.drop_reports()
        self._channels.begins.drop()
        self._begin_nonce = _nonce()
        line = protocol.source_line(
            path,
            stdout,
            stderr,
            last_status=last_status,
            nonce=self._begin_nonce,
            fds=self._fds,
            prompts=self._prompts,
        )
        return self._send(line + self._report_request())

    def begun(self) -> bool:
        """Whether the shell itself has begun with what it was to source last."""
        while self._begin_nonce:
            try:
                data = self._channels.begins.read(_BEGIN_BYTES)
            except BlockingIOError:
                return False
            if not data:
                return False
            if self._is_shell(self._channels.begins.sender) and self._begin_nonce.encode() in data:
                self._begin_nonce = ""
        return True

    def request_report(self) -> None:
        """Have the shell report, as soon as it is at its prompt."""
        self._mailbox.drop_reports()
        self._send(b"\n" + self._prompts + self._report_request())

    def ask_again(self) -> None:
        """Repeat the last request for a report: one of the lines may have been lost. Only one will count."""
        self._send(b"\n" + protocol.report_line(self._nonce, self._fds))

    def all_read(self) -> bool:
        """Whether everything sent has been read. Bash reads ahead: this says that it is at its prompt only
        when nothing but one `ask_again` was sent since it last had read everything."""
        return self.running and self._channels.requests.all_read()

    @property
    def alive(self) -> bool:
        """Whether the first process runs; the kernel knows earlier than `running`."""
        return processes.still_runs(self.root)

    async def processes(self) -> Mapping[int, Process]:
        """All processes of the sandbox but its root, by pid on this side; none when the root is gone."""
        if len(self._known) > _FEW_PROCESSES:
            found = await asyncio.to_thread(processes.descendants, self.root)
        else:
            found = processes.descendants(self.root)
        if found:
            self._known = found
        return found

    async def destroy(self) -> None:
        """End the sandbox with everything in it and let go of it. May be called again."""
        await asyncio.shield(self._begin_to_end())

    def _begin_to_end(self) -> "asyncio.Task[None]":
        self._usable = False
        if self._destruction is None:
            self._destruction = self._loop.create_task(self._destroy())
        return self._destruction

    def _end_flood(self) -> None:
        self.fault = "A process of the sandbox flooded what the shell reports by, so the sandbox was ended."
        self._begin_to_end()

    async def _destroy(self) -> None:
        if self.alive:
            for _ in range(2):
                # Stopped, they cannot start others while they are counted.
                processes.send_signals((await self.processes()).values(), signal.SIGSTOP)
        if self._process.returncode is None:
            try:
                self._process.kill()
            except ProcessLookupError:
                pass  # it ended by itself just now
        await self._watcher
        self._reports_in.close()
        self._exits_in.close()
        self.begun()  # while it can be read
        self._channels.close()

    def _report_request(self) -> bytes:
        self._nonce = _nonce()
        self._report_reader.expect(self._nonce)
        self._report_expected = True
        self._reports_in.forgive()
        if self.shell is not None:
            self._reports_in.start()
        return protocol.report_line(self._nonce, self._fds)

    def _send(self, lines: bytes) -> bool:
        if not self.running:
            return False
        # Otherwise nobody reads.
        self._usable = self._channels.requests.send(lines)
        return self._usable

    def _let_report_come(self) -> None:
        """Bash writes a report line by line, and each line would wake this process, which the kernel prefers
        to the shell: dozens of times. Once for each report, so that no sandbox makes it wait for long, the
        rest gets a moment to come."""
        if self._report_expected:
            self._report_expected = False
            time.sleep(_REPORT_SECONDS)

    def _feed_report(self, data: bytes) -> None:
        """Reports are read while one is waited for: who writes at other times waits himself."""
        if not self._is_shell(self._channels.reports.sender):
            self._foreign_bytes += len(data)
            if self._foreign_bytes > _FOREIGN_LIMIT_BYTES:
                self._end_flood()
            return
        report = self._report_reader.feed(data)
        if report is not None:
            self._reports_in.stop()
            if report.snapshot is not None:
                self._prompts = report.snapshot.prompts()
            self._mailbox.put(report)

    def _feed_exit(self, data: bytes) -> None:
        """A shell that dies while it reports has already said how the command ended: after some syntax errors
        bash 5.2 corrupts its memory."""
        if self._channels.exits.sender != self.root.pid:
            return
        if self.shell is None and (pid_inside := protocol.started_pid(data, self._start_nonce)):
            self.shell = processes.child(self.root, pid_inside)
            self._reports_in.start()
        ended = self._exit_reader.feed(data)
        if ended is None:
            return
        self._exits_in.forgive()
        self._reports_in.read()
        begun = self._report_reader.status_begun
        self._mailbox.put(ended if begun is None else ShellExit(begun))

    def _is_shell(self, pid: int) -> bool:
        return self.shell is not None and self.shell.pid == pid

    async def _watch(self) -> None:
        await self._process.wait()
        self._usable = False
        # Where the launcher gives it no pid namespace, others outlive the first process.
        for _ in range(2):
            left = await asyncio.to_thread(processes.in_session, self.root)
            processes.send_signals({**self._known, **left}.values(), signal.SIGKILL)
        self._mailbox.put(SandboxDeath())


def _nonce() -> str:
    return os.urandom(8).hex()


@dataclass(frozen=True, slots=True)
class _Channels:
    requests: Channel
    reports: Channel
    begins: Channel
    exits: Channel

    @property
    def outs(self) -> tuple[int, int, int]:
        return self.reports.other_end, self.begins.other_end, self.exits.other_end

    def hand_over(self) -> None:
        for channel in (self.requests, self.reports, self.begins, self.exits):
            channel.hand_over()

    def close(self) -> None:
        for channel in (self.requests, self.reports, self.begins, self.exits):
            channel.close()
