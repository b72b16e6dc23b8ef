import os
import subprocess
import tempfile
import time
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandbox_agent import protocol
from sandbox_agent.protocol import Descriptors, ExitReader, Report, ReportReader, ShellExit
from sandbox_agent.snapshot import Snapshot

SNAPSHOT = Snapshot(b"/home", b"variables\n", b"functions\n", b"aliases\n", b"umask 0022\n")
FRAME = b"\0cafe 7 123\0/home\0variables\n\0functions\n\0aliases\n\0umask 0022\n\0cafe."
FDS = Descriptors(reports=9, begins=8, exits=7, program=None)
REPORT = Report(7, 123, b"/home", SNAPSHOT)


def read(reader: ReportReader, *chunks: bytes) -> list[Report]:
    return [report for chunk in chunks if (report := reader.feed(chunk)) is not None]


def expecting(nonce: str) -> ReportReader:
    reader = ReportReader()
    reader.expect(nonce)
    return reader


def test_a_report_carries_status_pid_directory_and_state() -> None:
    assert read(expecting("cafe"), FRAME) == [REPORT]


@given(st.lists(st.integers(0, len(FRAME)), max_size=8))
def test_a_report_may_arrive_in_any_pieces(cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(FRAME)]
    pieces = [FRAME[a:b] for a, b in pairwise(edges)]
    assert read(expecting("cafe"), *pieces) == [REPORT]


@given(st.binary(max_size=200), st.binary(max_size=200))
def test_noise_around_a_report_does_not_hide_it(before: bytes, after: bytes) -> None:
    assert read(expecting("cafe"), before, FRAME, after) == [REPORT]


@pytest.mark.parametrize(
    "forged",
    [
        b"\0beef 0 1\0/\0a\0b\0c\0d\0beef.",
        b"\0cafe 256 123\0/\0a\0b\0c\0d\0cafe.",
        b"\0cafe -1 123\0/\0a\0b\0c\0d\0cafe.",
        b"\0cafe 0\0/\0a\0b\0c\0d\0cafe.",
        b"\0cafe 0 99999999999\0/\0a\0b\0c\0d\0cafe.",
        b"\0cafe 0 1\0/\0a\0b\0c\0cafe.",
        b"\0cafe 0 1\0/\0a\0b\0c\0d\0e\0cafe.",
        b"\0cafe \0cafe.",
        b"\0cafe 1 1\0" + b"d" * 70_000 + b"\0a\0b\0c\0d\0cafe.",
        b"\0cafe \xd9\xa1 1\0/\0a\0b\0c\0d\0cafe.",
    ],
)
def test_an_invalid_frame_is_noise_and_the_real_report_still_counts(forged: bytes) -> None:
    assert read(expecting("cafe"), forged) == []
    assert read(expecting("cafe"), forged, FRAME) == [REPORT]


def test_only_the_first_report_for_a_request_counts() -> None:
    assert read(expecting("cafe"), FRAME, FRAME) == [REPORT]


def test_a_report_for_an_earlier_request_does_not_count() -> None:
    reader = expecting("cafe")
    reader.feed(FRAME[:20])
    reader.expect("f00d")
    assert read(reader, FRAME[20:], FRAME) == []
    assert read(reader, FRAME.replace(b"cafe", b"f00d")) == [REPORT]


def test_a_large_state_is_dropped_and_the_rest_of_the_report_kept() -> None:
    huge = b"x" * 2 * protocol.SNAPSHOT_LIMIT_BYTES
    frame = FRAME.replace(b"variables\n", huge)
    pieces = [frame[at : at + 65_536] for at in range(0, len(frame), 65_536)]
    assert read(expecting("cafe"), *pieces) == [Report(7, 123, b"/home", None)]


def test_a_shell_that_cannot_show_its_variables_keeps_none() -> None:
    """It always has some; an empty section would forget them all."""
    assert read(expecting("cafe"), FRAME.replace(b"variables\n", b"")) == [Report(7, 123, b"/home", None)]


