"""One sandbox as its callers see it: commands in a queue, their output and progress, and the end."""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from cli_mcp.execution import (
    KEEP_OUTPUT,
    QUEUE_SECONDS,
    STREAM_LIMIT_BYTES,
    ExecutionError,
    Outcome,
    Progress,
    ProgressCallback,
    SandboxUnavailable,
    SessionBusy,
    SessionEnded,
)
from sandbox_agent.confined import ConfinedDirectory
from sandbox_agent.exchange import CommandFiles
from sandbox_agent.launch import Launcher
from sandbox_agent.output import OutputStream
from sandbox_agent.processes import Process
from sandbox_agent.sandbox import Stop
from sandbox_agent.shell import Ending, Shell
from sandbox_agent.snapshot import restore_script
from sandbox_agent.spill import DIRECTORY, SpillDirectory, SpillFile, SpillLimits
from sandbox_agent.state_file import StateFile

_log = logging.getLogger(__name__)

_PROGRESS_SECONDS = 1.0
# A wait that is worth a word.
_LONG_WAIT_SECONDS = 1.0
# Streams that background processes hold open; each costs a descriptor.
_LATE_STREAMS = 32
_NAMES = ("stdout", "stderr")


class ShellSession:
    """The shell of one sandbox. Calls run one after the other, in the order in which they came.

    `workspace` is the workspace on this side, opened before anything ran in the sandbox; it stays the
    caller's. `queue_limit` is how many calls may wait while one runs, each for `queue_seconds`. With a
    `state_file` the shell starts with the state that an earlier one left there.
    """

    def __init__(
        self,
        launcher: Launcher,
        workspace: ConfinedDirectory,
        *,
        queue_limit: int = 16,
        queue_seconds: float = QUEUE_SECONDS,
        spill: SpillLimits = SpillLimits(),  # noqa: B008 - a frozen value
        state_file: StateFile | None = None,
    ) -> None:
        self._shell = Shell(launcher)
        self._inside = f"{launcher.workspace_inside.rstrip('/')}/{DIRECTORY}"
        self._spill = SpillDirectory(workspace, launcher.fifo_owner, spill)
        self._limits = spill
        self._state_file = state_file
        self._saved = b""  # what a new shell gets of the saved state
        self._queue_limit = queue_limit
        self._queue_seconds = queue_seconds
        self._turn = asyncio.Lock()
        self._waiting = 0
        self._number = 0
        self._end_reason: str | None = None
        self._start_notes: list[str] = []  # for the first result
        self._streams: tuple[OutputStream, ...] = ()
        self._late: deque[OutputStream] = deque()
        self.running = False
        self.idle_since = time.monotonic()

    @property
    def shell_process(self) -> Process | None:
        """The shell itself, for who ends everything else in the sandbox; None while there is none."""
        return self._shell.process

    async def start(self, lost: str | None = None) -> None:
        """Launch the sandbox; afterwards it is ready for a command. Raises SandboxUnavailable.

        `lost` is for a session that had a shell before: the first result says that it is another one, and
        this sentence, what went with the earlier one.
        """
        self._number = await asyncio.to_thread(self._spill.adopt)
        if self._state_file is not None:
            self._shell.snapshot = await asyncio.to_thread(self._state_file.load)
        self._start_notes = [*([lost] if lost else ()), *await self._shell.start()]

    async def run(
        self,
        command: str,
        timeout_seconds: float,
        on_progress: ProgressCallback,
        output_bytes: int = STREAM_LIMIT_BYTES,
    ) -> Outcome:
        """Run `command` in the shell, for `timeout_seconds` from when earlier calls are done. The outcome has
        `output_bytes` of each stream.

        `on_progress` is called about once a second meanwhile. Cancelling the task that awaits this ends the
        command; with the message KEEP_OUTPUT its outcome is returned then. Raises SessionBusy (it did not
        run), SessionEnded, SandboxUnavailable.
        """
        if "\0" in command:
            raise ExecutionError("The command contains a NUL character, which bash cannot run. Remove it.")
        loop = asyncio.get_running_loop()
        came = loop.time()
        queued = True
        with _every_second(lambda: on_progress(self._progress(loop.time() - came, queued))):
            await self._wait_for_turn()
            queued = False
            waited_seconds = loop.time() - came
            execution = loop.create_task(
                self._execute(command, timeout_seconds, output_bytes, waited_seconds)
            )
            execution.add_done_callback(self._end_turn)
            try:
                return await asyncio.shield(execution)
            except asyncio.CancelledError as cancelled:
                if execution.done():
                    raise
                self._shell.stop(Stop("cancelled", at_once=False))
                if cancelled.args != (KEEP_OUTPUT,):
                    raise
                return await asyncio.shield(execution)

    async def kill_command(self, reason: str) -> None:
        """End the running command at once; `reason` stands in the notes of its result."""
        if self.running:
            self._shell.stop(Stop(reason, at_once=True))

    async def close(self, reason: str) -> None:
        """End the sandbox and all that runs in it. Calls that wait or run raise SessionEnded(reason)."""
        self._end_reason = self._end_reason or reason
        await self._shell.close()
        async with self._turn:
            while self._late:
                self._late.popleft().close()

    async def _wait_for_turn(self) -> None:
        self._check_open()
        if self._turn.locked() and self._waiting >= self._queue_limit:
            raise SessionBusy(
                f"The session is busy: a command runs and {self._waiting} more wait. This one was not run. "
                "Try again later or use another session."
            )
        self._waiting += 1
        try:
            async with asyncio.timeout(self._queue_seconds):
                await self._turn.acquire()
        except TimeoutError:
            raise SessionBusy(
                f"The command was not run: it waited {self._queue_seconds:g} s for earlier ones of the "
                "session. Try again later or use another session; run what takes long in the background."
            ) from None
        finally:
            self._waiting -= 1
        try:
            self._check_open()
        except SessionEnded:
            self._turn.release()
            raise
        self.running = True

    def _check_open(self) -> None:
        if self._end_reason is not None:
            raise SessionEnded(self._end_reason)

    def _end_turn(self, execution: "asyncio.Task[Outcome]") -> None:
        self.running = False
        self.idle_since = time.monotonic()
        self._shell.drop_stop()
        self._turn.release()
        if not execution.cancelled():
            execution.exception()  # a caller that was cancelled does not ask for it

    async def _execute(
        self, command: str, timeout_seconds: float, output_bytes: int, waited_seconds: float
    ) -> Outcome:
        loop = asyncio.get_running_loop()
        started = loop.time()
        self._number += 1
        number = self._number

        def take_streams(files: CommandFiles) -> None:
            self._streams = tuple(
                OutputStream(fd, output_bytes, self._file(f"{number}.{name}", self._limits.file_bytes))
                for fd, name in zip((files.stdout_fd, files.stderr_fd), _NAMES, strict=True)
            )

        text = command.encode(errors="surrogatepass")
        try:
            ending = await self._shell.execute(text, started + timeout_seconds, take_streams)
            self._check_open()
            duration_ms = round((loop.time() - started) * 1000)
            outcome = await self._outcome(number, ending, duration_ms)
            if waited_seconds >= _LONG_WAIT_SECONDS:
                note = f"waited {waited_seconds:.1f} s for earlier commands of the session"
                outcome = replace(outcome, notes=(note, *outcome.notes))
            await self._save_state()
            return outcome
        except SandboxUnavailable:
            self._check_open()
            raise
        finally:
            for stream in self._streams:
                stream.close()
            self._streams = ()

    async def _outcome(self, number: int, ending: Ending, duration_ms: int) -> Outcome:
        started_anew = bool(self._start_notes)
        notes = [*self._start_notes, *ending.notes]
        self._start_notes = []
        outputs = [await stream.finish(self._inside) for stream in self._streams]
        for name, stream in zip(_NAMES, self._streams, strict=True):
            if stream.error is not None:
                notes.append(f"Not all of {name} could be kept in a file: {stream.error.strerror}.")
        notes += self._continue_streams(number)
        stdout, stderr = outputs
        return Outcome(
            exit_code=ending.status,
            stdout=stdout,
            stderr=stderr,
            duration_ms=duration_ms,
            cwd=ending.cwd.decode(errors="replace"),
            timed_out=ending.timed_out,
            background=ending.background,
            shell_restarted=ending.shell_restarted or started_anew,
            notes=tuple(notes),
        )

    async def _save_state(self) -> None:
        snapshot = self._shell.snapshot
        if self._state_file is None or snapshot is None:
            return
        restores = restore_script(snapshot)
        if restores == self._saved and self._state_file.exists:
            return
        try:
            await asyncio.to_thread(self._state_file.save, snapshot)
            self._saved = restores
        except OSError as error:
            # A restart of the container would bring back an older state, and it says so itself.
            _log.warning("the shell's state cannot be saved: %s", error.strerror)

    def _continue_streams(self, number: int) -> list[str]:
        """Keep reading for processes that still have a stream open; returns notes about it."""
        for ended in [stream for stream in self._late if stream.ended]:
            self._late.remove(ended)
            ended.close()
        held = {name: stream for name, stream in zip(_NAMES, self._streams, strict=True) if not stream.ended}
        if not held:
            return []
        for name, stream in held.items():
            limit_bytes = self._limits.background_file_bytes
            stream.continue_late(self._file(f"{number}.background.{name}", limit_bytes))
            self._late.append(stream)
        self._streams = tuple(stream for stream in self._streams if stream.ended)
        paths = " and ".join(f"{self._inside}/{number}.background.{name}" for name in held)
        notes = [f"later output of the background: {paths}"]
        if len(self._late) > _LATE_STREAMS:
            notes.append("So many of them hold their output open that the oldest can no longer write to it.")
        while len(self._late) > _LATE_STREAMS:
            self._late.popleft().close()
        return notes

    def _file(self, name: str, limit_bytes: int) -> Callable[[], SpillFile]:
        return lambda: self._spill.create(name, limit_bytes)

    def _progress(self, elapsed_seconds: float, queued: bool) -> Progress:
        if queued:
            return Progress(elapsed_seconds, queued=True)
        captures = [stream.capture for stream in self._streams]
        last_line = next((line for capture in captures if (line := capture.last_line())), "")
        return Progress(elapsed_seconds, sum(capture.total_bytes for capture in captures), last_line)


@contextmanager
def _every_second(call: Callable[[], None]) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    timer: asyncio.TimerHandle | None = None

    def tick() -> None:
        nonlocal timer
        if timer is not None:
            call()
        timer = loop.call_later(_PROGRESS_SECONDS, tick)

    tick()
    try:
        yield
    finally:
        assert timer is not None
        timer.cancel()
