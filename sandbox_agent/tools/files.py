"""The tools `read_file`, `write_file`, `list_directory`, `move_file` and `delete_file`.

Functions of a Root and plain values; they block on the disk, and return what the tool's result has. They
raise ToolFailed, and OSError for what the system refuses.
"""

import base64
import binascii
import heapq
import os
import secrets
import shutil
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from cli_mcp.execution import ToolFailed
from sandbox_agent.tools.rename import rename_to_free_name, replace
from sandbox_agent.tools.root import Place, Root, check_regular, kind_of, shown

# What one call returns; a result has it twice, and a control character is six bytes of JSON.
READ_LIMIT_BYTES = 1 << 16
LIST_LIMIT_ENTRIES = 1_000
# What names and links of one page may take: a byte that is no text is four characters.
_LIST_BYTES = 1 << 16
# A directory may hold millions of names, and each has to be seen to find the first ones.
_LIST_SECONDS = 10.0
_TEXT = "utf-8"

Result = dict[str, Any]


def read_file(
    root: Root,
    *,
    path: str,
    offset: int = 0,
    limit: int = READ_LIMIT_BYTES,
    head: int | None = None,
    tail: int | None = None,
    encoding: str = "auto",
) -> Result:
    """`offset` and `limit` are bytes, `head` and `tail` lines; at most READ_LIMIT_BYTES come back."""
    limit = min(limit, READ_LIMIT_BYTES)
    with root.regular_file(path, os.O_RDONLY) as fd:
        size = os.fstat(fd).st_size
        start = max(0, size - READ_LIMIT_BYTES) if tail is not None else offset
        data = os.pread(fd, READ_LIMIT_BYTES if head is not None or tail is not None else limit, start)
    if head is not None:
        data = b"".join(data.splitlines(keepends=True)[:head])
    if tail is not None:
        kept = _last_lines(data, tail)
        start += len(data) - len(kept)
        data = kept
    content, encoding, used = encode(data, encoding, path, more=start + len(data) < size)
    end = start + used
    return {
        "path": root.absolute(path),
        "content": content,
        "encoding": encoding,
        "offset": start,
        "bytes": used,
        "size_bytes": size,
        "next_offset": end if end < size else None,
    }


def encode(data: bytes, encoding: str, path: str, *, more: bool) -> tuple[str, str, int]:
    """`data` as text or base64, which of the two, and how many bytes of it that is: the beginning of a
    character whose rest comes later is left for later."""
    if encoding != "base64":
        try:
            return data.decode(), _TEXT, len(data)
        except UnicodeDecodeError as error:
            if more and error.start >= max(1, len(data) - 3) and error.reason == "unexpected end of data":
                return data[: error.start].decode(), _TEXT, error.start
            if encoding == _TEXT:
                raise ToolFailed(
                    f"{shown(path)} is not UTF-8 text here; read it with encoding `base64`."
                ) from None
    return base64.b64encode(data).decode(), "base64", len(data)


def _last_lines(data: bytes, count: int) -> bytes:
    """The last `count` lines; of a file that has longer ones, what is there of them, from a character on."""
    lines = data.splitlines(keepends=True)
    if count < len(lines):
        return b"".join(lines[len(lines) - count :])
    start = 0
    while start < min(3, len(data)) and data[start] & 0xC0 == 0x80:  # RFC 3629: continues a character
        start += 1
    return data[start:]


def write_file(
    root: Root,
    *,
    path: str,
    content: str,
    encoding: str = _TEXT,
    mode: str | None = None,
    atomic: bool = True,
) -> Result:
    """Replace or make a file; directories on the way are made. `mode` is octal; without it an existing file
    keeps its own. Written in place (`atomic` false) a file keeps its hard links and whoever has it open."""
    data = _decode(content, encoding)
    bits = None if mode is None else int(mode, 8)
    with root.place_behind_links(path, make_parents=True) as place:
        existing = _status(place)
        if existing is not None:
            check_regular(existing, path)
            if not existing.st_mode & 0o222:
                raise ToolFailed(f"{shown(path)} is read-only. Give it another mode first, or delete it.")
        if atomic or existing is None:
            _write_and_rename(place, data, bits, existing)
        else:
            _write_in_place(root, path, data, bits)
        written = os.stat(place.name, dir_fd=place.directory, follow_symlinks=False)
    return {
        "path": root.absolute(path),
        "bytes": len(data),
        "created": existing is None,
        "mode": _octal(written.st_mode),
    }


def _decode(content: str, encoding: str) -> bytes:
    try:
        return content.encode() if encoding == _TEXT else base64.b64decode(content, validate=True)
    except UnicodeEncodeError:
        raise ToolFailed("`content` is not valid Unicode; send it as `base64`.") from None
    except binascii.Error as error:
        raise ToolFailed(f"`content` is not base64: {error}.") from None


def _write_and_rename(place: Place, data: bytes, mode: int | None, existing: os.stat_result | None) -> None:
    with _unfinished(place.directory) as (temporary, fd):
        _write_all(fd, data)
        if mode is not None:
            os.fchmod(fd, mode)
        elif existing is not None:
            os.fchmod(fd, stat.S_IMODE(existing.st_mode))
        replace(temporary, place.name)


