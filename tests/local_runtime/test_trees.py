"""Measuring and removing trees that nobody well-meaning would make."""

import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from local_runtime import trees

NO_LIMIT = 1 << 50


@contextmanager
def opened(path: Path) -> Iterator[int]:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield fd
    finally:
        os.close(fd)


def measure(path: Path, stop_at_bytes: int = NO_LIMIT) -> trees.Size:
    with opened(path) as fd:
        return trees.measure(fd, stop_at_bytes=stop_at_bytes)


def make_deep(path: Path, levels: int) -> None:
    """`levels` directories one below the other, with a file in the last; deeper than a path can be long."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    for _ in range(levels):
        os.mkdir("d", dir_fd=fd)
        below = os.open("d", os.O_RDONLY | os.O_DIRECTORY, dir_fd=fd)
        os.close(fd)
        fd = below
    file = os.open("file", os.O_WRONLY | os.O_CREAT, dir_fd=fd)
    os.write(file, b"x" * 100_000)
    os.close(file)
    os.close(fd)


def test_a_file_counts_what_it_takes_on_disk(tmp_path: Path) -> None:
    (tmp_path / "full").write_bytes(b"x" * 1_000_000)
    with open(tmp_path / "sparse", "wb") as sparse:
        sparse.truncate(1 << 40)
    size = measure(tmp_path)
    assert 1_000_000 <= size.used_bytes < 1_100_000
    assert size.entries == 2
    assert size.complete


def test_an_empty_file_counts_too(tmp_path: Path) -> None:
    for number in range(100):
        (tmp_path / str(number)).touch()
    assert measure(tmp_path).used_bytes == 100 * trees.ENTRY_BYTES


def test_a_file_with_many_names_counts_once(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * 1_000_000)
    for number in range(50):
        os.link(tmp_path / "a", tmp_path / f"b{number}")
    assert measure(tmp_path).used_bytes < 1_100_000


def test_links_out_of_the_tree_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "link").symlink_to("/usr")
    (tmp_path / "in" / "up").symlink_to("..")
    assert measure(tmp_path / "in").entries == 2


def test_counting_stops_at_the_limit(tmp_path: Path) -> None:
    for number in range(1000):
        (tmp_path / str(number)).touch()
    size = measure(tmp_path, stop_at_bytes=10 * trees.ENTRY_BYTES)
    assert size.entries == 11


def test_the_deepest_file_is_counted_with_few_descriptors(tmp_path: Path) -> None:
    make_deep(tmp_path, 5000)
    size = measure(tmp_path)
    assert size.entries == 5001
    assert size.used_bytes > 100_000
    assert size.complete
    with opened(tmp_path) as holder:
        trees.remove(holder, "d")
    assert list(tmp_path.iterdir()) == []


def test_siblings_on_every_level_are_all_counted(tmp_path: Path) -> None:
    current = tmp_path
    for level in range(80):
        for name in ("a", "b"):
            (current / name).mkdir()
            (current / name / "file").write_text(str(level))
        current = current / "a"
    assert measure(tmp_path).entries == 80 * 4


def test_a_tree_that_is_moved_around_is_never_left(tmp_path: Path) -> None:
    """Deep directories move up while they are measured; whatever is not seen, nothing outside is counted."""
    outside = tmp_path / "outside"
    outside.mkdir()
    for number in range(500):
        (outside / str(number)).touch()
    inside = tmp_path / "inside"
    inside.mkdir()
    deep = inside
    for _ in range(60):
        deep = deep / "d"
        deep.mkdir()
    stop = threading.Event()

    def shuffle() -> None:
        while not stop.is_set():
            os.rename(deep, inside / "moved")
            os.rename(inside / "moved", deep)

    mover = threading.Thread(target=shuffle)
    mover.start()
    try:
        for _ in range(100):
            assert measure(inside).entries <= 62
    finally:
        stop.set()
        mover.join()


def test_names_of_any_bytes_are_removed(tmp_path: Path) -> None:
    names = [b"new\nline", b"\xff\xfe", b"-rf", b" ", b"*", "\u202e".encode(), b"tree.1", b"x" * 255]
    root = tmp_path / "tree"
    root.mkdir()
    for name in names:
        os.mkdir(os.path.join(os.fsencode(root), name))
        os.symlink(b"/", os.path.join(os.fsencode(root), name, b"link"))
    assert measure(root).entries == 2 * len(names)
    with opened(tmp_path) as holder:
        trees.remove(holder, "tree")
    assert list(tmp_path.iterdir()) == []


def test_what_a_link_points_to_survives_the_removal(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "file").touch()
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "link").symlink_to(tmp_path / "kept")
    with opened(tmp_path) as holder:
        trees.remove(holder, "tree")
    assert (tmp_path / "kept" / "file").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="root runs this test as an unprivileged user, too")
def test_closed_directories_are_measured_and_removed_as_an_unprivileged_user(
    user_directory: Path, user_python: list[str]
) -> None:
    closed_directories(user_directory, user_python)


def test_closed_directories_are_measured_and_removed(tmp_path: Path) -> None:
    closed_directories(tmp_path, [sys.executable])


def closed_directories(directory: Path, python: list[str]) -> None:
    script = """
        import os, sys
        from pathlib import Path
        from local_runtime import trees
        root = Path(sys.argv[1])
        inner = root / "tree" / "closed" / "inner"
        inner.mkdir(parents=True)
        (inner / "file").write_bytes(b"x" * 100_000)
        inner.chmod(0o555)
        inner.parent.chmod(0)
        holder = os.open(root, os.O_RDONLY)
        size = trees.measure(holder, stop_at_bytes=1 << 40)
        assert size.used_bytes > 100_000, size
        trees.remove(holder, "tree")
        assert not list(root.iterdir())
    """
    subprocess.run([*python, "-c", textwrap.dedent(script), str(directory)], check=True, timeout=60)


def test_a_link_in_place_of_the_tree_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "victim").mkdir()
    (tmp_path / "victim" / "precious").touch()
    (tmp_path / "holder").mkdir()
    (tmp_path / "holder" / "tree").symlink_to(tmp_path / "victim")
    holder = os.open(tmp_path / "holder", os.O_RDONLY | os.O_DIRECTORY)
    try:
        with pytest.raises(OSError, match="Not a directory"):
            trees.remove(holder, "tree")
    finally:
        os.close(holder)
    assert (tmp_path / "victim" / "precious").exists()
