"""Every case of tests/data/shell.yaml over MCP against local mode, in both protocol eras."""

import pytest

from tests.e2e_local.harness import Server
from tests.mcp_shell_cases import Mode, run_case
from tests.shell_cases import Case, load_cases

CASES = load_cases()


@pytest.mark.parametrize("mode", ["auto", "legacy"])
@pytest.mark.parametrize("case", CASES, ids=[case.id for case in CASES])
async def test_a_shell_behaves_as_written_down(server: Server, case: Case, mode: Mode) -> None:
    wrong = await run_case(server.url, server.token, mode, case)
    assert not wrong, "\n".join(wrong)
