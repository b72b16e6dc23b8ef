"""The group `files`: read_file, write_file, list_directory, move_file, delete_file."""

from typing import Annotated, Literal, Self

from mcp import types
from pydantic import Field, model_validator

from mcp_server.typed_tool import Count, Positive, Text, ToolArguments, ToolResult, TypedTool, Word

_READ_BYTES = 65_536
_DELETE_SECONDS = 300.0  # of millions of files
_MAX_PATH_CHARACTERS = 8_192
_MAX_CONTENT_CHARACTERS = 200_000
_MAX_ENTRIES = 1_000
_WHERE = (
    "Paths are relative to the workspace, or absolute within it. Symbolic links are followed as long as they "
    "are relative and stay in it."
)

Path = Annotated[Word, Field(min_length=1, description="Relative to the workspace, or absolute within it.")]
PathShown = Annotated[str, Field(max_length=_MAX_PATH_CHARACTERS)]
Content = Annotated[str, Field(max_length=_MAX_CONTENT_CHARACTERS)]
Encoding = Literal["utf-8", "base64"]


class ReadFileArguments(ToolArguments):
    path: Path
    offset: Annotated[Count, Field(description="First byte to read. Default 0.")] = 0
    limit: Annotated[Positive, Field(description="Bytes to read. Default and at most 65,536.")] = _READ_BYTES
    head: Annotated[Positive | None, Field(description="Instead: the first so many lines.")] = None
    tail: Annotated[Positive | None, Field(description="Instead: the last so many lines.")] = None
    encoding: Annotated[
        Literal["auto", "utf-8", "base64"],
        Field(description="`auto` (default) gives text, and base64 for what is not UTF-8."),
    ] = "auto"

    @model_validator(mode="after")
    def _one_range(self) -> Self:
        by_bytes = self.offset != 0 or self.limit != _READ_BYTES
        if sum((by_bytes, self.head is not None, self.tail is not None)) > 1:
            raise ValueError("send `offset` and `limit`, or `head`, or `tail`, and not several of them")
        return self


class ReadFileResult(ToolResult):
    path: PathShown
    content: Content
    encoding: Encoding
    offset: int
    bytes: int
    size_bytes: int
    next_offset: int | None

    def text(self) -> str:
        notes = []
        if self.encoding == "base64":
            notes.append("base64")
        if self.offset or self.next_offset is not None:
            notes.append(f"bytes {self.offset:,} to {self.offset + self.bytes:,} of {self.size_bytes:,}")
        if self.next_offset is not None:
            notes.append(f"go on with offset {self.next_offset}")
        return with_notes(self.content or ("" if notes else "[empty]"), notes)


class WriteFileArguments(ToolArguments):
    path: Path
    content: Annotated[Text, Field(description="All of the file's new content.")]
    encoding: Annotated[Encoding, Field(description="Of `content`. Default utf-8.")] = "utf-8"
    mode: Annotated[
        str | None,
        Field(
            pattern="^0?[0-7]{3}$",
            description="Permissions, such as 0755. Default: those that the file has, 0644 for a new one.",
        ),
    ] = None
    atomic: Annotated[
        bool,
        Field(
            description="true (default): readers see the old content or the new, and hard links keep the "
            "old. false: written in place."
        ),
    ] = True


class WriteFileResult(ToolResult):
    path: PathShown
    bytes: int
    created: bool
    mode: Annotated[str, Field(max_length=8)]

    def text(self) -> str:
        return (
            f"{'Created' if self.created else 'Wrote'} {self.path}: {self.bytes:,} bytes, mode {self.mode}."
        )


class ListDirectoryArguments(ToolArguments):
    path: Path = "."
    hidden: Annotated[bool, Field(description="Also names that start with a dot. Default false.")] = False
    limit: Annotated[Positive, Field(description="Entries of a page. Default 200, at most 1,000.")] = 200
    cursor: Annotated[Word | None, Field(description="The `next_cursor` of the page before.")] = None


