import base64
import ctypes
import os
import stat
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cli_mcp.execution import ToolFailed
from sandbox_agent.tools import files, rename
from sandbox_agent.tools.files import READ_LIMIT_BYTES
from sandbox_agent.tools.root import Root
from tests.sandbox_agent.tools.conftest import SECRET

LINES = "".join(f"line {number}\n" for number in range(10))


def read(root: Root, path: str = "file", /, **arguments: Any) -> dict[str, Any]:
    return files.read_file(root, path=path, **arguments)


@pytest.mark.parametrize(
    ("arguments", "content", "offset", "next_offset"),
    [
        ({}, LINES, 0, None),
        ({"offset": 7, "limit": 6}, "line 1", 7, 13),
        ({"offset": 63}, "line 9\n", 63, None),
        ({"offset": 700}, "", 700, None),
        ({"head": 2}, "line 0\nline 1\n", 0, 14),
        ({"head": 100}, LINES, 0, None),
        ({"tail": 2}, "line 8\nline 9\n", 56, None),
        ({"tail": 100}, LINES, 0, None),
    ],
)
def test_a_part_is_read_by_bytes_or_by_lines(
    root: Root, directory: Path, arguments: dict[str, int], content: str, offset: int, next_offset: int | None
) -> None:
    (directory / "file").write_text(LINES)
    result = read(root, **arguments)
    assert (result["content"], result["offset"], result["next_offset"]) == (content, offset, next_offset)
    assert result["size_bytes"] == 70 and result["encoding"] == "utf-8"


def test_a_huge_file_comes_in_pieces_that_make_the_whole(root: Root, directory: Path) -> None:
    text = "äöü€𝄞" * 20_000
    (directory / "file").write_text(text)
    found, offset = "", 0
    while offset is not None:
        result = read(root, offset=offset)
        assert result["encoding"] == "utf-8" and result["bytes"] <= READ_LIMIT_BYTES
        found += result["content"]
        offset = result["next_offset"]
    assert found == text


def test_of_a_file_that_is_larger_than_memory_only_what_is_asked_for_is_read(
    root: Root, directory: Path
) -> None:
    with open(directory / "file", "wb") as file:
        file.truncate(1 << 40)
    assert read(root, offset=1 << 39, limit=3)["content"] == "\0\0\0"
    assert read(root, tail=1)["bytes"] == READ_LIMIT_BYTES
    assert read(root, head=1)["bytes"] == READ_LIMIT_BYTES


def test_what_is_not_text_comes_as_base64_and_is_refused_as_text(root: Root, directory: Path) -> None:
    (directory / "file").write_bytes(b"\xff\xfe\x00")
    result = read(root)
    assert result["encoding"] == "base64" and base64.b64decode(result["content"]) == b"\xff\xfe\x00"
    with pytest.raises(ToolFailed, match="base64"):
        read(root, encoding="utf-8")
    (directory / "file").write_text("text")
    assert base64.b64decode(read(root, encoding="base64")["content"]) == b"text"


def test_a_file_that_grows_all_the_time_ends_a_call(root: Root, directory: Path) -> None:
    path = directory / "file"
    path.write_text("")
    stop = threading.Event()

    def grow() -> None:
        with path.open("ab") as file:
            while not stop.is_set():
                file.write(b"x" * 4096)

    grower = threading.Thread(target=grow)
    grower.start()
    try:
        for arguments in ({}, {"tail": 3}, {"head": 3}):
            assert read(root, **arguments)["bytes"] <= READ_LIMIT_BYTES
    finally:
        stop.set()
        grower.join()


@pytest.mark.parametrize("atomic", [True, False])
def test_a_file_is_made_and_then_keeps_its_mode(root: Root, directory: Path, atomic: bool) -> None:
    result = files.write_file(root, path="x/y/file", content="one", atomic=atomic)
    assert result["created"] and (directory / "x/y/file").read_text() == "one"
    (directory / "x/y/file").chmod(0o750)
    result = files.write_file(root, path="x/y/file", content="2", atomic=atomic)
    assert not result["created"] and result["mode"] == "0750"
    assert (directory / "x/y/file").read_text() == "2"
    assert files.write_file(root, path="x/y/file", content="", mode="0600", atomic=atomic)["mode"] == "0600"
    assert [path.name for path in (directory / "x/y").iterdir()] == ["file"]


