"""Limits as bash sets them."""

import resource
import subprocess

import pytest

from local_runtime import rlimits
from local_runtime.cgroups import Limits

LIMITS = Limits(memory_bytes=256 << 20, processes=100, cpu_shares=102)
NOTHING_HARD = dict.fromkeys(range(16), resource.RLIM_INFINITY)


@pytest.mark.parametrize(("grouped", "limited"), [(frozenset({"memory"}), False), (frozenset[str](), True)])
def test_memory_is_limited_per_process_only_without_a_group(grouped: frozenset[str], limited: bool) -> None:
    values = rlimits.session_rlimits(LIMITS, workspace_bytes=1 << 30, grouped=grouped)
    assert (resource.RLIMIT_DATA in values) is limited


def test_a_stricter_limit_of_the_host_stays() -> None:
    hard = {**NOTHING_HARD, resource.RLIMIT_NOFILE: 256}
    values = rlimits.session_rlimits(LIMITS, workspace_bytes=1 << 30, grouped=frozenset())
    assert "ulimit -n 256" in rlimits.ulimit_commands(values, hard)


def test_bash_understands_every_command_and_children_inherit_the_limits() -> None:
    values = rlimits.session_rlimits(LIMITS, workspace_bytes=1 << 30, grouped=frozenset())
    commands = rlimits.ulimit_commands(values, rlimits.own_hard_limits())
    show = "bash -c 'ulimit -Hc; ulimit -Hf; ulimit -Hd; ulimit -Sf'"
    shown = subprocess.run(
        ["bash", "-c", f"{commands} && {show}"], capture_output=True, text=True, check=True
    ).stdout
    assert shown.split() == ["0", str((1 << 30) // 1024), str((256 << 20) // 1024), str((1 << 30) // 1024)]


def test_the_file_size_of_a_running_process_can_be_taken_away_and_given_back() -> None:
    process = subprocess.Popen(["sleep", "60"])
    try:
        before = resource.prlimit(process.pid, resource.RLIMIT_FSIZE)
        rlimits.limit_file_size(process.pid, 0)
        assert resource.prlimit(process.pid, resource.RLIMIT_FSIZE)[0] == 0
        rlimits.limit_file_size(process.pid, None)
        assert resource.prlimit(process.pid, resource.RLIMIT_FSIZE)[0] == before[1]
    finally:
        process.kill()
        process.wait()
    with pytest.raises(ProcessLookupError):
        rlimits.limit_file_size(process.pid, 0)
