"""The tools `process_start`, `process_list`, `process_kill` and `tail_log`.

Processes belong to the session and not to whoever started them: they run until they end, are killed, or the
sandbox ends. What they write goes to a capped log in the workspace.
"""

import asyncio
import os
import re
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from cli_mcp.execution import ToolFailed
from sandbox_agent import processes
from sandbox_agent.pid_one import unblock_signals
from sandbox_agent.tools.files import READ_LIMIT_BYTES, encode
from sandbox_agent.tools.logs import FileLog, Log, ProcessLog, open_log_directory
from sandbox_agent.tools.root import Root, shown

LOG_DIRECTORY = ".cli-mcp/processes"
MAX_RUNNING = 32
# With those that have ended; each holds descriptors and two log files.
MAX_KEPT = 48
MAX_FOLLOW_SECONDS = 60.0
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
SIGNALS = ("TERM", "INT", "KILL", "HUP", "QUIT", "USR1", "USR2", "STOP", "CONT")
_ENDING = frozenset({"TERM", "INT", "HUP", "QUIT", "KILL"})
# What they mean is the program's affair, and those that it started would die of them.
_FOR_ITSELF = frozenset({"USR1", "USR2"})

_CHUNK_BYTES = 1 << 16
# So that a flood leaves time for everything else: about 10 MB/s.
_PAUSE_SECONDS = 0.006
_GRACE_SECONDS = 5.0
_KILL_SECONDS = 2.0
_POLL_SECONDS = 0.1
_SHOWN_COMMAND_CHARACTERS = 500

Result = dict[str, Any]


@dataclass(slots=True, eq=False)
class _Entry:
    name: str
    command: str
    process: asyncio.subprocess.Process
    log: ProcessLog
    pump: "_Pump"
    started: float
    ended: float | None = None
    waiter: asyncio.Task[None] | None = field(default=None)

    @property
    def exit_code(self) -> int | None:
        """128+n for death by signal n, as a shell says it."""
        code = self.process.returncode
        return 128 - code if code is not None and code < 0 else code

    @property
    def running(self) -> bool:
        return self.process.returncode is None