@contextmanager
def _unfinished(directory: int) -> Iterator[tuple[Place, int]]:
    """A new file in the directory under a name of its own, gone at the end unless it has another by then."""
    place = Place(directory, f".cli-mcp-{secrets.token_hex(8)}.tmp")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(place.name, flags, 0o666, dir_fd=directory)
    try:
        yield place, fd
    finally:
        os.close(fd)
        try:
            os.unlink(place.name, dir_fd=directory)
        except FileNotFoundError:
            pass  # renamed, as it should be


def _write_in_place(root: Root, path: str, data: bytes, mode: int | None) -> None:
    with root.regular_file(path, os.O_WRONLY) as fd:
        links = os.fstat(fd).st_nlink
        if links > 1:
            raise ToolFailed(
                f"{shown(path)} has {links} hard links, which would all change. Write it with `atomic`: true."
            )
        os.ftruncate(fd, 0)
        _write_all(fd, data)
        if mode is not None:
            os.fchmod(fd, mode)


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def list_directory(
    root: Root, *, path: str = ".", hidden: bool = False, limit: int = 200, cursor: str | None = None
) -> Result:
    """Entries in the order of their names' bytes, from where the page that gave `cursor` ended."""
    limit = min(limit, LIST_LIMIT_ENTRIES)
    until = time.monotonic() + _LIST_SECONDS
    behind = None if cursor is None else _name_in(cursor)
    with root.opened(path, os.O_RDONLY | os.O_DIRECTORY) as fd:
        with os.scandir(fd) as entries:
            names = heapq.nsmallest(limit + 1, _names(entries, until, behind, hidden=hidden))
        page, listed = _page(fd, names[:limit])
    return {
        "path": root.absolute(path),
        "entries": listed,
        "next_cursor": base64.urlsafe_b64encode(page[-1]).decode() if len(page) < len(names) else None,
    }


def _page(directory: int, names: list[bytes]) -> tuple[list[bytes], list[Result]]:
    """As many of the names as fit into a result, one at least, and the entries of those that are there."""
    listed: list[Result] = []
    size = 0
    for count, name in enumerate(names):
        entry = _entry(directory, os.fsdecode(name))
        if entry is None:
            continue
        size += len(name) + len(entry["target"] or "")
        if size > _LIST_BYTES and listed:
            return names[:count], listed
        listed.append(entry)
    return names, listed


def _name_in(cursor: str) -> bytes:
    """A name, since entries may come and go between two pages; encoded, since it may be no text."""
    try:
        return base64.urlsafe_b64decode(cursor)
    except (ValueError, binascii.Error):
        raise ToolFailed("`cursor` is not one of an earlier result. Leave it out to start again.") from None


def _names(
    entries: Iterator[os.DirEntry[str]], until: float, behind: bytes | None, *, hidden: bool
) -> Iterator[bytes]:
    for entry in entries:
        if time.monotonic() > until:
            raise ToolFailed("The directory has too many entries to list. Use `ls -f` in bash.")
        name = os.fsencode(entry.name)
        if (hidden or not name.startswith(b".")) and (behind is None or name > behind):
            yield name


def _entry(directory: int, name: str) -> Result | None:
    try:
        status = os.stat(name, dir_fd=directory, follow_symlinks=False)
        is_link = stat.S_ISLNK(status.st_mode)
        target = os.readlink(name, dir_fd=directory) if is_link else None
    except FileNotFoundError:
        return None  # gone since it was listed
    return {
        "name": _printable(name),
        "type": kind_of(status.st_mode),
        "size_bytes": status.st_size,
        "mode": _octal(status.st_mode),
        "modified": datetime.fromtimestamp(int(status.st_mtime), UTC).isoformat(),
        "target": None if target is None else _printable(target),
    }


def move_file(root: Root, *, source: str, destination: str) -> Result:
    """Rename a file, directory or link itself; never over something else. Directories on the way are made."""
    with root.place(source) as old, root.place(destination, make_parents=True) as new:
        kind = kind_of(os.stat(old.name, dir_fd=old.directory, follow_symlinks=False).st_mode)
        rename_to_free_name(old, new)
    return {"source": root.absolute(source), "destination": root.absolute(destination), "type": kind}


def delete_file(root: Root, *, path: str, recursive: bool = False) -> Result:
    """Remove a name; a link itself, not what it leads to. Directories only if `recursive`."""
    with root.place(path) as place:
        kind = kind_of(os.stat(place.name, dir_fd=place.directory, follow_symlinks=False).st_mode)
        if kind != "directory":
            os.unlink(place.name, dir_fd=place.directory)
        elif not recursive:
            raise ToolFailed(
                f"{shown(path)} is a directory. To delete it with all that is in it, send `recursive`: true."
            )
        else:
            _remove_tree(place, path)
    return {"path": root.absolute(path), "type": kind}


def _remove_tree(place: Place, path: str) -> None:
    assert shutil.rmtree.avoids_symlink_attacks
    try:
        shutil.rmtree(place.name, dir_fd=place.directory)
    except RecursionError:
        raise ToolFailed(f"{shown(path)} is nested too deeply. Delete it in bash: rm -rf.") from None


def _status(place: Place) -> os.stat_result | None:
    try:
        return os.stat(place.name, dir_fd=place.directory, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _octal(mode: int) -> str:
    return f"{stat.S_IMODE(mode):04o}"


def _printable(name: str) -> str:
    """A name as text; bytes that are not UTF-8 as \\xNN."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")