def test_a_new_file_has_the_mode_that_the_umask_leaves_or_the_one_given(root: Root, directory: Path) -> None:
    before = os.umask(0o027)
    try:
        assert files.write_file(root, path="file", content="")["mode"] == "0640"
    finally:
        os.umask(before)
    assert files.write_file(root, path="other", content="", mode="755")["mode"] == "0755"


def test_base64_is_written_as_the_bytes_it_stands_for(root: Root, directory: Path) -> None:
    files.write_file(root, path="file", content=base64.b64encode(b"\x00\xff").decode(), encoding="base64")
    assert (directory / "file").read_bytes() == b"\x00\xff"
    for content, encoding in (("not base64!", "base64"), ("\ud800", "utf-8")):
        with pytest.raises(ToolFailed):
            files.write_file(root, path="file", content=content, encoding=encoding)
    assert (directory / "file").read_bytes() == b"\x00\xff"


def test_a_link_stays_and_what_it_leads_to_is_written(root: Root, directory: Path) -> None:
    (directory / "link").symlink_to("a/b/file")
    for atomic in (True, False):
        files.write_file(root, path="link", content=f"{atomic}", atomic=atomic)
        assert (directory / "link").is_symlink()
        assert (directory / "a/b/file").read_text() == f"{atomic}"


def test_a_read_only_file_is_not_replaced(root: Root, directory: Path) -> None:
    (directory / "a/b/file").chmod(0o444)
    for atomic in (True, False):
        with pytest.raises(ToolFailed, match="read-only"):
            files.write_file(root, path="a/b/file", content="x", atomic=atomic)


def test_a_hard_link_to_a_file_outside_keeps_its_content_there(root: Root, directory: Path) -> None:
    secret = directory.parent / "secret"
    os.link(secret, directory / "link")
    with pytest.raises(ToolFailed, match="hard links"):
        files.write_file(root, path="link", content="x", atomic=False)
    files.write_file(root, path="link", content="x")
    files.delete_file(root, path="link")
    assert secret.read_text() == SECRET


def test_who_reads_meanwhile_sees_the_old_content_or_the_new(root: Root, directory: Path) -> None:
    path = directory / "file"
    contents = {"old" * 50_000, "new" * 50_000}
    path.write_text("old" * 50_000)
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            for content in contents:
                files.write_file(root, path="file", content=content)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(200):
            assert path.read_text() in contents
    finally:
        stop.set()
        writer.join()


def test_a_directory_is_listed_in_pages_of_sorted_names(root: Root, directory: Path) -> None:
    for number in range(25):
        (directory / f"a/{number:02}").touch()
    (directory / "a/.hidden").touch()
    (directory / "a/link").symlink_to("nowhere")
    found, cursor, pages = [], None, 0
    while True:
        result = files.list_directory(root, path="a", limit=10, cursor=cursor)
        found += [entry["name"] for entry in result["entries"]]
        pages += 1
        if (cursor := result["next_cursor"]) is None:
            break
        (directory / f"a/0{pages}").unlink()  # what changes before the cursor moves nothing behind it
    assert found == [*(f"{number:02}" for number in range(25)), "b", "link"] and pages == 3
    assert ".hidden" in [
        entry["name"] for entry in files.list_directory(root, path="a", hidden=True)["entries"]
    ]


