import base64
import json
from dataclasses import replace
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp import types

from cli_mcp.execution import Outcome, Progress, StreamOutput
from mcp_server.backend import SessionOutcome, SessionState
from mcp_server.result_schema import COMMAND_SCHEMA
from mcp_server.results import MAX_ENCODED_BYTES, progress_message, tool_error, tool_result
from mcp_server.tool import BashCall
from tests.mcp_server.fake_backend import outcome, stream

CALL = BashCall("x", 60)
KEYS = [
    *("exit_code", "notes", "stdout", "stderr", "duration_ms", "cwd", "timed_out", "truncated"),
    "stdout_bytes",
    *("stderr_bytes", "encoding", "output_file", "background", "shell_restarted", "session"),
]
CUT = StreamOutput(b"begin\n", b"end\n", 1_000_010, "/workspace/.cli-mcp/1", file_bytes=1_000_010)
CUT_TEXT = "begin\n[... 1,000,000 bytes left out ...]\nend\n"
CUT_NOTE = "1,000,010 bytes"


def result_of(
    ran: Outcome, session: SessionState = SessionState.CONTINUED, call: BashCall | None = None
) -> types.CallToolResult:
    return tool_result(SessionOutcome(ran, session), call or CALL)


def text_of(result: types.CallToolResult) -> str:
    (block,) = result.content
    assert isinstance(block, types.TextContent)
    return block.text


def content_of(result: types.CallToolResult) -> dict[str, Any]:
    assert isinstance(result.structured_content, dict)
    return result.structured_content


@pytest.mark.parametrize(
    ("ran", "text"),
    [
        (outcome(b"hi\n"), "hi\n"),
        (outcome(b"hi"), "hi"),
        (outcome(), "[no output]"),
        (outcome(b"out", b"err"), "out\n[stderr]\nerr"),
        (outcome(b"", b"err\n"), "[stderr]\nerr\n"),
        (outcome(b"out\n", exit_code=3), "out\n[exit code 3]"),
        (outcome(b"out", exit_code=3), "out\n[exit code 3]"),
        (outcome(exit_code=137), "[exit code 137]"),
        (
            replace(outcome(b"a\n", exit_code=124), timed_out=True),
            "a\n[timed out after 60 s and was killed: exit code 124]",
        ),
        (replace(outcome(b"a\n"), background=(41, 42)), "a\n"),
        (
            replace(outcome(exit_code=3), shell_restarted=True, notes=("bash was killed: out of memory",)),
            "[exit code 3]\n[the shell was restarted]\n[bash was killed: out of memory]",
        ),
        (
            replace(outcome(), stdout=CUT),
            f"{CUT_TEXT}[stdout: {CUT_NOTE}, all in /workspace/.cli-mcp/1]",
        ),
        (
            replace(outcome(), stderr=replace(CUT, file_bytes=9)),
            f"[stderr]\n{CUT_TEXT}[stderr: {CUT_NOTE}, the first 9 in /workspace/.cli-mcp/1]",
        ),
        (
            replace(outcome(), stdout=replace(CUT, file=None)),
            f"{CUT_TEXT}[stdout: {CUT_NOTE}, the middle was not kept]",
        ),
    ],
)
def test_the_text_has_the_output_first_and_then_a_line_for_everything_else(ran: Outcome, text: str) -> None:
    assert text_of(result_of(ran)) == text


@pytest.mark.parametrize(
    ("session", "note"),
    [
        (SessionState.NEW, "[new session]"),
        (SessionState.CONTINUED, "hi\n"),
        (SessionState.RESUMED, "[session resumed: files are kept, the shell is a fresh one]"),
    ],
)
def test_the_text_says_when_the_shell_is_a_fresh_one(session: SessionState, note: str) -> None:
    result = result_of(outcome(b"hi\n"), session)
    assert text_of(result).endswith(note)
    assert content_of(result)["session"] == session.value


def test_the_text_says_that_a_timeout_was_cut() -> None:
    result = result_of(outcome(), call=BashCall("x", 300, too_long_seconds=4000))
    assert text_of(result) == "[timeout 4000 s is too long: 300 s was used]"


