"""Control groups: both versions as files in a directory, and the real ones where this user has them."""

import os
import subprocess
import time
from pathlib import Path, PurePosixPath

import pytest

from local_runtime import cgroups
from local_runtime.cgroups import Limits, Mount

CPU_LIMITS = [
    (1, 500, [("cpu.cfs_period_us", "100000"), ("cpu.cfs_quota_us", "50000")]),
    (1, 1, [("cpu.cfs_period_us", "100000"), ("cpu.cfs_quota_us", "1000")]),
    (2, 500, [("cpu.max", "50000 100000")]),
    (2, 2500, [("cpu.max", "250000 100000")]),
    (2, 1, [("cpu.max", "1000 100000")]),
    (2, None, []),
]


@pytest.mark.parametrize(("version", "millicores", "files"), CPU_LIMITS)
def test_a_cpu_limit_is_a_quota(version: int, millicores: int | None, files: list[tuple[str, str]]) -> None:
    limits = Limits(memory_bytes=1, processes=1, cpu_shares=102, cpu_millicores=millicores)
    assert cgroups.settings(limits, version=version)["cpu"][1:] == files


LIMITS = Limits(memory_bytes=64 << 20, processes=20, cpu_shares=102)

V1_MOUNTS = """\
30 25 0:27 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
31 25 0:28 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct
32 25 0:29 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,name=systemd
33 25 0:30 /docker/abc /sys/fs/cgroup/pids rw shared:9 - cgroup cgroup rw,pids
"""
V1_PLACES = "4:memory:/server\n3:cpu,cpuacct:/\n2:pids:/docker/abc/inner\n1:name=systemd:/\n0::/\n"


def test_version_1_hierarchies_are_found_with_the_place_of_this_process() -> None:
    assert cgroups.mounts(V1_MOUNTS, V1_PLACES) == [
        Mount(1, ("memory",), Path("/sys/fs/cgroup/memory"), PurePosixPath("server")),
        Mount(1, ("cpu",), Path("/sys/fs/cgroup/cpu,cpuacct"), PurePosixPath()),
        Mount(1, ("pids",), Path("/sys/fs/cgroup/pids"), PurePosixPath("inner")),
    ]


def test_the_version_2_hierarchy_is_found() -> None:
    mountinfo = "30 25 0:27 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
    found = cgroups.mounts(mountinfo, "0::/user.slice/user-1000.slice/app.scope\n")
    place = PurePosixPath("user.slice/user-1000.slice/app.scope")
    assert found == [Mount(2, (), Path("/sys/fs/cgroup"), place)]


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        (
            1,
            {
                "memory.limit_in_bytes": "67108864",
                "memory.memsw.limit_in_bytes": "67108864",
                "memory.kmem.tcp.limit_in_bytes": "8388608",
                "pids.max": "20",
                "cpu.shares": "102",
            },
        ),
        (2, {"memory.max": "67108864", "memory.swap.max": "0", "pids.max": "20", "cpu.weight": "4"}),
    ],
)
def test_limits_are_written_in_the_words_of_each_version(version: int, expected: dict[str, str]) -> None:
    written = cgroups.settings(LIMITS, version=version)
    assert {name: value for files in written.values() for name, value in files} == expected


@pytest.mark.parametrize(("millicores", "shares"), [(100, 102), (0, 2), (1000, 1024), (10**9, 262_144)])
def test_shares_follow_the_request(millicores: int, shares: int) -> None:
    assert cgroups.cpu_shares(millicores) == shares


@pytest.fixture
def hierarchy(tmp_path: Path) -> Path:
    """A directory that looks like a version 2 hierarchy whose `user` part is writable."""
    for directory in (tmp_path, tmp_path / "user", tmp_path / "user" / "session"):
        directory.mkdir(exist_ok=True)
        (directory / "cgroup.subtree_control").touch()
        (directory / "cgroup.controllers").write_text("cpu memory pids\n")
        (directory / "cgroup.procs").touch()
    return tmp_path


def test_without_controllers_there_is_no_parent(hierarchy: Path) -> None:
    """A plain directory does not get control files by being made, as a group would."""
    mount = Mount(2, (), hierarchy, PurePosixPath("user/session"))
    assert cgroups.prepare("cli-mcp-test", [mount]).controllers == frozenset()
    assert not list(hierarchy.rglob("cli-mcp-test"))


def own_groups() -> cgroups.Cgroups:
    found = cgroups.prepare(f"cli-mcp-test-{os.getpid()}", cgroups.own_mounts())
    if not {"memory", "pids"} <= found.controllers:
        found.remove()
        pytest.skip("this user can make no control groups for memory and processes here")
    return found


def in_group(groups: cgroups.SessionGroups, script: str) -> subprocess.Popen[str]:
    """bash that runs the script once it has been moved into the groups."""
    process = subprocess.Popen(
        ["bash", "-c", f"read -r; {script}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    groups.add(process.pid)
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()
    return process


def test_memory_and_processes_are_limited_and_a_kill_is_noticed_once() -> None:
    found = own_groups()
    try:
        groups = found.create("session", LIMITS)
        assert not groups.killed_for_memory()
        hog = in_group(groups, "head -c 300M /dev/zero | tail | wc -c; echo ${PIPESTATUS[1]}")
        assert "137" in hog.communicate(timeout=30)[0]
        assert groups.killed_for_memory()
        assert not groups.killed_for_memory()
        forks = in_group(groups, "for i in {1..40}; do sleep 60 & done 2>&1")
        deadline = time.monotonic() + 20
        while sum(len((path / "cgroup.procs").read_text().split()) for path in groups.directories) < 20:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        groups.remove()
        forks.wait(timeout=10)
        assert not any(path.exists() for path in groups.directories)
    finally:
        found.remove()


def test_what_a_killed_server_left_is_killed_and_removed_at_the_next_start() -> None:
    found = own_groups()
    left = in_group(found.create("left", LIMITS), "sleep 60")
    again = own_groups()
    try:
        assert left.wait(timeout=10) != 0
        assert not any((parent.directory / "left").exists() for parent in again.parents)
    finally:
        again.remove()
    assert not any(parent.directory.exists() for parent in again.parents)
