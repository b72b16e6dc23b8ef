import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from sandbox_agent.confined import ConfinedDirectory
from sandbox_agent.launch import DirectLauncher, Launched
from tests.sandbox_agent.conftest import ENVIRONMENT, TestSession, alive, wait_until

HEAVY = {"aiohttp", "cryptography", "mcp", "pydantic", "requests", "starlette", "uvicorn", "yaml"}


def test_importing_the_session_loads_nothing_heavy() -> None:
    program = "import sys, sandbox_agent.session; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, text=True)
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert "asyncio" in loaded
    assert not loaded & HEAVY


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
    supervisor = int(await session.out("echo $PPID"))
    await session.sh(command)
    assert wait_until(lambda: not alive(supervisor))
    assert (await session.sh("true")).shell_restarted
    assert wait_until(lambda: not alive(pid) and not alive(orphan))


async def test_the_shell_reads_no_startup_file(session: TestSession) -> None:
    assert await session.out("declare -F | grep -v __cli_mcp; alias") == ""


class OtherUserLauncher(DirectLauncher):
    """Runs the sandbox under another uid, as local mode does; nothing of this process's is in its reach."""

    UID = 54_321

    def __init__(self, exchange: Path, workspace: Path) -> None:
        super().__init__(exchange, workspace, ENVIRONMENT)
        self.fifo_owner = (self.UID, self.UID)

    async def launch(
        self, argv: Sequence[str], *, stdin: int, output: int, pass_fds: Sequence[int]
    ) -> Launched:
        drop = ("setpriv", f"--reuid={self.UID}", f"--regid={self.UID}", "--clear-groups", "--")
        return await super().launch((*drop, *argv), stdin=stdin, output=output, pass_fds=pass_fds)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start processes of another user")
async def test_a_sandbox_of_another_user_gets_output_and_files_but_no_write_access() -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        base = Path(name)
        base.chmod(0o755)
        (base / "exchange").mkdir(mode=0o755)
        (base / "workspace").mkdir()
        os.chown(base / "workspace", OtherUserLauncher.UID, OtherUserLauncher.UID)
        with ConfinedDirectory(base / "workspace") as workspace:
            session = TestSession(OtherUserLauncher(base / "exchange", base / "workspace"), workspace)
            await session.start()
            try:
                assert await session.out("id -u; echo x >&2") == f"{OtherUserLauncher.UID}\n"
                outcome = await session.sh("seq 1 30000")
                assert outcome.stdout.file is not None
                assert os.stat(outcome.stdout.file).st_uid == OtherUserLauncher.UID
                assert await session.out("rm -r .cli-mcp && echo removed") == "removed\n"
                assert (await session.sh("touch ../exchange/x")).exit_code == 1
                assert (await session.sh(f"kill -0 {os.getpid()}")).exit_code == 1
                assert (await session.sh("sleep 60", timeout_seconds=0.2)).timed_out
                assert (await session.sh("exit 3")).exit_code == 3
            finally:
                await session.close("over")
