"""What an init container copies is whole, readable for everybody, and can be copied again."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sandbox_agent.install import install


@pytest.fixture
def source(tmp_path: Path) -> Path:
    source = tmp_path / "source"
    (source / "bin").mkdir(parents=True)
    (source / "lib/deep").mkdir(parents=True)
    (source / "bin/sandbox-agent").write_text("#!/bin/sh\necho started\n")
    (source / "bin/sandbox-agent").chmod(0o755)
    (source / "lib/deep/module").write_text("content")
    (source / "lib/link").symlink_to("deep/module")
    return source


def test_the_tree_is_copied_with_modes_for_everybody(source: Path, tmp_path: Path) -> None:
    destination = tmp_path / "destination"
    destination.mkdir()
    umask = os.umask(0o077)
    try:
        install(source, destination)
    finally:
        os.umask(umask)
    assert subprocess.check_output([destination / "bin/sandbox-agent"]) == b"started\n"
    assert (destination / "lib/link").readlink() == Path("deep/module")
    assert sorted(path.name for path in destination.iterdir()) == ["bin", "lib"]
    for path, mode in {
        "bin": 0o755,
        "lib/deep": 0o755,
        "bin/sandbox-agent": 0o755,
        "lib/deep/module": 0o644,
    }.items():
        assert (destination / path).stat().st_mode & 0o777 == mode, path


def test_a_second_time_replaces_what_is_there(source: Path, tmp_path: Path) -> None:
    destination = tmp_path / "destination"
    (destination / ".partial/lib").mkdir(parents=True)
    (destination / ".partial/lib/half").write_text("ha")
    (destination / "lib").mkdir()
    (destination / "lib/old").write_text("old")
    (destination / "bin").symlink_to("/nowhere")
    install(source, destination)
    install(source, destination)
    assert sorted(str(path.relative_to(destination)) for path in destination.rglob("*")) == [
        "bin",
        "bin/sandbox-agent",
        "lib",
        "lib/deep",
        "lib/deep/module",
        "lib/link",
    ]


def test_the_command_says_why_it_cannot_copy(tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-I", "-m", "sandbox_agent.main", "--install", tmp_path / "missing"],
        capture_output=True,
        text=True,
    )
    assert run.returncode == 1
    assert "cannot be copied" in run.stderr and "Traceback" not in run.stderr
