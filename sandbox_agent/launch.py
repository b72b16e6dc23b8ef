"""The seam between the shell and where it runs: how a sandbox's first process is started.

The shell says what to run; a launcher decides around it. In a pod that is nothing at all, on one machine it
is bubblewrap.
"""

import asyncio
import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from cli_mcp.execution import SandboxUnavailable
from sandbox_agent import processes
from sandbox_agent.pid_one import unblock_signals

HELPER_PATH = "/opt/cli-mcp/helper"
"""The script of the process that a launcher keeps in the sandbox for itself."""


def is_helper(pid: int) -> bool:
    """Whether a process says so of itself; any can."""
    return HELPER_PATH.encode() in processes.command_words(pid)


@dataclass(frozen=True, slots=True)
class Launched:
    """A sandbox that runs.

    `process` ends when the sandbox does and killing it ends the sandbox. `root_pid` is the pid, in this
    process's own pid namespace, of the process that runs `argv`. It is the ancestor of every other process of
    the sandbox, also of those that were orphaned: as pid 1 of a namespace or as a child subreaper.
    """

    process: asyncio.subprocess.Process
    root_pid: int


class Launcher(Protocol):
    """Starts the first process of a sandbox, any number of times, always with the same workspace."""

    exchange: Path
    """A directory of this process's own, in which the shell's FIFOs are made."""

    exchange_inside: str
    """The path of the same directory in the sandbox, which need not be able to write to it."""

    workspace_inside: str
    """The absolute path of the workspace in the sandbox."""

    fifo_owner: tuple[int, int] | None
    """uid and gid that the sandbox's processes have outside, when they are not those of this process."""

    async def launch(
        self, argv: Sequence[str], *, stdin: int, output: int, pass_fds: Sequence[int]
    ) -> Launched:
        """Run `argv` as the sandbox's first process, with `stdin`, with `output` as its stdout and stderr and
        with `pass_fds` open under the same numbers. Returns once the sandbox is known to be isolated.

        Raises SandboxUnavailable; then nothing has run and nothing is left running.
        """
        ...

    def cause_of_death(self) -> str | None:
        """Why a process of the sandbox was killed since the last call, as one sentence, when the launcher
        knows it (for example that memory ran out, and the limit); otherwise None."""
        ...


_PR_SET_CHILD_SUBREAPER = 36  # prctl(2)
_prctl = ctypes.CDLL(None, use_errno=True).prctl


class DirectLauncher:
    """No isolation of its own: in a pod, which is the sandbox, and in tests.

    The first process becomes a child subreaper, so that what its descendants orphan stays below it.
    """

    def __init__(self, exchange: Path, workspace: Path, environment: Mapping[str, str] | None = None) -> None:
        self.exchange = exchange
        self.exchange_inside = str(exchange)
        self.workspace_inside = str(workspace)
        self.fifo_owner: tuple[int, int] | None = None
        self._environment = environment

    async def launch(
        self, argv: Sequence[str], *, stdin: int, output: int, pass_fds: Sequence[int]
    ) -> Launched:
        try:
            process = await asyncio.create_subprocess_exec(
                *argv,
                stdin=stdin,
                stdout=output,
                stderr=output,
                pass_fds=pass_fds,
                cwd=self.workspace_inside,
                env=self._environment,
                start_new_session=True,
                preexec_fn=_become_first_process,
            )
        except OSError as error:
            raise SandboxUnavailable(f"bash cannot be started: {error.strerror}") from error
        return Launched(process, process.pid)

    def cause_of_death(self) -> str | None:
        return None


def _become_first_process() -> None:
    unblock_signals()
    _prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