# What a client shows of a result whose structured content alone it gives to the model.
@pytest.mark.parametrize(
    ("ran", "session", "call", "notes"),
    [
        (outcome(b"hi"), SessionState.CONTINUED, CALL, []),
        (outcome(exit_code=3), SessionState.CONTINUED, CALL, []),
        (outcome(), SessionState.NEW, CALL, ["new session"]),
        (
            replace(outcome(), notes=("/workspace is over its limit of 10 GiB", "later output: /f")),
            SessionState.RESUMED,
            BashCall("x", 300, too_long_seconds=600),
            [
                "timeout 600 s is too long: 300 s was used",
                "/workspace is over its limit of 10 GiB",
                "later output: /f",
                "session resumed: files are kept, the shell is a fresh one",
            ],
        ),
        (
            replace(outcome(exit_code=124), timed_out=True, stdout=replace(CUT, file_bytes=9)),
            SessionState.CONTINUED,
            BashCall("x", 2),
            [
                "timed out after 2 s and was killed: exit code 124",
                f"stdout: {CUT_NOTE}, the first 9 in /workspace/.cli-mcp/1",
            ],
        ),
        (
            outcome(b"a\xffb\n", b"warning\n"),
            SessionState.CONTINUED,
            CALL,
            [
                "stdout is no plain text and shown approximately: pipe it through xxd, iconv or strings",
                "stdout in readable form: a\ufffdb\n",
                "stderr in readable form: warning\n",
            ],
        ),
    ],
)
def test_the_structured_content_has_every_note_that_none_of_its_fields_says(
    ran: Outcome, session: SessionState, call: BashCall, notes: list[str]
) -> None:
    result = result_of(ran, session, call)
    assert content_of(result)["notes"] == notes
    for note in notes:
        assert f"[{note}]" in text_of(result) or "in readable form" in note
    jsonschema.Draft202012Validator(COMMAND_SCHEMA).validate(content_of(result))


def test_binary_output_is_readable_only_as_far_as_it_takes_to_recognise_it() -> None:
    result = result_of(outcome("é".encode() * 6_000, b"\xff"))
    readable = content_of(result)["notes"][-2]
    assert readable.startswith("stdout in readable form: éé") and readable.endswith("é\n[... more ...]\n")
    assert len(readable) < 4_100


@pytest.mark.parametrize(
    ("exit_code", "is_error"), [(0, False), (1, True), (124, True), (137, True), (255, True)]
)
def test_a_result_is_an_error_exactly_when_the_exit_code_is_not_0(exit_code: int, is_error: bool) -> None:
    assert result_of(outcome(exit_code=exit_code)).is_error is is_error


def test_the_structured_content_has_these_keys_and_no_others() -> None:
    ran = Outcome(7, stream(b"out"), stream(b"err"), 12, "/tmp", background=(5,), shell_restarted=True)
    assert list(content_of(result_of(ran))) == KEYS
    assert content_of(result_of(ran)) == {
        "exit_code": 7,
        "notes": ["the shell was restarted"],
        "stdout": "out",
        "stderr": "err",
        "duration_ms": 12,
        "cwd": "/tmp",
        "timed_out": False,
        "truncated": False,
        "stdout_bytes": 3,
        "stderr_bytes": 3,
        "encoding": "utf-8",
        "output_file": None,
        "background": [5],
        "shell_restarted": True,
        "session": "continued",
    }


@pytest.mark.parametrize(
    ("stdout", "stderr", "file"),
    [
        (CUT, stream(b""), CUT.file),
        (stream(b""), CUT, CUT.file),
        (CUT, replace(CUT, file="/workspace/.cli-mcp/2"), CUT.file),
        (replace(CUT, file=None), replace(CUT, file="/workspace/.cli-mcp/2"), "/workspace/.cli-mcp/2"),
        (replace(stream(b"whole"), file="/workspace/.cli-mcp/3"), stream(b""), None),
    ],
)
def test_output_file_is_that_of_stdout_if_it_was_cut_else_that_of_stderr(
    stdout: StreamOutput, stderr: StreamOutput, file: str | None
) -> None:
    result = result_of(replace(outcome(), stdout=stdout, stderr=stderr))
    assert content_of(result)["output_file"] == file
    for stream_output in (stdout, stderr):
        if stream_output.truncated and stream_output.file:
            assert stream_output.file in text_of(result)


def test_output_that_is_not_utf8_comes_as_exact_bytes_for_both_streams() -> None:
    result = result_of(outcome(b"\xff\xfe\x00\x01", b"warning\n"))
    content = content_of(result)
    assert content["encoding"] == "base64"
    assert content["stdout"] == "//4AAQ=="
    assert base64.b64decode(content["stderr"]) == b"warning\n"
    assert "[stdout is no plain text" in text_of(result)
    assert "[stderr is no plain text" not in text_of(result)
    assert "warning" in text_of(result)


@pytest.mark.parametrize("cut", range(1, 4))
def test_a_character_that_the_cut_went_through_does_not_make_text_binary(cut: int) -> None:
    smile = "😀".encode()
    content = content_of(
        result_of(
            replace(
                outcome(),
                stdout=StreamOutput(b"a" + smile[:cut], smile[cut:] + b"z", total_bytes=100, file="/f"),
            )
        )
    )
    assert content["encoding"] == "utf-8"
    assert content["stdout"].startswith("a\n[")
    assert content["stdout"].endswith("]\nz")


