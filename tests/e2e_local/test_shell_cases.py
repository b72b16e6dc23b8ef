"""Every case of tests/data/shell.yaml over MCP against local mode, in both protocol eras."""

from collections.abc import Iterator

import pytest

from tests.e2e_local.conftest import USERS
from tests.e2e_local.harness import Server, running
from tests.mcp_shell_cases import Mode, run_case
from tests.shell_cases import Case, load_cases

CASES = load_cases()


@pytest.fixture(scope="module", params=USERS)
def roomy_server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """With room for the largest output of a case, all of which is kept in a file."""
    resources = {"limits": {"memory": "512Mi", "ephemeral-storage": "2Gi"}}
    with running(unprivileged=request.param == "user", warmPoolSize=1, resources=resources) as started:
        yield started


@pytest.mark.parametrize("mode", ["auto", "legacy"])
@pytest.mark.parametrize("case", CASES, ids=[case.id for case in CASES])
async def test_a_shell_behaves_as_written_down(roomy_server: Server, case: Case, mode: Mode) -> None:
    wrong = await run_case(roomy_server.url, roomy_server.token, mode, case)
    assert not wrong, "\n".join(wrong)
