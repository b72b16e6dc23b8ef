import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandbox_agent.capture import Capture


def captured(limit_bytes: int, *chunks: bytes) -> tuple[Capture, bytes]:
    capture = Capture(limit_bytes)
    return capture, b"".join(capture.feed(chunk) for chunk in chunks)


@given(st.lists(st.binary(max_size=40)), st.integers(0, 60))
def test_what_is_kept_are_the_two_ends_of_the_stream(chunks: list[bytes], limit_bytes: int) -> None:
    whole = b"".join(chunks)
    capture, copy = captured(limit_bytes, *chunks)
    head, tail = capture.head_and_tail()
    assert capture.total_bytes == len(whole)
    assert whole.startswith(head)
    assert whole.endswith(tail)
    if len(whole) <= limit_bytes:
        assert (head, tail, copy) == (whole, b"", b"")
    else:
        assert copy == whole
        assert len(head) + len(tail) <= limit_bytes
        assert len(head) >= limit_bytes // 2 - 3
        assert len(tail) >= limit_bytes // 2 - 3


@given(st.text(st.sampled_from("aé€😀"), min_size=20), st.integers(8, 30))
def test_no_character_is_cut_in_two(text: str, limit_bytes: int) -> None:
    capture, _ = captured(limit_bytes, text.encode())
    for part in capture.head_and_tail():
        part.decode()


@pytest.mark.parametrize(
    ("written", "line"),
    [
        (b"", ""),
        (b"one\ntwo", "two"),
        (b"one\ntwo\n\n  \n", "two"),
        (b"10%\r20%\r", "20%"),
        (b"x" * 1000, "x" * 200),
        (b"\xff\xfe", "\ufffd\ufffd"),
    ],
)
def test_the_last_line_with_something_in_it_is_known(written: bytes, line: str) -> None:
    assert captured(10_000, written)[0].last_line() == line


def test_memory_does_not_grow_with_the_stream() -> None:
    capture = Capture(1000)
    for _ in range(10_000):
        capture.feed(b"x" * 77)
    assert len(capture._head) + len(capture._tail) < 3000
