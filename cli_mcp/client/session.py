"""Commands in a session of a running server: their result, their whole output, and what they get to read."""

import base64
import os
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from cli_mcp.client.connection import ClientError, Connection, OnProgress, new_request_id
from cli_mcp.execution import STREAM_LIMIT_BYTES
from cli_mcp.names import WORKSPACE_PATH

_LEFT_OUT = " bytes left out ...]"  # as the server writes it into a text that it cuts
_OF_STREAMS = ("stdout", "stderr")
STDIN_PIECE_BYTES = 1 << 20
_SESSION_NOTES = {
    "new": ("new session",),
    "resumed": ("session resumed: files are kept, the shell is a fresh one",),
}


@dataclass(frozen=True, slots=True)
class Stream:
    """What a result has of one stream: all of it, or with its middle left out; then `file`, a path in the
    sandbox, has more, up to all of its `total_bytes`."""

    data: bytes
    whole: bool
    total_bytes: int
    file: str | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """Of a command that ran. `notes` are short sentences for a person."""

    exit_code: int
    stdout: Stream
    stderr: Stream
    cwd: str
    timed_out: bool = False
    notes: tuple[str, ...] = ()


def parse_result(result: Any) -> Result:
    """What a `bash` call gave. Raises ClientError with the server's words when nothing ran."""
    content = result.get("structuredContent") if isinstance(result, dict) else None
    if not isinstance(content, dict) or "exit_code" not in content:
        blocks = result.get("content", []) if isinstance(result, dict) else []
        raise ClientError("\n".join(str(block.get("text", "")) for block in blocks) or "no result")
    try:
        stdout, stderr = _streams(content)
        return Result(
            exit_code=int(content["exit_code"]),
            stdout=stdout,
            stderr=stderr,
            cwd=str(content["cwd"]),
            timed_out=content.get("timed_out") is True,
            notes=tuple(_notes(content)),
        )
    except (KeyError, TypeError, AttributeError, ValueError):
        raise ClientError("The server's result is of another kind than this client knows.") from None


def _streams(content: dict[str, Any]) -> list[Stream]:
    file = content.get("output_file")
    streams = []
    for name in _OF_STREAMS:
        text = content[name]
        is_text = content["encoding"] != "base64"
        data = text.encode() if is_text else base64.b64decode(text, validate=True)
        total = int(content.get(f"{name}_bytes", len(data)))
        whole = not content["truncated"] or _is_whole(name, data, total, file, is_text=is_text)
        # The result names the first file alone; that of the other stream stands beside it.
        of_stream = None if whole or file is None else f"{file.rpartition('.')[0]}.{name}"
        streams.append(Stream(data, whole, total, of_stream))
    return streams


def _is_whole(name: str, data: bytes, total: int, file: str | None, *, is_text: bool) -> bool:
    """Of a stream in a result that was cut somewhere."""
    if file is not None and file.endswith(f".{name}"):
        return False
    if name == "stdout" and file is not None:  # a file of stdout would be the one that is named
        return True
    # Where a text was cut stands a line about that, which may be just as long as what it stands for.
    return len(data) == total and not (is_text and _LEFT_OUT.encode() in data)


def _notes(content: dict[str, Any]) -> Iterator[str]:
    """Without those about streams, which are fetched whole and written as they are, and about time."""
    notes = content.get("notes")
    given = notes if isinstance(notes, list) else _SESSION_NOTES.get(content.get("session", ""), ())
    for note in map(str, given):
        if not note.startswith((*_OF_STREAMS, "timed out")):
            yield note


class Session:
    """One session of a server, over one connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def run(
        self,
        command: str,
        timeout_seconds: float | None,
        on_progress: OnProgress,
        request_id: str | None = None,
    ) -> Result:
        """Raises ClientError when there is no result. A Connection.cancel of `request_id` interrupts it."""
        arguments: dict[str, object] = {"command": command}
        if timeout_seconds is not None:
            arguments["timeout"] = timeout_seconds
        return parse_result(
            self._connection.call("bash", arguments, on_progress, request_id or new_request_id())
        )

    def rest(self, stream: Stream) -> Iterator[bytes]:
        """All bytes of a stream that is not whole, piece by piece, from its file. Raises ClientError when the
        file has fewer; what there was has been given then."""
        piece_bytes, done = STREAM_LIMIT_BYTES, 0
        while done < stream.total_bytes:
            if stream.file is None:
                raise ClientError(f"{stream.total_bytes - done:,} bytes of the output were not kept.")
            piece = self.run(read_command(stream.file, done, piece_bytes), None, lambda *_: None).stdout
            if not piece.whole and piece_bytes > 1:
                piece_bytes //= 2  # this server's limit is a lower one
                continue
            if not piece.data:
                raise ClientError(
                    f"Only the first {done:,} of {stream.total_bytes:,} bytes of the output were kept."
                )
            yield piece.data
            done += len(piece.data)

    def upload(self, read: Callable[[int], bytes]) -> str | None:
        """Put what `read` gives, up to its end, into a file of the sandbox; its path, or None when there is
        nothing. Raises ClientError."""
        file = f"{WORKSPACE_PATH}/.cli-mcp/stdin-{os.urandom(8).hex()}"
        path = None
        while piece := read(STDIN_PIECE_BYTES):
            path = file
            written = self.run(write_command(file, piece), None, lambda *_: None)
            if written.exit_code != 0:
                why = written.stderr.data.decode(errors="replace").strip()
                raise ClientError(f"stdin does not fit into the sandbox: {why}")
        return path


def read_command(file: str, offset: int, size: int) -> str:
    """Gives `size` bytes at `offset` whatever the session's options, aliases and functions are."""
    tail = f"command -p tail -c +{offset + 1} -- {shlex.quote(file)}"
    return f"( set +xv; \\{tail} 2>/dev/null | \\command -p head -c {size} ) || \\builtin :"


def write_command(file: str, data: bytes) -> str:
    """Appends `data` to a file for nobody else to read."""
    directory, quoted = shlex.quote(os.path.dirname(file)), shlex.quote(file)  # noqa: PTH120 - of a sandbox
    text = base64.encodebytes(data).decode()
    return (
        f"( set +xv +o noclobber; umask 077; \\command -p mkdir -p -- {directory} && "
        f"\\command -p base64 -d >> {quoted} ) <<'end-of-stdin'\n{text}end-of-stdin\n"
    )


def with_stdin(command: str, file: str) -> str:
    """`command` in the session's own shell, reading a file that is gone when it has read it."""
    quoted = shlex.quote(file)
    return f"{{ \\command -p rm -f -- {quoted}; \\eval {shlex.quote(command)}; }} < {quoted}"
