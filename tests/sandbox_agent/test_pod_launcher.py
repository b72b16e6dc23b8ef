"""How the shell's processes are started in a pod."""

import asyncio
import os
from pathlib import Path

import pytest

from cli_mcp.execution import SandboxUnavailable
from cli_mcp.names import WORKSPACE_PATH
from cli_mcp.sandbox_environment import DEFAULT_ENVIRONMENT
from sandbox_agent import pid_one
from sandbox_agent.launch import DirectLauncher, Launched
from sandbox_agent.memory import MemoryFiles, MemoryKills
from sandbox_agent.pod_launcher import PodLauncher, shell_environment
from tests.sandbox_agent.conftest import wait_until


def launcher(tmp_path: Path) -> PodLauncher:
    return PodLauncher(tmp_path, tmp_path, {"PATH": os.environ["PATH"]})


async def launch(made: PodLauncher, *argv: str) -> Launched:
    return await made.launch(argv, stdin=0, output=1, pass_fds=())


def test_the_shell_gets_the_environment_without_what_is_the_agents() -> None:
    given = {"PATH": "/bin", "CLI_MCP_POD_UID": "x", "CLI_MCP": "kept", "HTTPS_PROXY": "http://proxy:8080"}
    kept = {"CLI_MCP": "kept", "HTTPS_PROXY": "http://proxy:8080"}
    programs = {"PATH": f"{WORKSPACE_PATH}/.local/bin:/bin"}
    assert shell_environment(given) == {**DEFAULT_ENVIRONMENT, **kept, **programs}


async def test_they_come_after_the_agent_when_time_and_memory_are_short(tmp_path: Path) -> None:
    launched = await launch(launcher(tmp_path), "sleep", "60")
    try:
        assert os.getpriority(os.PRIO_PROCESS, launched.root_pid) == os.nice(0) + 5
        score = Path(f"/proc/{launched.root_pid}/oom_score_adj")
        assert await asyncio.to_thread(wait_until, lambda: score.read_text() == "1000\n")
    finally:
        launched.process.kill()
        await launched.process.wait()


async def test_a_process_that_ends_at_once_is_no_error(tmp_path: Path) -> None:
    launched = await launch(launcher(tmp_path), "true")
    assert await launched.process.wait() == 0


async def test_when_nothing_can_be_started_the_rest_is_ended_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    happened: list[str] = []
    start = DirectLauncher.launch

    async def fail_once(self: DirectLauncher, *args: object, **options: object) -> Launched:
        happened.append("start")
        if len(happened) == 1:
            raise SandboxUnavailable("no processes left")
        return await start(self, *args, **options)  # type: ignore[arg-type]

    def kill() -> bool:
        happened.append("kill")
        return True

    monkeypatch.setattr(DirectLauncher, "launch", fail_once)
    monkeypatch.setattr(pid_one, "kill_all_others", kill)
    launched = await launch(launcher(tmp_path), "true")
    await launched.process.wait()
    assert happened == ["start", "kill", "start"]


async def test_outside_of_a_container_nothing_else_is_ended(tmp_path: Path) -> None:
    with pytest.raises(SandboxUnavailable, match="cannot be started"):
        await launch(launcher(tmp_path / "nowhere"), "true")


def test_a_death_for_want_of_memory_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counters, limit = tmp_path / "counters", tmp_path / "limit"
    counters.write_text("oom_kill 0\n")
    limit.write_text("536870912\n")
    made = launcher(tmp_path)
    monkeypatch.setattr(made, "_memory_kills", MemoryKills([MemoryFiles(counters, limit)]))
    assert made.cause_of_death() is None
    counters.write_text("oom_kill 1\n")
    assert made.cause_of_death() == "The sandbox ran out of memory: its limit is 512 MiB, /dev/shm included."
    assert made.cause_of_death() is None
