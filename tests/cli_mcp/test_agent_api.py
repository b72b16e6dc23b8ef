"""Values between server and agent: failures are errors on either side, and paths name tools."""

import pytest

from cli_mcp.agent_api import Failure, FailureKind, tool_name, tool_path
from cli_mcp.execution import ExecutionError, SandboxUnavailable, SessionBusy, SessionEnded, ToolFailed


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (SessionBusy("x"), FailureKind.BUSY),
        (SessionEnded("x"), FailureKind.ENDED),
        (SandboxUnavailable("x"), FailureKind.UNAVAILABLE),
        (ToolFailed("x"), FailureKind.TOOL),
        (ExecutionError("x"), FailureKind.INVALID),
    ],
)
def test_an_error_becomes_a_failure_and_an_error_again(error: ExecutionError, kind: FailureKind) -> None:
    failure = Failure.of(error)
    assert failure == Failure(kind, "x")
    assert type(failure.exception()) is type(error)


def test_a_tool_has_a_path_and_other_paths_are_no_tools() -> None:
    assert tool_name(tool_path("read_file")) == "read_file"
    for path in ("/v1/tools/", "/v1/tools/../run", "/v1/tools/A", "/v1/tools/a/b", "/v1/run", "/v2/tools/a"):
        assert tool_name(path) is None
