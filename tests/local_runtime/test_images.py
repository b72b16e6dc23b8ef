"""File systems of workspaces, as root with loop devices; each test in a process with mounts of its own."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from local_runtime.images import image_bytes
from tests.local_runtime.users import REPOSITORY, passable_directory

MEBIBYTE = 1 << 20
LIMIT_BYTES = 64 * MEBIBYTE
_PROLOGUE = f"""
import errno, os, subprocess, sys, time
from pathlib import Path
from local_runtime import loop_devices
from local_runtime.images import Images, MountedImage, NoImages
from local_runtime.state import StateDirectory
LIMIT = {LIMIT_BYTES}
directory = Path(sys.argv[1])
try:
    loop_devices.use_own_mount_namespace()
    state = StateDirectory.open(directory / "state").with_file_systems(LIMIT)
except (OSError, NoImages) as error:
    print(error)
    sys.exit(77)

def fill(path, size=1 << 62):
    written = 0
    try:
        with open(path, "wb", buffering=0) as file:
            while written < size:
                written += file.write(bytes(min(1 << 20, size - written)))
    except OSError as error:
        assert error.errno == errno.ENOSPC, error
    return written

def image_in_use(image):
    with image.open("rb") as file:
        return loop_devices.is_attached(file.fileno())
"""


def run(directory: Path, script: str) -> None:
    if os.geteuid() != 0:
        pytest.skip("takes root")
    done = subprocess.run(
        [sys.executable, "-c", _PROLOGUE + textwrap.dedent(script), str(directory)],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    if done.returncode == 77:
        pytest.skip(f"no loop devices here: {done.stdout}")
    assert done.returncode == 0, done.stderr


def test_nothing_goes_beyond_the_limit_and_root_gets_no_more(tmp_path: Path) -> None:
    run(
        tmp_path,
        """
        workspace = state.new_workspace()
        written = fill(workspace / "a") + fill(workspace / "b")
        assert LIMIT <= written <= LIMIT * 1.15, written
        image = state.image_of(workspace)
        os.sync()
        assert image.stat().st_blocks * 512 <= LIMIT * 1.3
        made = 0
        try:
            while True:
                os.symlink("x", workspace / str(made))
                made += 1
        except OSError as error:
            assert error.errno == errno.ENOSPC
        assert made < LIMIT / 1024, made
        """,
    )


def test_files_without_a_name_count(tmp_path: Path) -> None:
    run(
        tmp_path,
        """
        workspace = state.new_workspace()
        descriptor = os.open(workspace, os.O_TMPFILE | os.O_RDWR, 0o600)
        fill(f"/proc/self/fd/{descriptor}", LIMIT // 2)
        assert fill(workspace / "a") < LIMIT * 0.65
        """,
    )


def test_a_claimed_workspace_moves_under_who_uses_it_and_is_found_again(tmp_path: Path) -> None:
    run(
        tmp_path,
        """
        workspace = state.new_workspace()
        os.chown(workspace, 1_900_000_001, 1_900_000_001)
        used = os.open(workspace, os.O_RDONLY)
        session = state.claim_workspace(workspace, "a")
        os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=used))
        os.close(used)
        assert (session / "file").exists() and not workspace.exists()
        assert state.workspace_uids() == {1_900_000_001}
        state.close_workspace(session)
        assert list(session.iterdir()) == [] and session.lstat().st_uid == 1_900_000_001
        state.open_workspace(session)
        assert (session / "file").exists()
        state.discard(session)
        state.empty_trash()
        assert not session.exists() and state.image_of(session) is None
        assert {path.name for path in state.images.iterdir()} <= {".template"}
        """,
    )


@pytest.mark.parametrize("factor", [2, 0.5])
def test_a_kept_workspace_gets_the_limit_of_now(tmp_path: Path, factor: float) -> None:
    run(
        tmp_path,
        f"""
        session = state.claim_workspace(state.new_workspace(), "a")
        (session / "file").write_text("kept")
        state.close_workspace(session)
        state = state.with_file_systems(int(LIMIT * {factor}))
        state.open_workspace(session)
        assert (session / "file").read_text() == "kept"
        assert LIMIT * {factor} <= fill(session / "a") <= LIMIT * {factor} * 1.25
        """,
    )


def test_one_that_is_fuller_than_the_limit_of_now_keeps_its_files(tmp_path: Path) -> None:
    run(
        tmp_path,
        """
        session = state.claim_workspace(state.new_workspace(), "a")
        fill(session / "file", LIMIT // 2)
        state.close_workspace(session)
        state = state.with_file_systems(LIMIT // 4)
        state.open_workspace(session)
        assert (session / "file").stat().st_size == LIMIT // 2
        assert fill(session / "a") < LIMIT // 4
        """,
    )


def test_nobody_gets_more_than_is_allowed_while_the_disk_is_scarce(tmp_path: Path) -> None:
    run(
        tmp_path,
        """
        workspace = state.new_workspace()
        descriptor = os.open(workspace, os.O_RDONLY)
        mounted = MountedImage(descriptor, state.image_of(workspace))
        room = mounted.usage().room_bytes
        if room is None:
            print("/sys cannot be written")
            sys.exit(77)
        mounted.allow(8 << 20)
        assert 4 << 20 <= fill(workspace / "a") <= 8 << 20
        mounted.allow(0)
        os.unlink(workspace / "a")
        assert fill(workspace / "b") == 0
        assert mounted.room().bytes == 0
        mounted.allow(None)
        assert fill(workspace / "c") >= LIMIT
        usage = mounted.usage()
        assert usage.written_bytes >= LIMIT
        assert usage.unwritten_bytes <= usage.written_bytes
        """,
    )


def test_what_was_deleted_the_disk_gets_back(tmp_path: Path) -> None:
    run(
        tmp_path,
        """
        workspace = state.new_workspace()
        fill(workspace / "a", LIMIT // 2)
        image = state.image_of(workspace)
        os.sync()
        assert image.stat().st_blocks * 512 >= LIMIT // 2
        (workspace / "a").unlink()
        deadline = time.monotonic() + 20
        while image.stat().st_blocks * 512 >= LIMIT // 4:
            assert time.monotonic() < deadline
            os.sync()
            time.sleep(0.2)
        """,
    )


def test_a_file_system_with_errors_is_repaired(tmp_path: Path) -> None:
    run(
        tmp_path,
        """
        session = state.claim_workspace(state.new_workspace(), "a")
        (session / "file").write_text("kept")
        state.close_workspace(session)
        image = state.image_of(session)
        deadline = time.monotonic() + 10
        while image_in_use(image) and time.monotonic() < deadline:
            time.sleep(0.05)
        subprocess.run(["debugfs", "-w", "-R", "set_super_value state 2", image], check=True)
        state.open_workspace(session)
        assert (session / "file").read_text() == "kept"
        """,
    )


def test_nothing_is_left_of_a_process_that_is_killed(tmp_path: Path) -> None:
    run(
        tmp_path,
        """
        child = os.fork()
        if not child:
            loop_devices.use_own_mount_namespace()
            state.new_workspace()
            os.kill(os.getpid(), 9)
        os.waitpid(child, 0)
        deadline = time.monotonic() + 10
        def attached():
            names = Path("/sys/block").glob("loop*/loop/backing_file")
            return [name for name in names if str(directory) in name.read_text()]
        while attached():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        """,
    )


@pytest.mark.parametrize("kind", ["tmpfs", "overlay"])
def test_state_directories_on_other_file_systems(tmp_path: Path, kind: str) -> None:
    if os.geteuid() != 0:
        pytest.skip("takes root")
    with passable_directory() as directory:
        place = directory / "place"
        for name in ("place", "lower"):
            (directory / name).mkdir()
        mounts = ["mount", "-t", "tmpfs", "none", str(place)]
        if kind == "overlay":
            script = (
                f"mount -t tmpfs none {directory}/lower && mkdir {directory}/lower/u {directory}/lower/w"
                f" && mount -t overlay -o lowerdir=/usr/lib,upperdir={directory}/lower/u,"
                f"workdir={directory}/lower/w none {place}"
            )
        else:
            script = " ".join(mounts)
        body = textwrap.dedent(
            """
            workspace = state.new_workspace()
            assert LIMIT <= fill(workspace / "a") <= LIMIT * 1.15
            """
        )
        done = subprocess.run(
            [
                *("unshare", "--mount", "bash", "-ec", f'{script} || exit 77; exec "$@"', "bash"),
                *(sys.executable, "-c", _PROLOGUE + body, str(place)),
            ],
            env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
            capture_output=True,
            text=True,
        )
        if done.returncode == 77:
            pytest.skip(f"no {kind} here: {done.stdout}{done.stderr}")
        assert done.returncode == 0, done.stderr


def test_an_image_is_little_larger_than_its_limit() -> None:
    for limit in (1, LIMIT_BYTES, 10 << 30):
        assert limit < image_bytes(limit) < limit * 1.1 + 20 * MEBIBYTE
