"""What holds for every subcommand, whatever it prints."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cli_mcp import cli

ROOT = Path(__file__).parents[2]
SCRIPT = "import sys, cli_mcp.cli; sys.exit(cli_mcp.cli.main())"
SAMPLE = "config/samples/kubernetes.yaml"
PRINTING = [["--version"], ["--help"], ["validate", SAMPLE], ["render", SAMPLE], ["local", "--help"]]


def start(arguments: list[str], stdout: int) -> tuple[int, bytes]:
    """The exit status, and what is on stderr."""
    command = [sys.executable, "-c", SCRIPT, *arguments]
    ran = subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, cwd=ROOT, check=False)
    return ran.returncode, ran.stderr


@pytest.mark.parametrize("arguments", PRINTING)
def test_a_full_disk_is_one_line(arguments: list[str]) -> None:
    with open("/dev/full", "wb") as full:
        assert start(arguments, full.fileno()) == (
            125,
            b"cli-mcp: cannot write the output: No space left on device\n",
        )


@pytest.mark.parametrize("arguments", PRINTING)
def test_a_reader_that_has_gone_is_no_error_to_speak_of(arguments: list[str]) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    assert start(arguments, write_end) == (141, b"")
    os.close(write_end)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["https://mcp.example", "ls"], "cli-mcp call URL COMMAND"),
        (["lcoal"], "there is local, server, call"),
        (["validate"], "FILE. See cli-mcp validate --help"),
        (["local", "--listen", "0.0.0.0:1"], "SSH tunnel"),
        (["render", "--nonsense", "x"], "See cli-mcp render --help"),
    ],
)
def test_wrong_use_is_one_line_and_status_2(
    capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    assert cli._exit_status(arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert words in printed.err
    assert printed.err.count("\n") == 1


def test_the_help_has_all_subcommands_and_exit_statuses(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["--help"]) == 0
    printed = capsys.readouterr().out
    for word in (*cli.SUBCOMMANDS, "124, 125", "130, 141"):
        assert f"  {word} " in printed
