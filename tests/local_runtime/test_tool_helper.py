import os
import subprocess
import sys
from pathlib import Path

from local_runtime.bubblewrap import SystemFiles
from local_runtime.tool_helper import ENDED_LINE, START_LINE, tool_program
from sandbox_agent.launch import HELPER_PATH
from sandbox_agent.tools.runner import READY

NO_SYSTEM = SystemFiles((), ("/usr",))
PYTHON = "/opt/cli-mcp/python"


def fake_python(prefix: Path) -> Path:
    """A prefix with what an interpreter has, and what of it nobody needs."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for name in ("bin/python3", f"lib/{version}/os.py", f"lib/{version}/test/x.py", "lib/libpython3.so.1"):
        (prefix / name).parent.mkdir(parents=True, exist_ok=True)
        (prefix / name).write_text("x")
    return prefix / "bin/python3"


def test_a_python_of_the_system_is_used_where_it_is(tmp_path: Path) -> None:
    program = tool_program(
        NO_SYSTEM, tmp_path, own_uids=True, interpreter=Path("/usr/bin/env"), prefix=Path("/usr")
    )
    assert program.read_only.keys() == {HELPER_PATH, "/opt/cli-mcp/tools.pyz"}
    assert "  /usr/bin/env -I -S /opt/cli-mcp/tools.pyz\n" in program.read_only[HELPER_PATH].read_text()


def test_another_python_is_shown_to_the_sandbox(tmp_path: Path) -> None:
    interpreter = fake_python(tmp_path / "prefix")
    program = tool_program(
        NO_SYSTEM, tmp_path, own_uids=False, interpreter=interpreter, prefix=tmp_path / "prefix"
    )
    assert program.read_only[PYTHON] == tmp_path / "prefix"
    assert f"{PYTHON}/bin/python3 -I -S" in program.read_only[HELPER_PATH].read_text()


def test_one_that_other_users_cannot_reach_is_copied_without_what_nobody_needs(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0o700)
    interpreter = fake_python(tmp_path / "closed/prefix")
    for _ in range(2):  # a start after another
        program = tool_program(
            NO_SYSTEM, tmp_path, own_uids=True, interpreter=interpreter, prefix=tmp_path / "closed/prefix"
        )
        copy = program.read_only[PYTHON]
        assert copy == tmp_path / "python"
        names = {path.name for path in copy.rglob("*") if path.is_file()}
        assert names == {"python3", "os.py", "libpython3.so.1"}


def test_the_helper_runs_the_program_at_each_start_and_says_when_it_ended(tmp_path: Path) -> None:
    """The real program with this interpreter, without a sandbox: paths are put in place of those inside."""
    program = tool_program(SystemFiles((), ("/",)), tmp_path, own_uids=False)
    script = program.read_only[HELPER_PATH].read_text()
    script = script.replace("/opt/cli-mcp/tools.pyz", str(program.read_only["/opt/cli-mcp/tools.pyz"]))
    helper = subprocess.Popen(
        ["bash", "-p", "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={"AGENTBOX_ROOT": str(tmp_path), "PATH": "/usr/bin:/bin"},
    )
    assert helper.stdin and helper.stdout
    for _ in range(2):
        helper.stdin.write(b"left of a request\n" + START_LINE)
        helper.stdin.flush()
        assert helper.stdout.readline() == READY
        subprocess.run(["pkill", "-9", "-P", str(helper.pid)], check=True)
        assert helper.stdout.readline() == ENDED_LINE
    helper.stdin.close()
    assert helper.wait(20) == 0
    helper.stdout.close()


def test_what_is_run_beside_it_does_not_hold_the_pipes(tmp_path: Path) -> None:
    program = tool_program(NO_SYSTEM, tmp_path, own_uids=False, interpreter=Path("/usr/bin/env"))
    fds = os.pipe()
    argv = program.beside(["bash", "-c", 'ls /proc/$$/fd; echo "$0" "$@"', "a b", "c"], *fds)
    listed = subprocess.run(argv, capture_output=True, text=True, pass_fds=fds, stdin=subprocess.DEVNULL)
    for fd in fds:
        os.close(fd)
    *open_in_it, words = listed.stdout.splitlines()
    assert words == "a b c"
    assert "0" in open_in_it and not {str(fd) for fd in fds} & set(open_in_it)