class ProcessTable:
    """In use until `close`, from one event loop. Methods raise ToolFailed, and OSError."""

    def __init__(self, root: Root, environment: Mapping[str, str]) -> None:
        self._root = root
        self._environment = dict(environment)
        self._entries: dict[str, _Entry] = {}  # by name, oldest first
        self._starting = asyncio.Lock()

    async def start(self, *, command: str, name: str | None = None, cwd: str = ".") -> Result:
        if "\0" in command:
            raise ToolFailed("`command` contains a NUL character, which bash cannot run. Remove it.")
        async with self._starting:
            name = name or self._free_name()
            if not NAME.fullmatch(name):
                raise ToolFailed(
                    f"{shown(name)} is no process name: 1 to 64 letters, digits and `._-`, "
                    "the first a letter or digit."
                )
            self._make_room(name)
            entry = await self._spawn(name, command, cwd)
            self._entries[name] = entry
        return self._described(entry)

    def list(self) -> Result:
        return {"processes": [self._described(entry) for entry in self._entries.values()]}

    async def kill(self, *, name: str, signal: str = "TERM") -> Result:
        """Signal the process and all that it started; USR1 and USR2 are for itself. KILL follows an ending
        signal that does not work."""
        entry = self._entry(name)
        if not entry.running:
            return {**self._described(entry), "signal": None, "escalated": False}
        await self._signal(entry, signal)
        ended = signal in _ENDING and await _ends(entry, _GRACE_SECONDS)
        escalated = signal in _ENDING and not ended
        if escalated:
            await self._signal(entry, "KILL")
            await _ends(entry, _KILL_SECONDS)
        return {**self._described(entry), "signal": signal, "escalated": escalated}

    async def tail(
        self,
        *,
        name: str | None = None,
        path: str | None = None,
        offset: int | None = None,
        limit: int = READ_LIMIT_BYTES,
        follow: float = 0.0,
        file_id: str | None = None,
    ) -> Result:
        """A piece of a process's log or of a file. With `follow`, wait so many seconds at most for a first
        byte; the end of the process ends the wait too."""
        if (name is None) == (path is None):
            raise ToolFailed("Send either `name`, of a process, or `path`, of a file.")
        entry = None if name is None else self._entry(name)
        log: Log = entry.log if entry is not None else FileLog(self._root, path or "", file_id)
        until = time.monotonic() + min(follow, MAX_FOLLOW_SECONDS)
        limit = min(limit, READ_LIMIT_BYTES)
        while True:
            over = entry is not None and entry.pump.ended and not entry.running  # before the last look
            piece = log.read(offset, limit)
            if piece.data or piece.gap or over or time.monotonic() >= until:
                break
            offset = piece.offset  # new bytes from here on, not the end of whatever comes
            await asyncio.sleep(_POLL_SECONDS)
        content, encoding, used = encode(piece.data, "auto", name or path or "", more=not over)
        return {
            "source": name if path is None else self._root.absolute(path),
            "content": content,
            "encoding": encoding,
            "offset": piece.offset,
            "next_offset": piece.offset + used,
            "size_bytes": piece.size_bytes,
            "file_id": piece.file_id,
            "gap": piece.gap,
            "lost_bytes": piece.lost_bytes,
            "state": None if entry is None else _state(entry),
            "exit_code": None if entry is None else entry.exit_code,
        }

    async def close(self) -> None:
        """Kill what runs."""
        running = [entry for entry in self._entries.values() if entry.running]
        for entry in running:
            await self._signal(entry, "KILL")
        for entry in running:
            await _ends(entry, _KILL_SECONDS)
        for entry in self._entries.values():
            entry.pump.close()
            entry.log.close(remove=False)
        self._entries.clear()

    def _free_name(self) -> str:
        return next(name for number in range(1, MAX_KEPT + 2) if (name := f"p{number}") not in self._entries)

    def _make_room(self, name: str) -> None:
        previous = self._entries.get(name)
        if previous is not None and previous.running:
            raise ToolFailed(f"{shown(name)} is running. Kill it with process_kill, or use another name.")
        if sum(entry.running for entry in self._entries.values()) >= MAX_RUNNING:
            raise ToolFailed(f"{MAX_RUNNING} processes are running, which is the limit. Kill one of them.")
        if previous is not None:
            self._forget(previous)
        elif len(self._entries) >= MAX_KEPT:
            self._forget(next(entry for entry in self._entries.values() if not entry.running))

    def _forget(self, entry: _Entry) -> None:
        entry.pump.close()
        entry.log.close(remove=True)
        del self._entries[entry.name]

    async def _spawn(self, name: str, command: str, cwd: str) -> _Entry:
        log = ProcessLog(open_log_directory(self._root, LOG_DIRECTORY), f"{name}.log")
        output, ours = os.pipe2(os.O_CLOEXEC)
        try:
            with self._root.opened(cwd, os.O_PATH | os.O_DIRECTORY) as directory:
                process = await asyncio.create_subprocess_exec(
                    *("bash", "-c", command),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=ours,
                    stderr=ours,
                    cwd=f"/proc/self/fd/{directory}",
                    env=self._environment,
                    start_new_session=True,
                    preexec_fn=unblock_signals,
                )
        except BaseException:
            os.close(output)
            log.close(remove=True)
            raise
        finally:
            os.close(ours)
        entry = _Entry(name, command, process, log, _Pump(output, log), time.time())
        entry.waiter = asyncio.create_task(_note_end(entry))
        return entry

    def _entry(self, name: str) -> _Entry:
        entry = self._entries.get(name)
        if entry is None:
            raise ToolFailed(f"There is no process {shown(name)}. process_list shows what there is.")
        return entry

    async def _signal(self, entry: _Entry, name: str) -> None:
        number = signal.Signals[f"SIG{name}"]
        leader = processes.read_process(entry.process.pid)
        if leader is None or not entry.running:
            return
        if name in _FOR_ITSELF:
            entry.process.send_signal(number)
            return
        # Looked up first: what is orphaned by the signal cannot be found any more.
        others = await asyncio.to_thread(processes.descendants, leader)
        try:
            os.killpg(leader.pid, number)
        except ProcessLookupError:
            return  # it ended just now
        processes.send_signals((one for one in others.values() if one.session != leader.pid), number)

    def _described(self, entry: _Entry) -> Result:
        return {
            "name": entry.name,
            "command": entry.command[:_SHOWN_COMMAND_CHARACTERS],
            "pid": entry.process.pid,
            "state": _state(entry),
            "exit_code": entry.exit_code,
            "started": _moment(entry.started),
            "ended": None if entry.ended is None else _moment(entry.ended),
            "log": self._root.absolute(f"{LOG_DIRECTORY}/{entry.name}.log"),
            "log_bytes": entry.log.total_bytes,
            "log_error": entry.pump.error,
        }


class _Pump:
    """Carries what a process and its children write into its log, at a bounded speed, until none is left."""

    def __init__(self, fd: int, log: ProcessLog) -> None:
        self._loop = asyncio.get_running_loop()
        self._fd = fd
        self._log = log
        self._timer: asyncio.TimerHandle | None = None
        self.ended = False
        self.error: str | None = None
        os.set_blocking(fd, False)
        self._loop.add_reader(fd, self._carry)

    def close(self) -> None:
        if not self.ended:
            self.ended = True
            if self._timer is not None:
                self._timer.cancel()
            self._loop.remove_reader(self._fd)
            os.close(self._fd)

    def _carry(self) -> None:
        try:
            data = os.read(self._fd, _CHUNK_BYTES)
        except BlockingIOError:
            return
        if not data:
            self.close()
            return
        if self.error is None:
            try:
                self._log.append(data)
            except (OSError, ToolFailed) as error:
                # The process must not block on it, so the rest is read and dropped.
                self.error = f"The log ends early: {getattr(error, 'strerror', None) or error}."
        self._loop.remove_reader(self._fd)
        self._timer = self._loop.call_later(_PAUSE_SECONDS, self._resume)

    def _resume(self) -> None:
        self._loop.add_reader(self._fd, self._carry)


async def _note_end(entry: _Entry) -> None:
    await entry.process.wait()
    entry.ended = time.time()


async def _ends(entry: _Entry, seconds: float) -> bool:
    """Whether the process has ended, after `seconds` at most."""
    assert entry.waiter is not None
    done, _ = await asyncio.wait({entry.waiter}, timeout=seconds)
    return bool(done)


def _state(entry: _Entry) -> str:
    return "running" if entry.running else "exited"


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(int(seconds), UTC).isoformat()
