import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from cli_mcp.execution import ToolFailed
from sandbox_agent.tools import process_table
from sandbox_agent.tools.process_table import ProcessTable
from sandbox_agent.tools.root import Root

ENVIRONMENT = {"PATH": os.environ["PATH"]}


@pytest.fixture
async def table(root: Root) -> AsyncIterator[ProcessTable]:
    table = ProcessTable(root, ENVIRONMENT)
    yield table
    await table.close()


async def ended(table: ProcessTable, name: str) -> dict[str, Any]:
    async with asyncio.timeout(20):
        while True:
            entry: dict[str, Any] = next(one for one in table.list()["processes"] if one["name"] == name)
            if entry["state"] == "exited":
                return entry
            await asyncio.sleep(0.02)


async def whole_log(table: ProcessTable, name: str) -> str:
    """Read as a client does: piece by piece until the process has ended and there is no more."""
    text: str = ""
    offset = 0
    async with asyncio.timeout(30):
        while True:
            piece = await table.tail(name=name, offset=offset, follow=5)
            text, offset = text + piece["content"], piece["next_offset"]
            if piece["state"] == "exited" and not piece["content"]:
                return text


@pytest.mark.parametrize(
    ("command", "code"), [("exit 7", 7), ("true", 0), ("kill -TERM $$", 143), ("no-such-program", 127)]
)
async def test_the_exit_code_stays(table: ProcessTable, command: str, code: int) -> None:
    name = (await table.start(command=command))["name"]
    assert (await ended(table, name))["exit_code"] == code


async def test_it_starts_in_its_directory_with_its_environment_and_an_empty_stdin(
    table: ProcessTable, directory: Path
) -> None:
    await table.start(command="pwd -P; cat; echo $PATH; env | wc -l >&2", name="p", cwd="a/b")
    lines = (await whole_log(table, "p")).splitlines()
    assert lines[:2] == [str(directory / "a/b"), ENVIRONMENT["PATH"]]


@pytest.mark.parametrize("cwd", ["..", "/etc", "link", "a/b/file", "none"])
async def test_it_does_not_start_outside(table: ProcessTable, directory: Path, cwd: str) -> None:
    (directory / "link").symlink_to("../outside")
    with pytest.raises((ToolFailed, OSError)):
        await table.start(command="touch here", name="p", cwd=cwd)
    assert table.list()["processes"] == []
    assert not (directory / ".cli-mcp/processes/p.log").exists()


async def test_a_client_that_waits_gets_each_line_at_once_and_the_end(table: ProcessTable) -> None:
    await table.start(command="echo one; sleep 0.3; echo two; exit 3", name="p")
    first = await table.tail(name="p", offset=0, follow=20)
    assert first["content"] == "one\n" and first["state"] == "running"
    second = await table.tail(name="p", offset=first["next_offset"], follow=20)
    assert second["content"] == "two\n"
    last = await table.tail(name="p", offset=second["next_offset"], follow=20)
    assert (last["content"], last["exit_code"]) == ("", 3)


async def test_following_ends_after_its_time(table: ProcessTable) -> None:
    await table.start(command="sleep 60", name="p")
    piece = await table.tail(name="p", follow=0.2)
    assert (piece["content"], piece["state"]) == ("", "running")


