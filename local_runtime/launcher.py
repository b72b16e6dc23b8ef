"""Starts a sandbox with bubblewrap, and lets it run only when the kernel confirms that it is one.

bubblewrap makes the namespaces and waits; this process looks at them, sets the limits, lets go, and looks
once more at the privileges of the first program, which waits for its first line of input by then. Whatever
does not check out is killed.
"""

import asyncio
import json
import logging
import os
import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Self

from cli_mcp.execution import SandboxUnavailable
from local_runtime import bubblewrap, isolation, rlimits
from local_runtime.bubblewrap import SystemFiles, View
from local_runtime.cgroups import SessionGroups
from local_runtime.identity import Identity
from local_runtime.tool_channel import ToolChannel
from local_runtime.tool_helper import ToolProgram
from sandbox_agent import processes
from sandbox_agent.launch import Launched
from sandbox_agent.processes import Process

log = logging.getLogger(__name__)

_STEP_SECONDS = 15.0
_MAX_REPORT_BYTES = 16_384
_MEBIBYTE = 1 << 20
_NO_PROCESS = Process(pid=0, start_ticks=0, parent=0, state="X")


OpenGateway = Callable[[int, int], Awaitable[None]]
"""Gives a sandbox its way to the proxy, from the pid of its first process and the inode number of its network
namespace; raises SandboxUnavailable."""


class LaunchFailed(SandboxUnavailable):
    """bubblewrap did not make the sandbox, or made something else; `detail` says what, for an operator."""

    def __init__(self, detail: str) -> None:
        super().__init__("The sandbox could not be started and nothing was run; the server's log says why.")
        self.detail = detail


class BubblewrapLauncher:
    """Starts the sandbox of one session, again and again when need be (see sandbox_agent.launch.Launcher).

    The event loop must run in a thread that lives as long as the sandboxes: the kernel ends them with it.
    """

    exchange_inside = bubblewrap.EXCHANGE_INSIDE
    workspace_inside = bubblewrap.WORKSPACE_INSIDE

    def __init__(
        self,
        program: Path,
        view: View,
        system: SystemFiles,
        *,
        identity: Identity,
        limits: Mapping[int, int],
        groups: SessionGroups,
        seccomp: bytes,
        open_gateway: OpenGateway,
        tools: ToolProgram | None = None,
    ) -> None:
        self.exchange = view.exchange
        self.fifo_owner = (identity.uid, identity.gid) if identity.own else None
        self.root = _NO_PROCESS
        """The first process of the sandbox that was launched last."""
        self._program = program
        self._view = view
        self._system = system
        self._identity = identity
        self._ulimits = rlimits.ulimit_commands(limits, rlimits.own_hard_limits())
        self._groups = groups
        self._seccomp = seccomp
        self._open_gateway = open_gateway
        self._tool_program = tools
        self.tools: ToolChannel | None = None
        """To the typed tools in the sandbox that was launched last; None where they are not on offer."""

    def move_workspace(self, path: Path) -> None:
        """Where the workspace is from now on. A sandbox that runs keeps the directory that it has."""
        self._view = replace(self._view, workspace=path)

    async def launch(
        self, argv: Sequence[str], *, stdin: int, output: int, pass_fds: Sequence[int]
    ) -> Launched:
        self.root = _NO_PROCESS
        self.close_tools()
        with _Descriptors() as ours:
            if self._tool_program is not None:
                requests_read, requests_write = ours.pipe()
                answers_read, answers_write = ours.pipe()
                argv = self._tool_program.beside(argv, requests_read, answers_write, pass_fds)
                pass_fds = (*pass_fds, requests_read, answers_write)
            block_read, block_write = ours.pipe()
            info_read, info_write = ours.pipe()
            errors_read, errors_write = ours.pipe()
            seccomp_fd = ours.memory_file(self._seccomp)
            words = bubblewrap.options(
                self._view, self._system, info_fd=info_write, block_fd=block_read, seccomp_fd=seccomp_fd
            )
            arguments_fd = ours.memory_file(bubblewrap.encode_options(words))
            process = await self._spawn(
                bubblewrap.command(self._program, arguments_fd, self._ulimits, argv),
                stdin=stdin,
                output=output,
                errors=errors_write,
                pass_fds=(*pass_fds, block_read, info_write, seccomp_fd, arguments_fd),
            )
            # Only bubblewrap may hold these now, so that reading them ends when it does.
            ours.close(block_read, info_write, errors_write)
            try:
                pid = await self._admit(process, info_read, errors_read, block_write)
            except BaseException:
                # Before `block_write` closes, which would let the sandbox go.
                await _kill(process)
                if self.root.pid:
                    processes.send_signal(self.root, signal.SIGKILL)
                raise
            if self._tool_program is not None:
                self.tools = ToolChannel(ours.release(requests_write), ours.release(answers_read))
            return Launched(process, pid)

    def close_tools(self) -> None:
        """When the sandbox has ended: calls of its tools fail."""
        if self.tools is not None:
            self.tools.close()
            self.tools = None

    def cause_of_death(self) -> str | None:
        if not self._groups.killed_for_memory():
            return None
        limit = self._groups.limits.memory_bytes // _MEBIBYTE
        return f"The session ran out of memory: its limit is {limit} MiB, /tmp and /dev/shm included."

    async def _spawn(
        self, command: list[str], *, stdin: int, output: int, errors: int, pass_fds: Sequence[int]
    ) -> asyncio.subprocess.Process:
        own = self._identity.own
        try:
            return await asyncio.create_subprocess_exec(
                *command,
                stdin=stdin,
                stdout=output,
                stderr=errors,
                pass_fds=pass_fds,
                env={},
                cwd="/",
                user=self._identity.uid if own else None,
                group=self._identity.gid if own else None,
                extra_groups=[] if own else None,
            )
        except OSError as error:
            raise _failure(f"{command[0]}: {error.strerror}") from None

    async def _admit(self, process: asyncio.subprocess.Process, info: int, errors: int, block: int) -> int:
        """Check, limit and release the sandbox. Raises LaunchFailed."""
        report = await _read_until(info, lambda data: data.rstrip().endswith(b"}"))
        if not report:
            raise _failure(await _message(errors))
        try:
            pid, network_namespace = self._check_namespaces(process, json.loads(report))
            # The kernel takes some milliseconds for each hierarchy.
            await asyncio.to_thread(self._groups.add, pid)
        except (OSError, ValueError, KeyError) as error:
            message = await _message(errors, seconds=0.1)
            raise _failure(message or f"it cannot be checked and limited: {error}") from None
        try:
            os.write(block, b"1")
        except BrokenPipeError:
            pass  # it ended meanwhile; what it said about that comes next
        announced = await _read_until(errors, lambda data: data.endswith(b"\n"))
        if announced != bubblewrap.READY_LINE:
            raise _failure(_one_line(announced) or "it ended before it was ready")
        try:
            status = Path(f"/proc/{pid}/status").read_text()
        except OSError as error:
            raise _failure(f"it ended at once: {error.strerror}") from None
        faults = isolation.privilege_faults(status, uid=self._identity.uid)
        if faults:
            raise _failure(f"its first process {' and '.join(faults)}")
        # Not before: bubblewrap has configured the loopback interface by now.
        await self._open_gateway(pid, network_namespace)
        return pid

    def _check_namespaces(
        self, process: asyncio.subprocess.Process, report: dict[str, object]
    ) -> tuple[int, int]:
        """The pid of the sandbox's first process and the inode number of its network namespace.

        Raises OSError, ValueError and KeyError.
        """
        pid = report["child-pid"]
        if not isinstance(pid, int):
            raise ValueError("bubblewrap does not report its child")
        pidfd = os.pidfd_open(pid)
        try:
            found = isolation.namespaces_of(pid)
            root = processes.read_process(pid)
            # Still alive, so the numbers are those of this process and not of a later one of the same pid.
            signal.pidfd_send_signal(pidfd, 0)
        finally:
            os.close(pidfd)
        if root is None or root.parent != process.pid:
            raise ValueError("what bubblewrap reports as its child is none")
        self.root = root
        reported = isolation.reported_namespaces(report)
        faults = isolation.namespace_faults(found, isolation.namespaces_of("self"), reported)
        if faults:
            raise ValueError(f"the sandbox {' and '.join(faults)}")
        return pid, found.inodes["net"]


