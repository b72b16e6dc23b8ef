"""Output as a whole: captured, spilled, and late."""

import os
import resource
from pathlib import Path

import pytest

from cli_mcp.execution import STREAM_LIMIT_BYTES
from sandbox_agent.spill import SpillLimits
from tests.sandbox_agent.conftest import MakeSession, TestSession, stdout, wait_until


def files(session: TestSession) -> set[str]:
    try:
        return set(os.listdir(session.directory / "workspace/.cli-mcp"))
    except FileNotFoundError:
        return set()


async def test_output_that_fits_makes_no_file(session: TestSession) -> None:
    outcome = await session.sh(f"head -c {STREAM_LIMIT_BYTES} /dev/zero")
    assert outcome.stdout.head == bytes(STREAM_LIMIT_BYTES)
    assert (outcome.stdout.tail, outcome.stdout.file, outcome.stdout.truncated) == (b"", None, False)
    assert not (session.directory / "workspace/.cli-mcp").exists()


async def test_longer_output_is_whole_in_a_file_per_stream(session: TestSession) -> None:
    outcome = await session.sh("seq 1 30000; seq 30001 60000 >&2")
    for stream, first, last in ((outcome.stdout, 1, 30000), (outcome.stderr, 30001, 60000)):
        whole = "".join(f"{n}\n" for n in range(first, last + 1)).encode()
        assert stream.file is not None
        assert Path(stream.file).read_bytes() == whole
        assert stream.total_bytes == stream.file_bytes == len(whole)
        assert whole.startswith(stream.head) and whole.endswith(stream.tail)
        assert stream.truncated


async def test_characters_are_whole_at_the_seam(session: TestSession) -> None:
    outcome = await session.sh("printf x; yes '€' | tr -d '\\n' | head -c 300000; echo €")
    outcome.stdout.head.decode()
    outcome.stdout.tail.decode()


async def test_a_file_holds_the_first_bytes_up_to_its_limit(make_session: MakeSession) -> None:
    session = await make_session(spill=SpillLimits(file_bytes=100_000))
    outcome = await session.sh("seq 1 100000")
    assert outcome.stdout.file is not None
    assert outcome.stdout.file_bytes == Path(outcome.stdout.file).stat().st_size == 100_000
    assert outcome.stdout.total_bytes == 588_895
    assert outcome.stdout.tail.endswith(b"99999\n100000\n")


async def test_the_oldest_files_go_first(make_session: MakeSession) -> None:
    session = await make_session(spill=SpillLimits(files=3))
    for _ in range(5):
        await session.sh("seq 1 20000")
    assert files(session) == {"3.stdout", "4.stdout", "5.stdout"}


async def test_all_files_together_stay_below_the_limit(make_session: MakeSession) -> None:
    session = await make_session(spill=SpillLimits(file_bytes=200_000, total_bytes=500_000))
    for _ in range(4):
        await session.sh("head -c 1000000 /dev/zero")
    assert files(session) == {"3.stdout", "4.stdout"}


async def test_files_of_an_earlier_session_count_and_their_names_are_not_used_again(
    make_session: MakeSession, tmp_path: Path
) -> None:
    session = await make_session(spill=SpillLimits(files=2))
    directory = session.directory / "workspace/.cli-mcp"
    directory.mkdir()
    for name in ("7.stdout", "8.background.stderr", "notes.txt"):
        (directory / name).write_text("old")
    await session.start()
    await session.sh("seq 1 20000")
    assert files(session) == {"8.background.stderr", "9.stdout", "notes.txt"}


@pytest.mark.parametrize(
    "obstacle",
    [
        "ln -s {outside} .cli-mcp",
        "mkdir -p x; ln -s ../{outside} x/y; ln -s x/y .cli-mcp",
        "touch .cli-mcp",
        "mkfifo .cli-mcp",
        "mkdir .cli-mcp; ln -s {outside}/target .cli-mcp/2.stdout",
        "mkdir .cli-mcp; mkfifo .cli-mcp/2.stdout",
        "mkdir .cli-mcp; touch keep; ln keep .cli-mcp/2.stdout",
    ],
)
async def test_an_obstacle_in_the_workspace_costs_the_file_and_nothing_else(
    session: TestSession, tmp_path: Path, obstacle: str
) -> None:
    await session.sh(obstacle.format(outside=tmp_path))
    outcome = await session.sh("seq 1 300000")
    assert (outcome.exit_code, outcome.stdout.file) == (0, None)
    assert outcome.stdout.total_bytes == 1_988_895
    assert any("could be kept" in note for note in outcome.notes)
    assert list(tmp_path.iterdir()) == []
    assert await session.out("echo next") == "next\n"