def test_a_broken_character_at_the_end_of_whole_output_is_binary() -> None:
    assert content_of(result_of(outcome("😀".encode()[:2])))["encoding"] == "base64"


FULL = 50_000
FILLS = {
    "ascii": b"x" * FULL,
    "nul": b"\0" * FULL,
    "escape": b"\x1b" * FULL,
    "quotes": b'"\\' * (FULL // 2),
    "emoji": "😀".encode() * (FULL // 4),
    "umlaut": "ü".encode() * (FULL // 2),
    "euro": "€".encode() * (FULL // 3),
    "invalid": b"\xff" * FULL,
    "tail-of-characters": b"\x80" * FULL,
    "nothing": b"",
}


def cut_in_half(data: bytes) -> StreamOutput:
    half = len(data) // 2
    return StreamOutput(
        data[:half], data[half:], total_bytes=10**10, file="/workspace/.cli-mcp/1", file_bytes=10
    )


@pytest.mark.parametrize("cut", [False, True], ids=["whole", "cut"])
@pytest.mark.parametrize("stderr", FILLS)
@pytest.mark.parametrize("stdout", FILLS)
def test_no_result_is_larger_than_clients_accept(stdout: str, stderr: str, cut: bool) -> None:
    make = cut_in_half if cut else stream
    ran = Outcome(1, make(FILLS[stdout]), make(FILLS[stderr]), 1, "/" + "\x01" * 10_000, True)
    ran = replace(ran, background=tuple(range(10**6, 10**6 + 5_000)), notes=("\x02" * 5_000,) * 50)
    result = result_of(ran)
    assert len(json.dumps(result.model_dump(mode="json", by_alias=True))) <= MAX_ENCODED_BYTES
    if content_of(result)["encoding"] == "base64":
        assert base64.b64decode(content_of(result)["stdout"]) == FILLS[stdout]


PIECES = st.sampled_from(
    [b"\0", b"\x1b", b"x", b"\n", b"\xff", b"\x80", b"\xc3", "é".encode(), "€😀".encode()]
)
BYTES = st.lists(PIECES, max_size=12).map(b"".join)


@given(BYTES, BYTES, BYTES, BYTES, st.integers(0, 3), st.integers(0, 255))
def test_any_output_becomes_a_result_that_has_all_that_was_kept(
    head: bytes, tail: bytes, err_head: bytes, err_tail: bytes, omitted: int, exit_code: int
) -> None:
    stdout = StreamOutput(head, tail, len(head) + len(tail) + omitted, "/f", 5)
    stderr = StreamOutput(err_head, err_tail, len(err_head) + len(err_tail) + omitted, "/f", 5)
    result = result_of(Outcome(exit_code, stdout, stderr, 1, "/"))
    content = content_of(result)
    result.model_dump_json().encode()
    assert content["truncated"] == (omitted > 0)
    for name, kept in (("stdout", head + tail), ("stderr", err_head + err_tail)):
        if content["encoding"] == "base64":
            assert base64.b64decode(content[name]) == kept
        elif omitted == 0:
            assert content[name].encode() == kept


def test_ordinary_text_stays_text_whatever_its_size() -> None:
    for name in ("ascii", "quotes", "emoji", "umlaut", "euro"):
        assert content_of(result_of(outcome(FILLS[name], FILLS[name])))["encoding"] == "utf-8"


def test_nothing_that_the_sandbox_names_puts_half_a_surrogate_on_the_wire() -> None:
    ran = Outcome(
        0,
        replace(CUT, file="/workspace/\udcff"),
        stream(b""),
        1,
        "/workspace/\udc80\ud800",
        notes=("note \udcfe",),
    )
    result = result_of(ran)
    result.model_dump_json().encode()
    assert content_of(result)["cwd"] == "/workspace/??"


def test_a_tool_error_is_its_message_alone() -> None:
    result = tool_error("No sandbox: \udcff")
    assert result.is_error
    assert result.structured_content is None
    assert text_of(result) == "No sandbox: ?"


@pytest.mark.parametrize(
    ("progress", "message"),
    [
        (None, "running"),
        (Progress(1.0), "running"),
        (Progress(1.0, queued=True), "waiting for an earlier command of this session"),
        (Progress(1.0, 1234, "compiling"), "1,234 bytes of output: compiling"),
        (Progress(1.0, 5, "\udcff" + "y" * 999), "5 bytes of output: ?" + "y" * 199),
    ],
)
def test_progress_is_one_short_line(progress: Progress | None, message: str) -> None:
    assert progress_message(progress) == message