def test_an_entry_says_what_it_is(root: Root, directory: Path) -> None:
    (directory / "link").symlink_to("a")
    os.mkfifo(directory / "pipe")
    (directory / "file").write_text("12345")
    (directory / "file").chmod(0o640)
    entries = {entry["name"]: entry for entry in files.list_directory(root)["entries"]}
    assert {name: entry["type"] for name, entry in entries.items()} == {
        "a": "directory",
        "file": "file",
        "link": "link",
        "pipe": "fifo",
    }
    assert (entries["file"]["size_bytes"], entries["file"]["mode"]) == (5, "0640")
    assert entries["link"]["target"] == "a" and entries["file"]["target"] is None


def test_names_that_are_no_text_are_listed_once_and_fit_into_a_page(root: Root, directory: Path) -> None:
    for number in range(400):
        (directory / os.fsdecode(b"a/b/\xff%03d" % number + b"\xfe" * 250)).touch()
    seen, cursor = [], None
    while True:
        result = files.list_directory(root, path="a/b", limit=1000, cursor=cursor)
        assert sum(len(entry["name"]) for entry in result["entries"]) < 5 * READ_LIMIT_BYTES
        seen += [entry["name"] for entry in result["entries"]]
        if (cursor := result["next_cursor"]) is None:
            break
    assert len(seen) == len(set(seen)) == 401
    assert seen[1].startswith(r"\xff000")


def test_a_cursor_of_somebody_else_is_refused(root: Root) -> None:
    with pytest.raises(ToolFailed, match="cursor"):
        files.list_directory(root, cursor="ä")


