"""A command's outcome as a tool result: text for the model, structured content for programs. Pure."""

import base64
import codecs
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from mcp import types

from cli_mcp.execution import Outcome, Progress, StreamOutput
from mcp_server.backend import SessionOutcome, SessionState
from mcp_server.tool import BashCall

# SDK clients drop a server-sent event over 1 MiB; the JSON-RPC envelope needs some room, too.
MAX_ENCODED_BYTES = 900_000
# Output stands in the text and in the structured content; a control character is six bytes of JSON (\u0000).
_MAX_JSON_BYTES_PER_OUTPUT_BYTE = 2 * 6
# How much of output that is no text stands in the text, and in a note: enough to recognise it.
_PREVIEW_BYTES = 4_000
_MORE = "\n[... more ...]\n"
# Beside Base64: of a stream that is text, up to here, and twice as much of it as JSON.
_MAX_READABLE_JSON_BYTES = 150_000
_LAST_LINE_CHARACTERS = 200
_MAX_BACKGROUND_PIDS = 1_000
_MAX_PATH_CHARACTERS = 4_096  # PATH_MAX, limits.h
_MAX_NOTES = 20
_MAX_NOTE_CHARACTERS = 500

_SESSION_NOTES = {
    SessionState.NEW: "new session",
    SessionState.RESUMED: "session resumed: files are kept, the shell is a fresh one",
}


def session_notes(session: SessionState) -> list[str]:
    """What there is to say about how a call found its session."""
    return [note] if (note := _SESSION_NOTES.get(session)) is not None else []


def tool_error(message: str) -> types.CallToolResult:
    """A result that says why nothing ran, or why its outcome is unknown."""
    return types.CallToolResult(content=[types.TextContent(text=_valid(message))], is_error=True)


def tool_result(ran: SessionOutcome, call: BashCall) -> types.CallToolResult:
    """The result of a call that ran; an error exactly when the exit code is not 0.

    Both streams are given as text, or both as base64: when one is not UTF-8, and when their JSON would be
    larger than clients accept, which takes so many control characters that it is no text either.
    """
    outcome = ran.outcome
    stdout, stderr = _text(outcome.stdout), _text(outcome.stderr)
    if stdout is not None and stderr is not None:
        result = _result(ran, call, "utf-8", _Shown(stdout, stdout), _Shown(stderr, stderr))
        if _fits(result, outcome):
            return result
        stdout = stderr = None
    return _result(ran, call, "base64", _binary(outcome.stdout, stdout), _binary(outcome.stderr, stderr))


def progress_message(progress: Progress | None) -> str:
    """One line for whoever watches a command run; None is progress of which nothing is known yet."""
    if progress is not None and progress.queued:
        return "waiting for an earlier command of this session"
    if progress is None or progress.output_bytes == 0:
        return "running"
    last_line = progress.last_line[:_LAST_LINE_CHARACTERS]
    return _valid(f"{progress.output_bytes:,} bytes of output: {last_line}")


@dataclass(frozen=True, slots=True)
class _Shown:
    """One stream as it is given: in the structured content, and as `text` for a reader. `approximate` says
    that the latter is not all of what was kept."""

    structured: str
    text: str
    approximate: bool = False


def _result(
    ran: SessionOutcome, call: BashCall, encoding: str, stdout: _Shown, stderr: _Shown
) -> types.CallToolResult:
    outcome = ran.outcome
    notes = list(_notes(ran, call, stdout, stderr))
    return types.CallToolResult(
        content=[types.TextContent(text=_document(outcome, notes, stdout, stderr))],
        structured_content={
            "exit_code": outcome.exit_code,
            "notes": notes if encoding == "utf-8" else [*notes, *_readable(stdout, stderr)],
            "stdout": stdout.structured,
            "stderr": stderr.structured,
            "duration_ms": outcome.duration_ms,
            "cwd": _valid(outcome.cwd[:_MAX_PATH_CHARACTERS]),
            "timed_out": outcome.timed_out,
            "truncated": outcome.stdout.truncated or outcome.stderr.truncated,
            "stdout_bytes": outcome.stdout.total_bytes,
            "stderr_bytes": outcome.stderr.total_bytes,
            "encoding": encoding,
            "output_file": _output_file(outcome),
            "background": list(outcome.background[:_MAX_BACKGROUND_PIDS]),
            "shell_restarted": outcome.shell_restarted,
            "session": ran.session.value,
        },
        is_error=outcome.exit_code != 0,
    )


def _readable(stdout: _Shown, stderr: _Shown) -> Iterator[str]:
    """What a reader of the structured content, where both streams are Base64, can make out of them."""
    for name, shown in (("stdout", stdout), ("stderr", stderr)):
        if shown.text:
            yield f"{name} in readable form: {_beginning(shown.text)}"


