"""One sandbox as its callers see it: commands in a queue, their output, their progress, the end."""

import asyncio
import time
from collections import deque
from collections.abc import Callable

from cli_mcp.execution import (
    STREAM_LIMIT_BYTES,
    TIMEOUT_EXIT_CODE,
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
from sandbox_agent.shell import Ending, Shell, Stop
from sandbox_agent.spill import DIRECTORY, SpillDirectory, SpillFile, SpillLimits

_PROGRESS_SECONDS = 1.0
# Each command that leaves processes behind keeps two descriptors open until they end.
_LATE_STREAMS = 32


class ShellSession:
    """The shell of one sandbox. Calls run one after the other, in the order in which they came.

    `workspace` is the workspace on this side, opened before anything ran in the sandbox; it stays the
    caller's. `queue_limit` is how many calls may wait beside the one that runs.
    """

    def __init__(
        self,
        launcher: Launcher,
        workspace: ConfinedDirectory,
        *,
        queue_limit: int = 16,
        spill: SpillLimits = SpillLimits(),  # noqa: B008 - a frozen value
    ) -> None:
        self._shell = Shell(launcher)
        self._inside = f"{launcher.workspace_inside}/{DIRECTORY}"
        self._spill = SpillDirectory(workspace, launcher.fifo_owner, spill)
        self._queue_limit = queue_limit
        self._turn = asyncio.Lock()
        self._waiting = 0
        self._number = 0
        self._ended: str | None = None
        self._streams: tuple[OutputStream, ...] = ()
        self._late: deque[OutputStream] = deque()
        self.running = False
        self.idle_since = time.monotonic()

    @property
    def shell_process(self) -> Process | None:
        """The shell itself, for who ends everything else in the sandbox."""
        return self._shell.process

    async def start(self) -> None:
        """Launch the sandbox; afterwards it is ready for a command. Raises SandboxUnavailable."""
        self._number = await asyncio.to_thread(self._spill.adopt)
        await self._shell.start()

    async def run(self, command: str, timeout_seconds: float, on_progress: ProgressCallback) -> Outcome:
        """Run `command` in the shell; waiting for earlier calls counts into `timeout_seconds`.

        `on_progress` is called about once a second, meanwhile. Cancelling the task that awaits this ends the
        command. Raises SessionBusy (not run), SessionEnded, SandboxUnavailable.
        """
        if "\0" in command:
            raise ExecutionError("The command contains a NUL character, which bash cannot run. Remove it.")
        loop = asyncio.get_running_loop()
        started = loop.time()
        until = started + timeout_seconds
        ticker = _Ticker(loop, lambda: on_progress(self._progress(started, running)))
        running = False
        try:
            await self._wait_for_turn(until, timeout_seconds)
            running = True
            execution = loop.create_task(self._execute(command, started, until))
            execution.add_done_callback(self._pass_on)
            try:
                return await asyncio.shield(execution)
            except asyncio.CancelledError:
                self._shell.stop(Stop("cancelled", at_once=False))
                raise
        finally:
            ticker.cancel()

    async def kill_command(self, reason: str) -> None:
        """End the running command at once; `reason` stands in the notes of its result."""
        if self.running:
            self._shell.stop(Stop(reason))

    async def close(self, reason: str) -> None:
        """End the sandbox and all that runs in it. Calls that wait or run raise SessionEnded(reason)."""
        if self._ended is None:
            self._ended = reason
            await self._shell.close()
        for stream in (*self._streams, *self._late):
            stream.close()

    async def _wait_for_turn(self, until: float, timeout_seconds: float) -> None:
        if self._ended is not None:
            raise SessionEnded(self._ended)
        if self._turn.locked() and self._waiting >= self._queue_limit:
            raise SessionBusy(
                f"The session is busy: one command runs and {self._waiting} wait. This one was not run; "
                "wait for the others, or use another session."
            )
        self._waiting += 1
        try:
            async with asyncio.timeout_at(until):
                await self._turn.acquire()
        except TimeoutError:
            raise SessionBusy(
                f"The command was not run: earlier commands of this session took its whole timeout of "
                f"{timeout_seconds:g} s. Raise the timeout, or use another session."
            ) from None
        finally:
            self._waiting -= 1
        if self._ended is not None:
            self._turn.release()
            raise SessionEnded(self._ended)

    def _pass_on(self, execution: asyncio.Task[Outcome]) -> None:
        self._turn.release()
        if not execution.cancelled():
            execution.exception()  # the caller may have left; then nobody else asks for it

    async def _execute(self, command: str, started: float, until: float) -> Outcome:
        loop = asyncio.get_running_loop()
        self._number += 1
        number = self._number
        self.running = True

        def take_streams(files: CommandFiles) -> None:
            self._streams = (
                OutputStream(files.stdout_fd, STREAM_LIMIT_BYTES, self._file(f"{number}.stdout")),
                OutputStream(files.stderr_fd, STREAM_LIMIT_BYTES, self._file(f"{number}.stderr")),
            )

        text = command.encode(errors="surrogatepass")
        try:
            ending = await self._shell.execute(str(number), text, until, take_streams)
            if self._ended is not None:
                raise SessionEnded(self._ended)
            return await self._outcome(number, ending, round((loop.time() - started) * 1000))
        except SandboxUnavailable:
            if self._ended is not None:
                raise SessionEnded(self._ended) from None
            raise
        finally:
            self._streams = ()
            self.running = False
            self.idle_since = time.monotonic()

    async def _outcome(self, number: int, ending: Ending, duration_ms: int) -> Outcome:
        notes = list(ending.notes)
        if ending.stopped is not None:
            notes.append(ending.stopped.reason)
        streams = self._streams
        stdout, stderr = [await stream.finish(lambda name: f"{self._inside}/{name}") for stream in streams]
        for stream, name in zip(streams, ("stdout", "stderr"), strict=True):
            if stream.error is not None:
                notes.append(
                    f"The whole {name} could not be kept in a file: {stream.error.strerror or stream.error}."
                )
            late = self._continue(stream, f"{number}.background.{name}")
            if late is not None:
                notes.append(f"What background processes still write to {name} goes to {late}.")
        return Outcome(
            exit_code=TIMEOUT_EXIT_CODE if ending.timed_out else ending.status,
            stdout=stdout,
            stderr=stderr,
            duration_ms=duration_ms,
            cwd=ending.cwd.decode(errors="replace"),
            timed_out=ending.timed_out,
            background=ending.background,
            shell_restarted=ending.shell_restarted,
            notes=tuple(notes),
        )

    def _continue(self, stream: OutputStream, name: str) -> str | None:
        """Keep reading for the processes that still have the stream open, if any; returns the file's path."""
        if stream.ended:
            stream.close()
            return None
        while len(self._late) >= _LATE_STREAMS:
            self._late.popleft().close()
        stream.continue_into(self._file(name))
        self._late.append(stream)
        return f"{self._inside}/{name}"

    def _file(self, name: str) -> Callable[[], SpillFile]:
        return lambda: self._spill.create(name)

    def _progress(self, started: float, running: bool) -> Progress:
        elapsed = asyncio.get_running_loop().time() - started
        if not running:
            return Progress(elapsed, queued=True)
        captures = [stream.capture for stream in self._streams]
        lines = [line for capture in captures if (line := capture.last_line())]
        return Progress(elapsed, sum(capture.total_bytes for capture in captures), lines[0] if lines else "")


class _Ticker:
    """Calls `tick` about once a second until it is cancelled."""

    def __init__(self, loop: asyncio.AbstractEventLoop, tick: Callable[[], None]) -> None:
        self._loop = loop
        self._tick = tick
        self._timer = loop.call_later(_PROGRESS_SECONDS, self._run)

    def cancel(self) -> None:
        self._timer.cancel()

    def _run(self) -> None:
        self._timer = self._loop.call_later(_PROGRESS_SECONDS, self._run)
        self._tick()