@pytest.fixture(params=["renameat2", "without"])
def renaming(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """With RENAME_NOREPLACE, and where the kernel or the file system lacks it."""
    if request.param == "without":
        monkeypatch.setattr(rename, "_renameat2", None)


@pytest.mark.usefixtures("renaming")
class TestMove:
    def test_a_file_and_a_directory_get_another_name(self, root: Root, directory: Path) -> None:
        files.move_file(root, source="a/b/file", destination="new/place")
        assert (directory / "new/place").read_text() == "content\n"
        assert not (directory / "a/b/file").exists()
        assert files.move_file(root, source="a", destination="c")["type"] == "directory"
        assert (directory / "c/b").is_dir() and not (directory / "a").exists()

    @pytest.mark.parametrize("source", ["file", "a"])
    @pytest.mark.parametrize("kind", ["file", "directory", "full", "link", "dangling"])
    def test_nothing_is_replaced(self, root: Root, directory: Path, source: str, kind: str) -> None:
        (directory / "file").write_text("mine")
        taken = directory / "taken"
        if kind == "file":
            taken.write_text("other")
        elif kind in ("directory", "full"):
            taken.mkdir()
            if kind == "full":
                (taken / "x").touch()
        else:
            taken.symlink_to("a" if kind == "link" else "nowhere")
        before = taken.lstat()
        with pytest.raises(FileExistsError):
            files.move_file(root, source=source, destination="taken")
        assert os.path.samestat(taken.lstat(), before) and (directory / source).exists()

    def test_a_link_is_moved_itself(self, root: Root, directory: Path) -> None:
        (directory / "link").symlink_to("../secret")
        files.move_file(root, source="link", destination="a/link")
        assert (directory / "a/link").readlink() == Path("../secret")

    def test_a_directory_cannot_be_moved_into_itself(self, root: Root, directory: Path) -> None:
        with pytest.raises(OSError):
            files.move_file(root, source="a", destination="a/b/c")
        assert (directory / "a/b/file").exists() and not (directory / "a/b/c").exists()

    def test_neither_end_may_be_outside(self, root: Root, directory: Path) -> None:
        (directory / "out").symlink_to("../outside")
        for source, destination in (
            ("out/file", "stolen"),
            ("../secret", "stolen"),
            ("a/b/file", "out/new"),
            ("a/b/file", "../new"),
        ):
            with pytest.raises(OSError):
                files.move_file(root, source=source, destination=destination)
        assert sorted(path.name for path in directory.parent.iterdir()) == ["outside", "root", "secret"]
        assert [path.name for path in (directory.parent / "outside").iterdir()] == ["file"]


def test_a_directory_is_deleted_only_when_asked_for(root: Root, directory: Path) -> None:
    with pytest.raises(ToolFailed, match="recursive"):
        files.delete_file(root, path="a")
    assert (directory / "a/b/file").exists()
    assert files.delete_file(root, path="a", recursive=True)["type"] == "directory"
    assert list(directory.iterdir()) == []


def test_a_link_is_deleted_itself_and_a_tree_with_links_leads_nowhere(root: Root, directory: Path) -> None:
    outside = directory.parent / "outside"
    (directory / "link").symlink_to("../outside")
    (directory / "a/link").symlink_to("../../outside")
    files.delete_file(root, path="link", recursive=True)
    files.delete_file(root, path="a", recursive=True)
    with pytest.raises(FileNotFoundError):
        files.delete_file(root, path="link")
    assert (outside / "file").read_text() == SECRET


def test_a_tree_that_is_deeper_than_python_goes_is_an_error_and_not_a_crash(
    root: Root, directory: Path
) -> None:
    current = os.open(directory, os.O_PATH)
    for _ in range(1500):
        os.mkdir("d", dir_fd=current)
        below = os.open("d", os.O_PATH, dir_fd=current)
        os.close(current)
        current = below
    os.close(current)
    try:
        files.delete_file(root, path="d", recursive=True)
    except (ToolFailed, OSError):
        subprocess.run(["rm", "-rf", directory / "d"], check=True)
    assert not (directory / "d").exists()


def exchange(one: Path, other: Path) -> None:
    """Swap two names at once, renameat2(2): neither is ever missing."""
    result = ctypes.CDLL(None).renameat2(-100, os.fsencode(one), -100, os.fsencode(other), 2)
    assert result == 0


ATTACKED: list[Callable[[Root], Any]] = [
    lambda root: files.read_file(root, path="swapped/file"),
    lambda root: files.write_file(root, path="swapped/file", content="mine"),
    lambda root: files.write_file(root, path="swapped/file", content="mine", atomic=False),
    lambda root: files.write_file(root, path="swapped/new/deep", content="mine"),
    lambda root: files.list_directory(root, path="swapped"),
    lambda root: files.move_file(root, source="swapped/file", destination="moved"),
    lambda root: files.move_file(root, source="moved", destination="swapped/file"),
    lambda root: files.delete_file(root, path="swapped/new", recursive=True),
    lambda root: files.delete_file(root, path="swapped/file"),
    lambda root: files.write_file(root, path="last", content="mine"),
    lambda root: files.write_file(root, path="last", content="mine", atomic=False),
    lambda root: files.read_file(root, path="last"),
]


def test_names_swapped_for_links_in_a_loop_never_lead_outside(root: Root, directory: Path) -> None:
    """A directory on the way, and the last name, are now themselves and now links to what is outside."""
    outside = directory.parent / "outside"
    (directory / "swapped").mkdir()
    (directory / "link").symlink_to("../outside")
    stop = threading.Event()
    swaps = 0

    def swap() -> None:
        nonlocal swaps
        while not stop.is_set():
            exchange(directory / "swapped", directory / "link")
            (directory / "next").symlink_to("../secret")
            os.replace(directory / "next", directory / "last")
            (directory / "next").write_text("mine")
            os.replace(directory / "next", directory / "last")
            swaps += 1

    swapper = threading.Thread(target=swap)
    swapper.start()
    done = refused = 0
    until = time.monotonic() + 2
    try:
        while time.monotonic() < until or not (done and refused):
            for attack in ATTACKED:
                try:
                    result = attack(root)
                except (OSError, ToolFailed):
                    refused += 1
                    continue
                done += 1
                assert result.get("content", "mine") in ("mine", "")
            assert time.monotonic() < until + 30
    finally:
        stop.set()
        swapper.join()
    assert swaps > 10
    assert [path.name for path in outside.iterdir()] == ["file"]
    assert (outside / "file").read_text() == SECRET
    assert (directory.parent / "secret").read_text() == SECRET
    assert stat.S_ISREG((directory.parent / "secret").lstat().st_mode)