def _output_file(outcome: Outcome) -> str | None:
    for stream in (outcome.stdout, outcome.stderr):
        if stream.truncated and stream.file is not None:
            return _valid(stream.file)
    return None


def _document(outcome: Outcome, notes: Iterable[str], stdout: _Shown, stderr: _Shown) -> str:
    """The output first, as it is; then what else there is to know, a line in brackets each."""
    text = stdout.text
    if stderr.text:
        text = f"{_ended_line(text)}[stderr]\n{stderr.text}"
    exit_code = [f"exit code {outcome.exit_code}"] if outcome.exit_code != 0 and not outcome.timed_out else []
    lines = [f"[{note}]" for note in (*exit_code, *notes)]
    return _ended_line(text) + "\n".join(lines) if lines else text or "[no output]"


def _ended_line(text: str) -> str:
    return text if not text or text.endswith("\n") else f"{text}\n"


def _notes(ran: SessionOutcome, call: BashCall, stdout: _Shown, stderr: _Shown) -> Iterator[str]:
    """What no other field of the structured content says."""
    outcome = ran.outcome
    if outcome.timed_out:
        yield f"timed out after {call.timeout_seconds:g} s and was killed: exit code {outcome.exit_code}"
    if call.too_long_seconds is not None:
        yield f"timeout {call.too_long_seconds:g} s is too long: {call.timeout_seconds:g} s was used"
    for name, stream, shown in (("stdout", outcome.stdout, stdout), ("stderr", outcome.stderr, stderr)):
        if stream.truncated:
            yield _truncation(name, stream)
        if shown.approximate:
            yield f"{name} is no plain text and shown approximately: pipe it through xxd, iconv or strings"
    if outcome.shell_restarted:
        yield "the shell was restarted"
    for note in outcome.notes[:_MAX_NOTES]:
        yield _valid(note[:_MAX_NOTE_CHARACTERS])
    yield from session_notes(ran.session)


def _truncation(name: str, stream: StreamOutput) -> str:
    """Of a stream whose middle was left out, which is said in its place."""
    if stream.file is None:
        return f"{name}: {stream.total_bytes:,} bytes, the middle was not kept"
    kept = "all" if stream.file_bytes >= stream.total_bytes else f"the first {stream.file_bytes:,}"
    return f"{name}: {stream.total_bytes:,} bytes, {kept} in {_valid(stream.file)}"


def _text(stream: StreamOutput) -> str | None:
    """The stream as text, with a line where bytes were left out; None when it is not UTF-8."""
    try:
        if not stream.truncated:
            return (stream.head + stream.tail).decode()
        # The cuts may go through a character, whose remains then belong to the part left out.
        head = codecs.getincrementaldecoder("utf-8")().decode(stream.head)
        tail = _without_leading_continuation_bytes(stream.tail).decode()
    except UnicodeDecodeError:
        return None
    return f"{_ended_line(head)}[... {stream.omitted_bytes:,} bytes left out ...]\n{tail}"


def _without_leading_continuation_bytes(data: bytes) -> bytes:
    """`data` from its first whole character, which has at most three bytes of 10xxxxxx (RFC 3629)."""
    start = 0
    while start < min(3, len(data)) and data[start] & 0b1100_0000 == 0b1000_0000:
        start += 1
    return data[start:]


def _binary(stream: StreamOutput, text: str | None) -> _Shown:
    """The stream in Base64, and readable: `text`, if it is one that is readable, or what its beginning seems
    to be."""
    kept = stream.head + stream.tail
    structured = base64.b64encode(kept).decode()
    if text is not None and len(json.dumps(text)) <= _MAX_READABLE_JSON_BYTES:
        return _Shown(structured, text)
    # Not `final` where it goes on: a character that the limit goes through is left out.
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text = decoder.decode(kept[:_PREVIEW_BYTES], final=len(kept) <= _PREVIEW_BYTES)
    more = _MORE if stream.total_bytes > _PREVIEW_BYTES else ""
    return _Shown(structured, text + more, approximate=bool(kept))


def _beginning(text: str) -> str:
    return text if len(text) <= _PREVIEW_BYTES else text[:_PREVIEW_BYTES] + _MORE


def _fits(result: types.CallToolResult, outcome: Outcome) -> bool:
    """Whether clients accept the result with ASCII escapes, the longest form that a transport sends."""
    kept_bytes = sum(len(stream.head) + len(stream.tail) for stream in (outcome.stdout, outcome.stderr))
    if kept_bytes * _MAX_JSON_BYTES_PER_OUTPUT_BYTE < MAX_ENCODED_BYTES // 2:
        return True  # nearly always, and cheaper than to measure
    return len(json.dumps(result.model_dump(mode="json", by_alias=True))) <= MAX_ENCODED_BYTES


def _valid(text: str) -> str:
    """`text` without lone surrogates, which no JSON encoder can put on the wire; file names can have them."""
    return text.encode("utf-8", "replace").decode()
