import errno
import os
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandbox_agent import confined
from sandbox_agent.confined import ConfinedDirectory


@pytest.fixture(params=["openat2", "walk"])
def root(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory to confine to, beside a secret; both with the kernel's call and without it."""
    if request.param == "walk":

        def missing(directory: int, path: str, flags: int, mode: int) -> int:
            raise OSError(errno.ENOSYS, "no such call")

        monkeypatch.setattr(confined, "_openat2", missing)
    (tmp_path / "secret").write_text("secret")
    root = tmp_path / "root"
    (root / "a/b").mkdir(parents=True)
    (root / "a/b/file").write_text("content")
    yield root


def read(directory: ConfinedDirectory, path: str) -> bytes:
    with open(directory.open(path, os.O_RDONLY), "rb") as file:
        return file.read()


def test_a_file_below_is_read_and_a_new_one_made(root: Path) -> None:
    with ConfinedDirectory(root) as directory:
        assert read(directory, "a/./b//file") == b"content"
        fd = directory.create("a/new")
        os.write(fd, b"x")
        os.close(fd)
        assert stat.S_IMODE((root / "a/new").stat().st_mode) == 0o600


@pytest.mark.parametrize("path", ["", ".", "/", "/etc/passwd", "..", "a/../a", "a/..", "./..", "a\0b"])
def test_a_path_that_is_not_of_plain_components_is_refused(root: Path, path: str) -> None:
    with ConfinedDirectory(root) as directory:
        for operation in (
            lambda: directory.open(path, os.O_RDONLY),
            lambda: directory.create(path),
            lambda: directory.subdirectory(path),
            lambda: directory.unlink(path),
        ):
            with pytest.raises(ValueError, match="path"):
                operation()


@pytest.mark.parametrize(
    ("link", "target", "path"),
    [
        ("link", "../secret", "link"),
        ("link", "a/b/file", "link"),
        ("link", "..", "link/secret"),
        ("link", "/proc/self/root", "link/etc/passwd"),
        ("a/link", "b", "a/link/file"),
        ("link", "/proc/self/fd/0", "link"),
        ("link", "nowhere", "link"),
    ],
)
def test_no_link_is_followed(root: Path, link: str, target: str, path: str) -> None:
    (root / link).symlink_to(target)
    with ConfinedDirectory(root) as directory:
        for flags in (os.O_RDONLY, os.O_WRONLY | os.O_CREAT, os.O_PATH):
            with pytest.raises(OSError) as caught:
                directory.open(path, flags)
            assert caught.value.errno in (errno.ELOOP, errno.ENOTDIR)
    assert not (root / "nowhere").exists()


def test_an_existing_name_is_never_opened_by_create(root: Path) -> None:
    (root / "dangling").symlink_to("../outside")
    os.mkfifo(root / "fifo")
    with ConfinedDirectory(root) as directory:
        for name in ("a", "a/b/file", "dangling", "fifo"):
            with pytest.raises(OSError) as caught:
                directory.create(name)
            assert caught.value.errno in (errno.EEXIST, errno.ELOOP)
    assert not (root.parent / "outside").exists()


def test_a_fifo_does_not_block(root: Path) -> None:
    os.mkfifo(root / "fifo")
    with ConfinedDirectory(root) as directory:
        os.close(directory.open("fifo", os.O_RDONLY))
        with pytest.raises(OSError) as caught:
            directory.open("fifo", os.O_WRONLY)
        assert caught.value.errno == errno.ENXIO


def test_another_file_system_is_not_entered(root: Path) -> None:
    with ConfinedDirectory("/") as directory, pytest.raises(OSError) as caught:
        directory.open("proc/self/status", os.O_RDONLY)
    assert caught.value.errno in (errno.EXDEV, errno.ELOOP)


def test_a_subdirectory_is_made_or_found_and_confines_likewise(root: Path) -> None:
    with ConfinedDirectory(root) as directory:
        for _ in range(2):
            with directory.subdirectory("a/new") as below:
                assert below.fileno() > 2
        (root / "a/new/up").symlink_to("../..")
        with directory.subdirectory("a/new") as below, pytest.raises(OSError):
            below.open("up/a", os.O_RDONLY)
        (root / "link").symlink_to("a")
        with pytest.raises(OSError):
            directory.subdirectory("link")


def test_unlink_removes_the_name_in_its_directory_and_a_link_itself(root: Path) -> None:
    (root / "a/b/link").symlink_to("../../../secret")
    (root / "up").symlink_to("..")
    with ConfinedDirectory(root) as directory:
        directory.unlink("a/b/file")
        directory.unlink("a/b/link")
        with pytest.raises(OSError):
            directory.unlink("up/secret")
        directory.unlink("up")
    assert not (root / "a/b/file").exists()
    assert (root.parent / "secret").exists()


def test_a_directory_swapped_for_a_link_in_a_loop_never_leads_outside(root: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("secret")
    (root / "real").mkdir()
    (root / "real/file").write_text("mine")
    os.symlink(outside, root / "link")
    stop = threading.Event()

    def swap() -> None:
        while not stop.is_set():
            for source in ("real", "link"):
                os.rename(root / source, root / "swapped")
                os.rename(root / "swapped", root / source)

    swapper = threading.Thread(target=swap)
    swapper.start()
    read_it = refused = 0
    try:
        with ConfinedDirectory(root) as directory:
            for number in range(3000):
                try:
                    assert read(directory, "swapped/file") == b"mine"
                    read_it += 1
                    os.close(directory.create(f"swapped/{number}"))
                    directory.unlink(f"swapped/{number}")
                except OSError:
                    refused += 1
    finally:
        stop.set()
        swapper.join()
    assert [path.name for path in outside.iterdir()] == ["file"]
    assert refused > 0


def test_no_descriptor_is_left_open(root: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    (root / "link").symlink_to("..")
    with ConfinedDirectory(root) as directory:
        for path in ("a/b/file", "link/secret", "none/none", "link"):
            try:
                os.close(directory.open(path, os.O_RDONLY))
            except OSError:
                continue
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_mount_below_is_not_entered(root: Path) -> None:
    """`root` for its two ways to open; /proc is mounted everywhere."""
    with ConfinedDirectory(Path("/")) as directory:
        with pytest.raises(OSError) as error:
            directory.open("proc/version", os.O_RDONLY)
        assert error.value.errno == errno.EXDEV
