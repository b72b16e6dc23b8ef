import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from cli_mcp.execution import ToolFailed
from sandbox_agent.tools.root import Root, shown


def content(root: Root, path: str) -> bytes:
    with root.regular_file(path, os.O_RDONLY) as fd:
        return os.read(fd, 100)


@pytest.mark.parametrize("path", ["a/b/file", "./a//b/./file", "a/../a/b/file", "a/b/../b/file"])
def test_a_path_that_stays_below_is_opened(root: Root, path: str) -> None:
    assert content(root, path) == b"content\n"
    assert content(root, f"{root.path}/{path}") == b"content\n"


@pytest.mark.parametrize(
    ("link", "target", "path"),
    [
        ("link", "a/b/file", "link"),
        ("link", "a/b", "link/file"),
        ("a/link", "../a/b", "a/link/file"),
        ("link", "a/../a/b/file", "link"),
    ],
)
def test_a_link_that_stays_below_is_followed(
    root: Root, directory: Path, link: str, target: str, path: str
) -> None:
    (directory / link).symlink_to(target)
    assert content(root, path) == b"content\n"


@pytest.mark.parametrize(
    ("link", "target", "path"),
    [
        ("link", "../secret", "link"),
        ("link", "..", "link/secret"),
        ("link", "a/../../secret", "link"),
        ("a/link", "../..", "a/link/secret"),
        ("link", "/etc", "link/passwd"),
        ("link", "/proc/self/root", "link/etc/passwd"),
        ("link", "/proc/self/fd/0", "link"),
        ("link", "link", "link"),
        (None, None, "../secret"),
        (None, None, "a/../../secret"),
        (None, None, "a/b/../../../secret"),
        (None, None, ".."),
    ],
)
def test_no_way_leads_out(
    root: Root, directory: Path, link: str | None, target: str | None, path: str
) -> None:
    if link is not None and target is not None:
        (directory / link).symlink_to(target)
    for flags in (os.O_PATH, os.O_RDONLY):
        with pytest.raises(OSError), root.opened(path, flags):
            pass


def test_a_link_with_an_absolute_target_is_refused_wherever_it_points(root: Root, directory: Path) -> None:
    (directory / "link").symlink_to(directory / "a/b/file")
    with pytest.raises(OSError):
        content(root, "link")


@pytest.mark.parametrize("path", ["", "a\0b", "/etc/passwd", "/", "\udcff\ud800", "x/" * 3000])
def test_a_path_that_cannot_be_meant_is_refused(root: Root, path: str) -> None:
    with pytest.raises(ToolFailed):
        content(root, path)


def test_a_directory_whose_name_only_begins_like_the_root_is_outside(root: Root, directory: Path) -> None:
    beside = directory.with_name("root-too")
    beside.mkdir()
    (beside / "file").write_text("x")
    with pytest.raises(ToolFailed, match="outside"):
        content(root, f"{beside}/file")


@pytest.mark.parametrize("name", ["", ".", "..", "a/..", "a/."])
def test_the_root_and_what_is_above_have_no_place(root: Root, name: str) -> None:
    with pytest.raises(ToolFailed), root.place(name):
        pass


def test_directories_on_the_way_are_made_only_when_asked_for(root: Root, directory: Path) -> None:
    with pytest.raises(FileNotFoundError), root.place("x/y/z"):
        pass
    with root.place("x/y/z", make_parents=True) as place:
        assert place.name == "z"
    assert (directory / "x/y").is_dir() and not (directory / "x/y/z").exists()


def test_no_directory_is_made_behind_a_link_that_leads_out(root: Root, directory: Path) -> None:
    (directory / "link").symlink_to("../outside")
    with pytest.raises(OSError), root.place("link/x/y", make_parents=True):
        pass
    with pytest.raises(OSError), root.place("a/../../outside/x/y", make_parents=True):
        pass
    assert [path.name for path in (directory.parent / "outside").iterdir()] == ["file"]


def test_the_place_behind_links_is_where_the_last_of_them_leads(root: Root, directory: Path) -> None:
    (directory / "first").symlink_to("a/second")
    (directory / "a/second").symlink_to("b/new")
    with root.place_behind_links("first") as place:
        assert place.name == "new"
        assert os.path.samefile(f"/proc/self/fd/{place.directory}", directory / "a/b")
    (directory / "loop").symlink_to("loop")
    (directory / "out").symlink_to("../secret")
    for path in ("loop", "out"):
        with pytest.raises(OSError), root.place_behind_links(path):
            pass


@pytest.mark.parametrize("kind", ["fifo", "socket", "directory"])
def test_nothing_but_a_regular_file_is_opened_as_one(root: Root, directory: Path, kind: str) -> None:
    path = directory / "special"
    listener = socket.socket(socket.AF_UNIX)
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    else:
        os.chdir(directory)
        listener.bind("special")
    with listener, pytest.raises(ToolFailed, match=f"is a {kind}"):
        content(root, "special")


def test_a_writer_that_waits_at_a_fifo_is_not_woken(root: Root, directory: Path) -> None:
    os.mkfifo(directory / "fifo")
    code = f"import os; os.open({str(directory / 'fifo')!r}, os.O_WRONLY)"
    writer = subprocess.Popen([sys.executable, "-c", code])
    try:
        with pytest.raises(ToolFailed):
            content(root, "fifo")
        with pytest.raises(subprocess.TimeoutExpired):
            writer.wait(1)
    finally:
        writer.kill()
        writer.wait()


@pytest.mark.skipif(os.geteuid() != 0, reason="devices are made by root")
def test_a_device_is_not_opened(root: Root, directory: Path) -> None:
    try:
        os.mknod(directory / "null", 0o20666, os.makedev(1, 3))
    except PermissionError:
        pytest.skip("no devices can be made here")
    with pytest.raises(ToolFailed, match="is a device"):
        content(root, "null")


def test_a_mount_is_not_entered(directory: Path) -> None:
    """`directory` for its two ways to open; /proc is mounted everywhere."""
    root = Root(Path("/"))
    try:
        with pytest.raises(OSError):
            content(root, "proc/self/status")
    finally:
        root.close()


def test_no_descriptor_is_left_open(root: Root, directory: Path) -> None:
    (directory / "out").symlink_to("..")
    before = len(os.listdir("/proc/self/fd"))
    for path in ("a/b/file", "out/secret", "none/none", "out", "a/b/file/x", "../secret"):
        for attempt in (root.opened(path, os.O_PATH), root.regular_file(path, os.O_RDONLY)):
            try:
                with attempt:
                    pass
            except (OSError, ToolFailed):
                continue
        for place in (root.place(path), root.place_behind_links(path)):
            try:
                with place:
                    pass
            except (OSError, ToolFailed):
                continue
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_path_is_shown_on_one_line_and_not_longer(root: Root) -> None:
    assert shown("a\nb\x1b[31m") == "`a?b?[31m`"
    assert len(shown("x" * 5000)) < 210