def _failure(detail: str) -> LaunchFailed:
    log.error("sandbox not started: %s", detail)
    return LaunchFailed(detail)


async def _kill(process: asyncio.subprocess.Process) -> None:
    """End bubblewrap and the sandbox that it is making.

    The sandbox first: until its first program starts it would outlive bubblewrap. Stopped, bubblewrap does
    not reap it, so that its pid stays its own.
    """
    if process.returncode is None:
        process.send_signal(signal.SIGSTOP)
        bubblewrap_process = processes.read_process(process.pid)
        if bubblewrap_process is not None:
            processes.send_signals(processes.descendants(bubblewrap_process).values(), signal.SIGKILL)
        process.kill()
    await process.wait()


async def _message(fd: int, *, seconds: float = _STEP_SECONDS) -> str:
    """What bubblewrap says about its failure, as one line."""
    try:
        return _one_line(await _read_until(fd, lambda data: data.endswith(b"\n"), seconds=seconds))
    except LaunchFailed:
        return ""


def _one_line(data: bytes) -> str:
    return " ".join(data.decode(errors="replace").split())


async def _read_until(
    fd: int, is_complete: Callable[[bytes], bool], *, seconds: float = _STEP_SECONDS
) -> bytes:
    """Read a pipe until what was read is complete or the pipe ends. Raises LaunchFailed after `seconds`."""
    loop = asyncio.get_running_loop()
    data = b""
    try:
        async with asyncio.timeout(seconds):
            while not is_complete(data) and len(data) < _MAX_REPORT_BYTES:
                readable = loop.create_future()
                loop.add_reader(fd, _set_result, readable)
                try:
                    await readable
                finally:
                    loop.remove_reader(fd)
                chunk = os.read(fd, _MAX_REPORT_BYTES)
                if not chunk:
                    break
                data += chunk
    except TimeoutError:
        raise _failure(f"bubblewrap does not answer within {seconds:g} seconds") from None
    return data


def _set_result(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class _Descriptors:
    """Descriptors that are closed at the end, unless they were closed before."""

    def __init__(self) -> None:
        self._open: set[int] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close(*self._open)

    def pipe(self) -> tuple[int, int]:
        ends = os.pipe2(os.O_CLOEXEC)
        self._open.update(ends)
        return ends

    def memory_file(self, content: bytes) -> int:
        """A file without a name, positioned at its start."""
        fd = os.memfd_create("cli-mcp")
        self._open.add(fd)
        with open(fd, "wb", closefd=False) as file:
            file.write(content)
        os.lseek(fd, 0, os.SEEK_SET)
        return fd

    def release(self, fd: int) -> int:
        """`fd`, which is the caller's from now on."""
        self._open.discard(fd)
        return fd

    def close(self, *fds: int) -> None:
        for fd in fds:
            self._open.discard(fd)
            os.close(fd)