async def test_a_flood_is_capped_on_the_disk_and_does_not_stop_the_loop(
    table: ProcessTable, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await table.start(command="yes 0123456789", name="flood")
    async with asyncio.timeout(60):
        while table.list()["processes"][0]["log_bytes"] < 20_000_000:
            await asyncio.sleep(0.05)
    logs = (directory / ".cli-mcp/processes").iterdir()
    assert sum(path.stat().st_size for path in logs) <= 2 * (4 << 20) + (1 << 16)
    piece = await table.tail(name="flood", offset=0)
    assert piece["gap"] == "rotated" and piece["lost_bytes"] > 0 and piece["content"]


async def test_killing_reaches_all_that_it_started(table: ProcessTable, directory: Path) -> None:
    command = "sleep 71.5 & setsid sleep 71.5 & echo $!; echo ready; wait"
    await table.start(command=command, name="p")
    text = (await table.tail(name="p", offset=0, follow=20))["content"]
    while "ready" not in text:
        text += (await table.tail(name="p", offset=len(text), follow=20))["content"]
    result = await table.kill(name="p")
    assert (result["state"], result["exit_code"], result["escalated"]) == ("exited", 143, False)
    async with asyncio.timeout(10):
        while Path(f"/proc/{text.split()[0]}/cmdline").exists():
            await asyncio.sleep(0.05)
    again = await table.kill(name="p")
    assert (again["signal"], again["exit_code"]) == (None, 143)


async def test_what_does_not_end_is_killed(table: ProcessTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_table, "_GRACE_SECONDS", 0.3)
    await table.start(command="trap '' TERM; echo ready; while :; do sleep 1; done", name="p")
    await table.tail(name="p", offset=0, follow=20)
    result = await table.kill(name="p")
    assert (result["exit_code"], result["escalated"]) == (137, True)


async def test_a_signal_that_does_not_end_is_only_sent(table: ProcessTable) -> None:
    await table.start(command="trap 'echo got it' USR1; echo ready; while :; do sleep 0.1; done", name="p")
    piece = await table.tail(name="p", offset=0, follow=20)
    result = await table.kill(name="p", signal="USR1")
    assert (result["state"], result["signal"]) == ("running", "USR1")
    assert (await table.tail(name="p", offset=piece["next_offset"], follow=20))["content"] == "got it\n"


async def test_a_name_is_one_process_and_free_again_when_that_has_ended(
    table: ProcessTable, directory: Path
) -> None:
    await table.start(command="echo old; sleep 60", name="p")
    with pytest.raises(ToolFailed, match="is running"):
        await table.start(command="true", name="p")
    await table.kill(name="p")
    await table.start(command="echo new", name="p")
    assert await whole_log(table, "p") == "new\n"
    for name in ("../x", "", "a/b", "-x", "x" * 65):
        if name:
            with pytest.raises(ToolFailed, match="no process name"):
                await table.start(command="true", name=name)
    with pytest.raises(ToolFailed, match="process_list"):
        await table.kill(name="other")


async def test_there_are_only_so_many(
    table: ProcessTable, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_table, "MAX_RUNNING", 2)
    monkeypatch.setattr(process_table, "MAX_KEPT", 3)
    for name in ("a", "b"):
        await table.start(command="sleep 60", name=name)
    with pytest.raises(ToolFailed, match="limit"):
        await table.start(command="true")
    await table.kill(name="a")
    for name in ("c", "d"):
        await table.start(command="true", name=name)
        await ended(table, name)
    assert [one["name"] for one in table.list()["processes"]] == ["b", "c", "d"]
    assert sorted(path.name for path in (directory / ".cli-mcp/processes").iterdir()) == [
        "b.log",
        "c.log",
        "d.log",
    ]


async def test_a_disk_that_takes_no_more_stops_the_log_and_not_the_process(
    table: ProcessTable, directory: Path
) -> None:
    await table.start(command="echo one; read -t 0.5 < <(sleep 9); seq 200000; exit 4", name="p")
    await table.tail(name="p", offset=0, follow=20)
    (directory / ".cli-mcp/processes/p.log.1").mkdir()  # in the way of the rotation; so is a full disk
    table._entries["p"].log._limit_bytes = 10
    entry = await ended(table, "p")
    assert entry["exit_code"] == 4 and "ends early" in entry["log_error"]


async def test_closing_ends_all(root: Root) -> None:
    table = ProcessTable(root, ENVIRONMENT)
    started = await table.start(command="sleep 60 & wait")
    await table.close()
    assert not Path(f"/proc/{started['pid']}/cmdline").exists()


async def test_tail_takes_one_source(table: ProcessTable) -> None:
    sources: list[dict[str, Any]] = [{}, {"name": "p", "path": "x"}]
    for arguments in sources:
        with pytest.raises(ToolFailed, match="either"):
            await table.tail(**arguments)
