import subprocess
import sys
from pathlib import Path

import pytest

from tests.sandbox_agent.conftest import TestSession, alive, wait_until

HEAVY = (
    "aiohttp",
    "cryptography",
    "mcp",
    "pydantic",
    "requests",
    "starlette",
    "uvicorn",
    "yaml",
    "ssl",
    "http",
)


def test_importing_the_session_loads_nothing_heavy() -> None:
    program = (
        "import sys; old = set(sys.modules); import sandbox_agent.session; print(*set(sys.modules) - old)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, text=True)
    assert not {name.partition(".")[0] for name in done.stdout.split()} & set(HEAVY)


async def test_a_child_of_a_child_that_was_orphaned_stays_below_the_first_process(
    session: TestSession,
) -> None:
    pid = int(await session.out("(setsid sleep 60 & echo $!)"))
    supervisor = int(await session.out("echo $PPID"))
    parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    assert parent == supervisor


@pytest.mark.parametrize(
    "command", ["kill -9 $PPID", "setsid sleep 66 & kill -9 $PPID", "sleep 66 & kill -9 $PPID"]
)
async def test_nothing_outlives_a_first_process_that_was_killed(session: TestSession, command: str) -> None:
    pid = int(await session.out("sleep 66 & echo $!"))
    orphan = int(await session.out("(setsid sleep 66 & echo $!)"))
    await session.sh(command)
    await session.sh("true")
    assert wait_until(lambda: not alive(pid) and not alive(orphan))


async def test_the_shell_reads_no_startup_file(session: TestSession) -> None:
    assert await session.out("declare -F | grep -v __cli_mcp; alias") == ""
