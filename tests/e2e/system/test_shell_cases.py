"""Every case of tests/data/shell.yaml over HTTPS against pods, in both protocol eras."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.e2e.operator import eventually
from tests.hooks.world import ALLOWLIST
from tests.mcp_shell_cases import Mode, new_session, run_case
from tests.shell_cases import Case, load_cases

if TYPE_CHECKING:
    from tests.e2e.instances import Instance
    from tests.e2e.mcp_client import McpClient

CASES = load_cases()
# What hangs takes a minute; whole clusters run beside these tests on two CPUs.
PATIENCE_SECONDS = 5
POOL = 3


@pytest.fixture(scope="module")
def client(instance: Instance) -> McpClient:
    instance.create({"sandbox": {"warmPoolSize": POOL}, "proxy": ALLOWLIST})
    instance.wait_for("Ready", 60)
    return instance.client()


@pytest.mark.parametrize("mode", ["auto", "legacy"])
@pytest.mark.parametrize("case", CASES, ids=[case.id for case in CASES])
async def test_a_shell_behaves_as_written_down(client: McpClient, case: Case, mode: Mode) -> None:
    session = new_session()
    # A case has limits for its calls, and its sandbox may have to be made first.
    begun = client.bash(session, ":")
    assert not begun.is_error, begun.text
    wrong = await run_case(
        f"{client.url}/mcp",
        client.token,
        mode,
        case,
        session=session,
        connect=client.http,
        patience_seconds=PATIENCE_SECONDS,
    )
    assert not wrong, "\n".join(wrong)


def test_ended_sessions_leave_nothing_but_the_pool(instance: Instance, client: McpClient) -> None:
    eventually(lambda: len(instance.pods()) == POOL, 60)