async def test_a_directory_swapped_in_a_loop_never_leads_outside(
    session: TestSession, tmp_path: Path
) -> None:
    swap = (
        f"while :; do ln -sfn {tmp_path} .cli-mcp; rm -rf .cli-mcp; mkdir -p .cli-mcp; rm -rf .cli-mcp; done"
    )
    await session.sh(f"({swap}) >/dev/null 2>&1 &")
    for _ in range(30):
        assert (await session.sh("seq 1 20000")).exit_code == 0
    assert list(tmp_path.iterdir()) == []


async def test_a_full_disk_costs_the_rest_of_the_file_and_nothing_else(make_session: MakeSession) -> None:
    session = await make_session()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(
        resource.RLIMIT_FSIZE, (1_000_000, before[1])
    )  # of this process, which writes the file
    try:
        outcome = await session.sh("head -c 5000000 /dev/zero")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert outcome.stdout.total_bytes == 5_000_000
    assert any("could be kept" in note for note in outcome.notes)


async def test_gigabytes_pass_in_flat_memory(make_session: MakeSession) -> None:
    session = await make_session(spill=SpillLimits(file_bytes=10 << 20))
    await session.sh("head -c 50M /dev/zero")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    outcome = await session.sh("head -c 2G /dev/zero", timeout_seconds=60)
    assert outcome.stdout.total_bytes == 2 << 30
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20_000


async def test_late_output_goes_to_the_file_that_the_result_names(session: TestSession) -> None:
    outcome = await session.sh("(sleep 0.3; echo late; echo late too >&2) & echo now")
    assert stdout(outcome) == "now\n"
    assert [note for note in outcome.notes if "1.background.stdout" in note and "1.background.stderr" in note]
    assert files(session) == set()
    assert await session.out("sleep 0.6; echo mine") == "mine\n"
    directory = session.directory / "workspace/.cli-mcp"
    assert wait_until(lambda: (directory / "1.background.stdout").exists())
    assert (directory / "1.background.stdout").read_text() == "late\n"
    assert (directory / "1.background.stderr").read_text() == "late too\n"


async def test_without_processes_left_nothing_is_said_about_late_output(session: TestSession) -> None:
    assert (await session.sh("echo a; (echo b) & wait")).notes == ()
    assert (await session.sh("sleep 60 >/dev/null 2>&1 & sleep 0.2")).notes == ()


async def test_floods_of_many_background_processes_stay_below_the_limit_of_all(
    make_session: MakeSession,
) -> None:
    limits = SpillLimits(file_bytes=400_000, background_file_bytes=300_000, total_bytes=1_000_000, files=6)
    session = await make_session(spill=limits)
    for _ in range(8):
        assert (await session.sh("yes & sleep 0.05")).exit_code == 0
    assert await session.out("sleep 0.3; echo mine") == "mine\n"
    sizes = [(session.directory / "workspace/.cli-mcp" / name).stat().st_size for name in files(session)]
    assert 0 < sum(sizes) <= limits.total_bytes
    assert len(sizes) <= limits.files


async def test_so_many_open_streams_are_not_kept_for_ever_and_that_is_said(session: TestSession) -> None:
    notes = [(await session.sh("sleep 60 &")).notes for _ in range(20)]
    assert not any("oldest" in note for note in notes[10])
    assert any("oldest" in note for note in notes[-1])


async def test_a_background_flood_neither_delays_commands_nor_is_blocked(make_session: MakeSession) -> None:
    session = await make_session(spill=SpillLimits(file_bytes=1 << 20, background_file_bytes=1 << 20))
    await session.sh("yes & yes >&2 &")
    for _ in range(20):
        outcome = await session.sh("echo mine")
        assert stdout(outcome) == "mine\n"
        assert outcome.duration_ms < 2000
    assert len(outcome.background) == 2
    total = sum((session.directory / "workspace/.cli-mcp" / name).stat().st_size for name in files(session))
    assert total <= 4 << 20  # two streams, each before and after the end of its command


async def test_jobs_without_number_do_not_use_up_descriptors(session: TestSession) -> None:
    for _ in range(30):
        outcome = await session.sh("sleep 60 &")
    assert len(os.listdir("/proc/self/fd")) < 100
    assert len(outcome.background) == 30


async def test_a_session_leaves_no_descriptor_open(make_session: MakeSession) -> None:
    before = len(os.listdir("/proc/self/fd"))
    session = await make_session()
    await session.sh("sleep 60 & seq 1 30000; exit 3")
    await session.sh("kill -9 $PPID")
    await session.sh("true")
    await session.close("over")
    assert len(os.listdir("/proc/self/fd")) <= before + 1  # the workspace's, which is the test's


async def test_what_is_in_the_pipe_at_the_end_belongs_to_the_command(session: TestSession) -> None:
    for _ in range(20):
        assert len(await session.out("(head -c 40000 /dev/zero | tr '\\0' x) & wait; printf y")) == 40_001
