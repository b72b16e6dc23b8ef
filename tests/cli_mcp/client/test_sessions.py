from pathlib import Path

import pytest

from mcp_server.backend import OpenSession
from tests.cli_mcp.client.processes import cli
from tests.mcp_server.fake_backend import running_server


async def test_ones_sessions_are_listed_and_those_of_others_are_not(tmp_path: Path) -> None:
    async with running_server() as server:
        server.backend.sessions = [
            ("local", OpenSession("zebra", 61.2)),
            ("another", OpenSession("hidden", 1.0)),
            ("local", OpenSession("s1", None)),
        ]
        status, stdout, stderr = await cli(tmp_path, "sessions", server.origin)
    assert (status, stderr) == (0, b"")
    assert stdout.decode().splitlines() == ["s1     running", "zebra  idle for 61 s"]


@pytest.mark.parametrize(("options", "workspace"), [([], False), (["--workspace"], True)])
async def test_one_is_ended(tmp_path: Path, options: list[str], workspace: bool) -> None:
    async with running_server() as server:
        result = await cli(tmp_path, "sessions", server.origin, "--end", "s1", *options)
        assert result == (0, b"", b"")
        assert [(key.id, deleted) for key, deleted in server.backend.ended] == [("s1", workspace)]


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["--end", "of-another"], 125, b"another caller"),
        (["--end", "Not Valid/.."], 125, b"lower-case"),
        (["--end", "\u00e9"], 125, b"lower-case"),
        (["--workspace"], 2, b"--end ID"),
        (["kill"], 2, b"no server's URL"),
        (["--ende", "s1"], 2, b"unknown option --ende"),
    ],
)
async def test_what_cannot_be_done_is_one_line(
    tmp_path: Path, arguments: list[str], status: int, words: bytes
) -> None:
    async with running_server() as server:
        result, stdout, stderr = await cli(tmp_path, "sessions", server.origin, *arguments)
        assert (result, stdout) == (status, b"")
        assert words in stderr
        assert stderr.count(b"\n") == 1
        assert server.backend.ended == []
