"""The same message again and again, from one client and from others."""

import logging

from cli_mcp.log_budget import MESSAGES, PERIOD_SECONDS, RepeatFilter


def record(number: int = 0, *, at: float = 0, line: int = 1, client: str | None = None) -> logging.LogRecord:
    made = logging.LogRecord("logger", logging.INFO, "file.py", line, "message %d", (number,), None)
    made.created = at
    if client is not None:
        made.client = client
    return made


def written(repeats: RepeatFilter, *records: logging.LogRecord) -> list[str]:
    return [one.getMessage() for one in records if repeats.filter(one)]


def test_a_place_that_says_the_same_again_and_again_is_counted() -> None:
    repeats = RepeatFilter()
    assert len(written(repeats, *map(record, range(1000)))) == MESSAGES
    later = record(7, at=PERIOD_SECONDS)
    expected = f"message 7 (before it {1000 - MESSAGES} more were not written)"
    assert written(repeats, later, record(8, at=PERIOD_SECONDS)) == [expected, "message 8"]


def test_neither_another_client_nor_another_place_is_kept_back() -> None:
    repeats = RepeatFilter()
    written(repeats, *(record(client="a") for _ in range(1000)))
    assert len(written(repeats, record(client="b"), record(line=2, client="a"), record(client="a"))) == 2


def test_what_has_a_budget_of_its_own_always_passes() -> None:
    records = [record(number) for number in range(1000)]
    for one in records:
        one.budgeted = True
    assert len(written(RepeatFilter(), *records)) == 1000


def test_what_is_remembered_is_bounded() -> None:
    repeats = RepeatFilter()
    assert len(written(repeats, *(record(client=str(number)) for number in range(5000)))) == 5000
    assert len(repeats._places) < 2000
