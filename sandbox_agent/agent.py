"""One sandbox's agent: the parts and how they are put together, from the start to the end."""

import asyncio
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from cli_mcp.agent_api import AgentIdentity
from cli_mcp.execution import ROOT_VARIABLE, Outcome, ProgressCallback
from sandbox_agent import isolation_test
from sandbox_agent.api import AgentApi
from sandbox_agent.authentication import Authenticator
from sandbox_agent.calls import CallTable
from sandbox_agent.confined import ConfinedDirectory
from sandbox_agent.ed25519 import Ed25519
from sandbox_agent.pod_launcher import PodLauncher, shell_environment
from sandbox_agent.public_keys import PublicKeys
from sandbox_agent.refused_requests import RefusedRequests
from sandbox_agent.session import ShellSession
from sandbox_agent.state_file import StateFile
from sandbox_agent.tools.toolbox import Toolbox

POD_UID_VARIABLE = "CLI_MCP_POD_UID"
_CLOSE_SECONDS = 3.0
_LEAVE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_LOST = (
    "The sandbox's container was started again since the last result. Background processes are gone, and so "
    "is what a command that was cut off had changed in the shell. Files and the state before it are there."
)


@dataclass(frozen=True, slots=True)
class AgentOptions:
    """`state_dir` outlives this process and not the pod. Without a `proxy_host` isolation is not tested."""

    public_keys: Path
    state_dir: Path
    workspace: Path
    proxy_host: str | None = None


class NotIsolated(Exception):
    """The pod reaches what a sandbox must not reach, so no command may run in it."""


class Agent:
    """`api` can be served at once; it takes calls when `make_ready` is done. `close` must follow.

    Raises OSError and Ed25519Unavailable.
    """

    def __init__(self, options: AgentOptions, environment: Mapping[str, str]) -> None:
        self._options = options
        self._environment = environment
        exchange = options.state_dir / "exchange"
        try:
            exchange.mkdir(mode=0o700, parents=True, exist_ok=True)
        except FileExistsError:
            pass  # left there by an earlier shell, and replaced before the next command
        self._used = options.state_dir / "used"
        self._answered_before = options.state_dir / "answered"
        self._answered = self._answered_before.exists()
        self._workspace = ConfinedDirectory(options.workspace)
        self._session = ShellSession(
            PodLauncher(exchange, options.workspace, environment),
            self._workspace,
            state_file=StateFile(options.state_dir / "shell.state"),
        )
        self._refused = RefusedRequests(environment.get("HTTPS_PROXY", ""))
        root = Path(environment.get(ROOT_VARIABLE) or options.workspace)
        self._toolbox = Toolbox(root, shell_environment(environment))
        identity = AgentIdentity(environment[POD_UID_VARIABLE], boot=os.urandom(16).hex())
        self.api = AgentApi(
            identity,
            Authenticator(identity, PublicKeys(options.public_keys), Ed25519().verify, time.time),
            CallTable(),
            run=self._run,
            call_tool=self._toolbox.call,
            on_bound=self._note_use,
            on_answered=self._note_answer,
            answered=lambda: self._answered,
        )

    async def make_ready(self) -> None:
        """Test the isolation, then start the shell. Raises NotIsolated and SandboxUnavailable."""
        if self._options.proxy_host is not None:
            await self._test_isolation(self._options.proxy_host)
        await self._session.start(_LOST if self._used.exists() else None)
        self._refused.start()
        self.api.not_ready = ""

    async def close(self) -> None:
        """End all calls and everything that runs in the sandbox."""
        try:
            async with asyncio.timeout(_CLOSE_SECONDS):
                await self._session.close("The sandbox is being shut down.")
                await self._toolbox.close()
                await self._refused.stop()
        except TimeoutError:
            pass  # what is left ends with the pid namespace
        self._workspace.close()

    async def _run(
        self, command: str, timeout_seconds: float, on_progress: ProgressCallback, output_bytes: int
    ) -> Outcome:
        outcome = await self._session.run(command, timeout_seconds, on_progress, output_bytes)
        refused = self._refused.take()
        return replace(outcome, notes=(*outcome.notes, *refused)) if refused else outcome

    async def _test_isolation(self, proxy_host: str) -> None:
        self._report("the network is being tested")
        probes = isolation_test.probes(proxy_host, self._environment)
        if not await isolation_test.wait_for_isolation(probes, self._report):
            raise NotIsolated(self.api.not_ready)

    def _report(self, detail: str) -> None:
        self.api.not_ready = detail

    def _note_use(self) -> None:
        _leave_word(self._used)

    def _note_answer(self) -> None:
        if not self._answered:
            self._answered = True
            _leave_word(self._answered_before)


def _leave_word(path: Path) -> None:
    """For the agent after a restart of the container. The sandbox can put anything in the way: no link is
    followed, and no FIFO waited for."""
    try:
        os.close(os.open(path, _LEAVE_FLAGS, 0o600))
    except OSError:
        pass  # that, or the disk is full: the next agent will not know what this one did
