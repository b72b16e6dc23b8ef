"""The tool `bash`: what its calls do."""

from collections.abc import Mapping
from dataclasses import dataclass

from cli_mcp.execution import ProgressCallback
from cli_mcp.sandbox_config import CommandLimits
from mcp_server.backend import SandboxBackend, SessionKey, SessionOutcome
from mcp_server.results import tool_result
from mcp_server.tool import BashCall, bash_tool, parse_arguments
from mcp_server.tool_calls import Finished


class Bash:
    """See mcp_server.tool_calls.Tool."""

    def __init__(self, network_hint: str, session_hint: str, limits: CommandLimits) -> None:
        self._limits = limits
        self.definition = bash_tool(network_hint, session_hint, limits)

    def prepare(self, arguments: Mapping[str, object]) -> "PreparedCommand":
        return PreparedCommand(parse_arguments(arguments, self._limits))


@dataclass(frozen=True, slots=True)
class PreparedCommand:
    """A command for the session's shell."""

    call: BashCall

    @property
    def timeout_seconds(self) -> float:
        return self.call.timeout_seconds

    async def run(
        self, backend: SandboxBackend, session: SessionKey, on_progress: ProgressCallback
    ) -> Finished:
        ran = await backend.run(session, self.call.command, self.call.timeout_seconds, on_progress)
        return Finished(tool_result(ran, self.call), _outcome(ran))


def _outcome(ran: SessionOutcome) -> str:
    if ran.outcome.timed_out:
        return "timed_out"
    return "ok" if ran.outcome.exit_code == 0 else "failed"