class DirectoryEntry(ToolResult):
    name: Annotated[str, Field(max_length=2_000)]
    type: Literal["file", "directory", "link", "fifo", "socket", "device"]
    size_bytes: int
    mode: Annotated[str, Field(max_length=8)]
    modified: Annotated[str, Field(max_length=40)]
    target: Annotated[str | None, Field(max_length=_MAX_PATH_CHARACTERS)]

    def text(self) -> str:
        suffix = {"directory": "/", "link": f" -> {self.target}", "file": ""}.get(
            self.type, f" ({self.type})"
        )
        return f"{self.mode} {self.size_bytes:>12,} {self.modified[:19]} {self.name}{suffix}"


class ListDirectoryResult(ToolResult):
    path: PathShown
    entries: Annotated[list[DirectoryEntry], Field(max_length=_MAX_ENTRIES)]
    next_cursor: Annotated[str | None, Field(max_length=400)]

    def text(self) -> str:
        lines = "\n".join(entry.text() for entry in self.entries) or "[empty]"
        notes = [f"more: go on with cursor {self.next_cursor}"] if self.next_cursor is not None else []
        return with_notes(f"{self.path}:\n{lines}", notes)


class MoveFileArguments(ToolArguments):
    source: Path
    destination: Annotated[Word, Field(min_length=1, description="The new path, with the new name.")]


class MoveFileResult(ToolResult):
    source: PathShown
    destination: PathShown
    type: Annotated[str, Field(max_length=20)]

    def text(self) -> str:
        return f"Moved {self.source} to {self.destination}."


class DeleteFileArguments(ToolArguments):
    path: Path
    recursive: Annotated[
        bool, Field(description="Also a directory, with all that is in it. Default false.")
    ] = False


class DeleteFileResult(ToolResult):
    path: PathShown
    type: Annotated[str, Field(max_length=20)]

    def text(self) -> str:
        return f"Deleted the {self.type} {self.path}."


def with_notes(text: str, notes: list[str]) -> str:
    """The text as it is, then what there is to know about it in brackets."""
    if not notes:
        return text
    separator = "" if not text or text.endswith("\n") else "\n"
    return f"{text}{separator}[{'; '.join(notes)}]"


def _hints(*, changes: bool, destroys: bool = False, idempotent: bool = True) -> types.ToolAnnotations:
    return types.ToolAnnotations(
        read_only_hint=not changes,
        destructive_hint=destroys,
        idempotent_hint=idempotent,
        open_world_hint=False,
    )


FILE_TOOLS = (
    TypedTool(
        "read_file",
        "Read a file",
        f"Read a file of the workspace, or a part of it: 64 KiB at most in one call. {_WHERE}\n"
        "`next_offset` in the result is where to go on; it is null at the end.",
        ReadFileArguments,
        ReadFileResult,
        _hints(changes=False),
    ),
    TypedTool(
        "write_file",
        "Write a file",
        "Make a file in the workspace, or replace all of its content. Directories on the way are made. An "
        f"existing file keeps its permissions unless `mode` is given. {_WHERE}",
        WriteFileArguments,
        WriteFileResult,
        _hints(changes=True, destroys=True),
    ),
    TypedTool(
        "list_directory",
        "List a directory",
        f"List a directory of the workspace, sorted by name, a page at a time. {_WHERE}",
        ListDirectoryArguments,
        ListDirectoryResult,
        _hints(changes=False),
    ),
    TypedTool(
        "move_file",
        "Move or rename a file",
        "Move or rename a file or directory within the workspace. Nothing is ever overwritten: it fails when "
        "the destination exists. Directories on the way are made. A symbolic link is moved itself.",
        MoveFileArguments,
        MoveFileResult,
        _hints(changes=True, idempotent=False),
    ),
    TypedTool(
        "delete_file",
        "Delete a file",
        "Delete a file of the workspace, or with `recursive` a directory and all that is in it. It cannot be "
        "undone. A symbolic link is deleted itself.",
        DeleteFileArguments,
        DeleteFileResult,
        _hints(changes=True, destroys=True),
        lambda arguments: _DELETE_SECONDS,
    ),
)
