"""Starts the shell's processes in a pod, in a way that leaves this process alive when they run wild."""

import asyncio
import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from cli_mcp.execution import SandboxUnavailable
from cli_mcp.sandbox_environment import with_defaults
from sandbox_agent import pid_one
from sandbox_agent.launch import DirectLauncher, Launched
from sandbox_agent.memory import MemoryKills

_log = logging.getLogger(__name__)

# When memory runs out, proc(5); the agent has what the kubelet gave the container. Said by an ordinary bash,
# since nothing can be written about agent and shell, and inherited from it. gVisor does not have it.
_FIRST_TO_GO = 'printf 1000 2>/dev/null >/proc/self/oom_score_adj; exec "$@"'
# When they take all of the container's CPU time the agent still gets the larger share, sched(7).
_NICER = 5
# What was ended counts until it is reaped.
_PAUSES_SECONDS = (0.0, 0.1, 1.0, 3.0)
OWN_VARIABLES = "CLI_MCP_"
"""Prefix of environment variables that are for the agent and not for the shell."""


class PodLauncher(DirectLauncher):
    """The pod is the sandbox."""

    def __init__(self, exchange: Path, workspace: Path, environment: Mapping[str, str]) -> None:
        super().__init__(exchange, workspace, shell_environment(environment))
        self._memory_kills = MemoryKills()
        self._launched = False

    async def launch(
        self, argv: Sequence[str], *, stdin: int, output: int, pass_fds: Sequence[int]
    ) -> Launched:
        if self._launched:
            # What is left of the last sandbox might look into this one before that is out of its reach.
            pid_one.kill_all_others()
        self._launched = True
        argv = ("bash", "--norc", "-p", "-c", _FIRST_TO_GO, "bash", *argv)
        launched = await self._launch(argv, stdin=stdin, output=output, pass_fds=pass_fds)
        _make_nicer(launched.root_pid)
        return launched

    async def _launch(
        self, argv: Sequence[str], *, stdin: int, output: int, pass_fds: Sequence[int]
    ) -> Launched:
        for pause_seconds in _PAUSES_SECONDS:
            try:
                return await super().launch(argv, stdin=stdin, output=output, pass_fds=pass_fds)
            except (SandboxUnavailable, RuntimeError):
                # Most likely all pids of the pod are taken by what an earlier shell left. It is a
                # RuntimeError where asyncio waits for children in threads: before Linux 5.3.
                if not pid_one.kill_all_others():
                    raise
            await asyncio.sleep(pause_seconds)
        return await super().launch(argv, stdin=stdin, output=output, pass_fds=pass_fds)

    def cause_of_death(self) -> str | None:
        if not self._memory_kills.since_last_time():
            return None
        limit_mib = self._memory_kills.limit_mib()
        limit = "" if limit_mib is None else f": its limit is {limit_mib} MiB, /dev/shm included"
        return f"The sandbox ran out of memory{limit}."


def shell_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """What processes of the sandbox get: the container's environment but the agent's own, and defaults."""
    return with_defaults(
        {name: value for name, value in environment.items() if not name.startswith(OWN_VARIABLES)}
    )


def _make_nicer(pid: int) -> None:
    """Before it has children, which inherit this. Seen from this process, which the sandbox may have made
    nicer and which cannot undo that."""
    try:
        os.setpriority(os.PRIO_PROCESS, pid, os.getpriority(os.PRIO_PROCESS, 0) + _NICER)
    except OSError as error:
        # It has ended already. The shell works either way.
        _log.warning("the shell's processes are not put behind the agent: %s", error.strerror)
