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
        for part in (head, tail):
            assert len(part) >= limit_bytes // 2 - max(3, limit_bytes // 4 + 1)


LONG = b"x" * 9000


@pytest.mark.parametrize(
    ("whole", "head_end", "tail_start"),
    [
        (b"".join(b"line %05d\n" % number for number in range(20_000)), b"line 02271\n", b"line 17728\n"),
        # Half of the limit is 25,000: a line that ends with it is whole already.
        ((b"x" * 24 + b"\n") * 4000, b"x\n", b"x" * 24),
        ((b"\xc3\xa9" * 12 + b"\n") * 4000, b"\n", b"\xc3\xa9"),
        ((b"crlf" * 5 + b"\r\n") * 4000, b"crlf\r\n", b"crlf"),
        # Longer than a line of sane length: cut wherever the limit is.
        (b"begin\n" + LONG * 20 + b"\nend\n", b"xxx", b"xxx"),
    ],
)
def test_no_line_of_sane_length_is_cut_in_two(whole: bytes, head_end: bytes, tail_start: bytes) -> None:
    capture, _ = captured(50_000, *(whole[start : start + 7777] for start in range(0, len(whole), 7777)))
    head, tail = capture.head_and_tail()
    assert head.endswith(head_end)
    assert tail.startswith(tail_start)
    assert whole.startswith(head) and whole.endswith(tail)
    assert min(len(head), len(tail)) > 25_000 - 4_100
    if LONG not in whole:
        assert head.endswith(b"\n") and whole[-len(tail) - 1 : -len(tail)] == b"\n"


@pytest.mark.parametrize("limit_bytes", [1_000, 4_001, 50_000])
def test_a_line_that_ends_at_the_cut_is_kept(limit_bytes: int) -> None:
    half = limit_bytes // 2
    head_part, tail_part = b"h" * (half - 1) + b"\n", b"t" * (half - 1) + b"\n"
    capture, _ = captured(limit_bytes, head_part + b"middle\n" + tail_part)
    assert capture.head_and_tail() == (head_part, tail_part)


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
