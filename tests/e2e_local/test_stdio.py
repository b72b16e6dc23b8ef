"""`cli-mcp local --stdio` as a client starts it: a sandbox of its own, from the first line to the last."""

import os
import shutil
import subprocess
import sys
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from mcp import Client
from mcp.client.stdio import StdioServerParameters, stdio_client

from tests.e2e_local.harness import _RUN
from tests.local_runtime.users import UNPRIVILEGED_UID, as_unprivileged_user, passable_directory

CALL = (
    b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"bash","arguments":{"command":"%s"}}}\n'
)
HELLO = (
    b'{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-06-18",'
    b'"capabilities":{},"clientInfo":{"name":"t","version":"1"}}}\n'
    b'{"jsonrpc":"2.0","method":"notifications/initialized"}\n'
)


def parameters(state: Path, *, unprivileged: bool = False) -> StdioServerParameters:
    prefix = as_unprivileged_user() if unprivileged else ()
    command, *arguments = (*prefix, sys.executable, "-c", _RUN, "local", "--stdio", "--state-dir", str(state))
    return StdioServerParameters(command=command, args=arguments, env=dict(os.environ))


async def stdout(client: Client, command: str) -> str:
    result = await client.call_tool("bash", {"command": command})
    assert result.structured_content is not None
    return str(result.structured_content["stdout"])


async def test_each_window_has_a_session_of_its_own_that_ends_with_it(unprivileged: bool) -> None:
    owner = UNPRIVILEGED_UID if unprivileged and os.geteuid() == 0 else None
    with passable_directory(owner) as root:
        state = root / "state"
        async with AsyncExitStack() as stack:
            one, other = [
                await stack.enter_async_context(
                    Client(stdio_client(parameters(state, unprivileged=unprivileged)))
                )
                for _ in range(2)
            ]
            assert await stdout(one, "WHO=one; echo secret > file; echo $WHO") == "one\n"
            assert await stdout(other, "echo [$WHO]; ls -A") == "[]\n"
            assert await stdout(one, "echo $WHO; cat file") == "one\nsecret\n"
            assert len(list(state.iterdir())) == 2
            assert not list(state.glob("*/token"))
        assert list(state.iterdir()) == []


def start(state: Path) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-c", _RUN, "local", "--stdio", "--state-dir", str(state)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


@pytest.mark.parametrize("how", ["hangs up", "SIGTERM"])
def test_a_client_that_is_gone_ends_a_running_command_and_leaves_nothing(how: str) -> None:
    with passable_directory(None) as root:
        process = start(root / "state")
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        process.stdin.write(HELLO + CALL % b"sleep 250")
        process.stdin.flush()
        assert b'"id":0' in process.stdout.readline()
        if how == "hangs up":
            process.stdin.close()
            process.stdout.close()
        else:
            process.terminate()
        assert process.wait(timeout=30) == 0
        assert b"Traceback" not in process.stderr.read()
        assert list((root / "state").iterdir()) == []


def test_a_line_that_is_no_message_is_answered_and_one_without_end_is_refused() -> None:
    with passable_directory(None) as root:
        process = start(root / "state")
        answer, log = process.communicate(b"hello\n" + b"x" * (5 << 20), timeout=60)
        assert b"one JSON-RPC message a line" in answer
        assert b"at most 4 MiB" in log
        assert b"Traceback" not in log
        assert process.returncode == 1


def test_a_wheel_alone_has_all_that_it_takes(tmp_path: Path) -> None:
    """What `pipx run --spec . cli-mcp local --stdio` does, with the libraries that are here."""
    source = tmp_path / "source"  # not where it lies: a build leaves its files behind
    unused = shutil.ignore_patterns(".*", "build", "dist", "tests", "*.egg-info")
    shutil.copytree(Path(__file__).parents[2], source, ignore=unused)
    build = ["-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", "."]
    subprocess.run([sys.executable, *build, str(source)], cwd=tmp_path, check=True)
    (wheel,) = tmp_path.glob("*.whl")
    unpack = [sys.executable, "-m", "zipfile", "-e", str(wheel), "site"]
    subprocess.run(unpack, cwd=tmp_path, check=True)
    with passable_directory(None) as root:
        script = f"import cli_mcp; assert cli_mcp.__file__.startswith({str(tmp_path)!r}); {_RUN}"
        ran = subprocess.run(
            [sys.executable, "-c", script, "local", "--stdio", "--state-dir", str(root / "state")],
            cwd=tmp_path / "site",
            env=os.environ | {"PYTHONPATH": str(tmp_path / "site")},
            input=HELLO + CALL % b"echo $((6*7))",
            capture_output=True,
            timeout=60,
            check=False,
        )
    assert b'"stdout":"42\\n"' in ran.stdout, ran.stderr
    assert ran.returncode == 0
