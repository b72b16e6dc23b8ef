"""Ends a command: its processes first by persuasion, then by force, and the shell only if nothing else helps.

Which processes are a command's is decided by the kernel's view alone. A shell that interactively gets SIGINT
drops the rest of what it runs, so it is told first; then the end of a process does not start the next one.
"""

import asyncio
import signal
from collections.abc import Sequence

from sandbox_agent import processes, protocol
from sandbox_agent.processes import Identity, Process
from sandbox_agent.protocol import Report, ShellExit
from sandbox_agent.sandbox import Answer, Mailbox, Sandbox, SandboxDeath

Rungs = Sequence[tuple[signal.Signals, float]]
# Each signal and the seconds that it may take to work.
PATIENT: Rungs = ((signal.SIGINT, 0.6), (signal.SIGTERM, 0.6), (signal.SIGKILL, 1.0))
AT_ONCE: Rungs = ((signal.SIGINT, 0.1), (signal.SIGKILL, 1.0))
_LOOK_SECONDS = 0.03
_LAST_LOOKS = 8
_LAST_LOOK_SECONDS = 0.001
_NUDGE_SECONDS = 0.2
_SETTLE_SECONDS = (0.2, 0.5, 2.0)
_DEATH_SECONDS = 2.0


class Ladder:
    """For one command of the shell process `bash`. `before` are the processes that were there before it."""

    def __init__(
        self, sandbox: Sandbox, mailbox: Mailbox, bash: Process, before: frozenset[Identity]
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._sandbox = sandbox
        self._mailbox = mailbox
        self._bash = bash
        self._before = before
        self._answer: Answer | None = None

    async def climb(self, rungs: Rungs) -> Answer:
        """Afterwards no process of the command is left, and the answer says what is left of the shell."""
        for number, grace_seconds in rungs:
            if await self._rung(number, self._loop.time() + grace_seconds):
                break
        else:
            self._answer = self._answer or await end_shell(self._sandbox, self._mailbox, self._bash)
            if not await self._all_gone():
                await self._sandbox.destroy()
        if not self._sandbox.running:
            return SandboxDeath()
        assert self._answer is not None
        return await self._settle() if isinstance(self._answer, Report) else self._answer

    async def _settle(self) -> Answer:
        """A SIGINT may be under way still and would make the shell drop the next command; a report that was
        asked for now shows that none is."""
        for patience_seconds in _SETTLE_SECONDS:
            self._sandbox.request_report()
            answer = await self._mailbox.answer(self._loop.time() + patience_seconds)
            if answer is not None:
                return answer
        return await end_shell(self._sandbox, self._mailbox, self._bash)

    async def _rung(self, number: signal.Signals, until: float) -> bool:
        """Send the signal to each process of the command, also to those that turn up meanwhile. Returns
        whether the shell has answered and nothing is left of the command."""
        signalled: set[Identity] = set()
        if self._answer is None:
            self._interrupt()
        nudge_at = self._loop.time() + _NUDGE_SECONDS
        while self._loop.time() < until:
            if self._answer is None and self._loop.time() >= nudge_at:
                self._nudge()
                nudge_at = self._loop.time() + _NUDGE_SECONDS
            victims = await self._victims()
            if number == signal.SIGKILL:
                # Stopped first, so that none forks while the others are killed.
                processes.send_signals(victims, signal.SIGSTOP)
                victims = await self._victims()
            new = [process for process in victims if process.identity not in signalled]
            processes.send_signals(new, number)
            processes.send_signals(new, signal.SIGCONT)
            signalled.update(process.identity for process in new)
            look_until = min(until, self._loop.time() + _LOOK_SECONDS)
            if self._answer is None:
                self._answer = await self._mailbox.answer(look_until)
            elif victims:
                await asyncio.sleep(_LOOK_SECONDS)
            if self._answer is not None and await self._all_gone():
                return True
        return False

    def _interrupt(self) -> None:
        processes.send_signal(self._bash, signal.SIGCONT)
        processes.send_signal(self._bash, signal.SIGINT)
        processes.send_signal(self._bash, protocol.DROP_SIGNAL)

    def _nudge(self) -> None:
        """A SIGINT at the wrong moment takes a line of ours along. Who reads the next one is done."""
        if self._sandbox.all_read():
            self._sandbox.ask_again()
        else:
            self._interrupt()

    async def _all_gone(self) -> bool:
        """Whether nothing is left of the command. What forks and ends all the time slips through a look."""
        for _ in range(_LAST_LOOKS):
            if await self._victims():
                return False
            await asyncio.sleep(_LAST_LOOK_SECONDS)
        return True

    async def _victims(self) -> list[Process]:
        ancestors = {self._sandbox.root.pid, self._bash.pid}
        return processes.of_command(await self._sandbox.processes(), self._before, ancestors)


async def end_shell(sandbox: Sandbox, mailbox: Mailbox, bash: Process) -> Answer:
    """Kill the shell and, when that is not seen to work, the sandbox."""
    until = asyncio.get_running_loop().time() + _DEATH_SECONDS
    processes.send_signal(bash, signal.SIGKILL)
    while (answer := await mailbox.answer(until)) is not None:
        if isinstance(answer, ShellExit | SandboxDeath):
            return answer
    await sandbox.destroy()
    return SandboxDeath()