@pytest.mark.parametrize(
    ("begun", "status"),
    [
        (b"", None),
        (b"\0cafe 7", None),
        (b"\0cafe 7 123", None),
        (b"\0cafe 7 123\0", 7),
        (FRAME[:-1], 7),
        (FRAME, None),
        (b"noise\0cafe 255 1\0/", 255),
        (b"\0cafe 256 1\0", None),
        (b"\0beef 7 123\0", None),
    ],
)
def test_the_status_in_a_report_is_known_before_the_rest_has_come(begun: bytes, status: int | None) -> None:
    reader = expecting("cafe")
    reader.feed(begun)
    assert reader.status_begun == status


def test_memory_stays_bounded_under_endless_noise_with_and_without_a_frame_begun() -> None:
    for begin in (b"", b"\0cafe 0 1\0/\0"):
        reader = expecting("cafe")
        reader.feed(begin)
        for _ in range(200):
            assert reader.feed(b"z" * 65_536) is None
        assert len(reader._buffer) <= protocol.SNAPSHOT_LIMIT_BYTES + 65_536


@pytest.mark.parametrize(
    ("chunks", "expected"),
    [
        ([b"cafe 3\n"], [ShellExit(3)]),
        ([b"ca", b"fe 3", b"\n"], [ShellExit(3)]),
        ([b"beef 3\n"], []),
        ([b"cafe 256\n"], []),
        ([b"x" * 500 + b"\n", b"cafe 137\n"], [ShellExit(137)]),
        ([b"cafe 3\n", b"cafe 4\n"], [ShellExit(3)]),
    ],
)
def test_the_end_of_a_shell_counts_with_its_nonce_only(
    chunks: list[bytes], expected: list[ShellExit]
) -> None:
    reader = ExitReader()
    reader.expect("cafe")
    assert [answer for chunk in chunks if (answer := reader.feed(chunk))] == expected


# What a hostile process may write on the exits pipe, for ever: some of it is nearly what is looked for.
_EXIT_FLOODS = (b"0", b"0123456789abcdef", b"cafe", b"caf", b"cafe 25", b"cafe 256\n", b"\n", b"0 0\n", b" ")


@pytest.mark.parametrize("flood", _EXIT_FLOODS)
def test_a_flood_of_exits_costs_about_what_reading_it_costs(flood: bytes) -> None:
    piece = (flood * (1 << 12))[: 1 << 12]
    reader = ExitReader()
    reader.expect("cafe")
    with tempfile.TemporaryFile() as file:
        file.write(piece * 256)
        file.seek(0)
        begun = time.process_time()
        while data := os.read(file.fileno(), len(piece)):
            pass
        reading = time.process_time() - begun
    begun = time.process_time()
    for _ in range(256):
        assert reader.feed(data or piece) is None
    assert time.process_time() - begun <= 40 * max(reading, 0.001)
    assert reader.feed(b"\ncafe 9\n") == ShellExit(9)


def test_the_supervisor_runs_nothing_that_the_environment_names(tmp_path: Path) -> None:
    """An image may set these; they would run outside of every command."""
    ran = tmp_path / "ran"
    (tmp_path / "script").write_text(f"touch {ran}")
    named = {"BASH_ENV": str(tmp_path / "script"), "BASH_FUNC_read%%": f"() {{ touch {ran}; return 1; }}"}
    environment = {"PATH": os.environ["PATH"], **named}
    subprocess.run(protocol.supervisor_argv(FDS), input=b"anything\n", env=environment, timeout=20)
    assert not ran.exists()


@pytest.mark.parametrize("status", [0, 1, 255])
def test_the_status_of_the_command_before_is_seen_by_the_next(status: int, tmp_path: object) -> None:
    script = f"{tmp_path}/it's a script"
    with open(script, "w") as file:
        file.write("echo $?")
    line = protocol.source_line(script, "/dev/stdout", "/dev/stderr", last_status=status, nonce="m", fds=FDS)
    setup = protocol.start_lines("n", FDS).split(b"\n", 1)[1]
    done = subprocess.run(
        ["bash", "--norc", "-c", b"exec 8>&2 9>&2" + setup + line], capture_output=True, check=True
    )
    assert (done.stdout, done.stderr) == (b"%d\n" % status, b"m\n")
