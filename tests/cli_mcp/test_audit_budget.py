"""What of a flood of records is written, counted and remembered."""

import asyncio
import json
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli_mcp.audit_budget import AuditBudget, AuditEntry, BudgetedLog, BudgetLimits

SMALL = BudgetLimits(
    burst_bytes=1000,
    bytes_per_second=10.0,
    reserve_bytes=300,
    reserve_bytes_per_second=1.0,
    repetitions=3,
    kinds=4,
    counts=2,
    accounts=3,
)


def entry(
    detail: object = 0, *, client: str = "a", kind: str = "k", event: str = "e", time: float = 0
) -> AuditEntry:
    fields = {"event": event, "time": time, "client": client, "kind": kind, "detail": detail, "bytes": 5}
    return AuditEntry(client, kind, detail, fields, ("bytes",))


SIZE = len(entry(100).line) + 1


def write(budget: AuditBudget, entries: Iterable[AuditEntry], now: float = 0.0) -> list[dict[str, object]]:
    return [json.loads(line) for one in entries for line in budget.admit(one, now)]


def settled(budget: AuditBudget, now: float) -> list[dict[str, object]]:
    return [json.loads(line) for line in budget.settle(now)]


def test_within_the_budget_every_record_is_written_as_it_is() -> None:
    entries = [entry(number) for number in range(9)]
    assert write(AuditBudget(), entries) == [one.fields for one in entries]


def test_repetitions_are_one_line_with_their_number_and_sums() -> None:
    budget = AuditBudget(SMALL)
    assert len(write(budget, [entry(time=number) for number in range(10)])) == 1 + SMALL.repetitions
    assert budget.counting
    (line,) = settled(budget, 0)
    assert line == {**entry(time=9).fields, "repeated": 6, "since": 4, "bytes": 30}
    assert not budget.counting
    assert len(write(budget, [entry()])) == 1, "a new period"


def test_repetitions_do_not_use_up_what_is_for_others() -> None:
    budget = AuditBudget(SMALL)
    write(budget, [entry() for _ in range(10_000)])
    assert [line["detail"] for line in write(budget, [entry("other")])] == ["other"]


def test_a_used_up_budget_is_counted_by_kind_until_the_counts_are_written() -> None:
    budget = AuditBudget(SMALL)
    written = write(budget, [entry(number) for number in range(100, 200)])
    assert len(written) == SMALL.burst_bytes // SIZE
    assert settled(budget, 1.0) == [], "nothing to pay with"
    assert write(budget, [entry("later")], 60.0) == [], "single records wait for the counts"
    (count,) = settled(budget, 60.0)
    assert count["repeated"] == 100 - len(written) + 1
    assert len(write(budget, [entry("after")], 60.0)) == 1


def test_the_first_record_of_a_kind_is_written_when_the_rest_is_used_up() -> None:
    budget = AuditBudget(SMALL)
    write(budget, [entry(number) for number in range(100, 200)])
    assert [line["kind"] for line in write(budget, [entry(kind="new"), entry(1, kind="new")])] == ["new"]


def test_made_up_kinds_are_bounded_and_counted_as_mixed() -> None:
    budget = AuditBudget(SMALL)
    written = write(budget, [entry(number, kind=f"kind {number}") for number in range(100, 200)])
    assert sum(len(json.dumps(line)) + 1 for line in written) <= SMALL.burst_bytes + SMALL.reserve_bytes
    counts = [json.loads(line) for line in budget.close()]
    assert len(counts) == SMALL.counts + 1
    assert [count.get("mixed", False) for count in counts] == [False, False, True]
    assert sum(int(count["repeated"]) for count in counts) + len(written) == 100


@pytest.mark.parametrize("other", [entry(client="b"), entry(event="f")])
def test_each_client_and_each_event_has_its_own(other: AuditEntry) -> None:
    budget = AuditBudget(SMALL)
    write(budget, [entry(number, kind=str(number)) for number in range(1000)])
    assert len(write(budget, [other])) == 1


def test_of_too_many_clients_the_oldest_leaves_with_its_counts_written() -> None:
    budget = AuditBudget(SMALL)
    for client in "abc":
        write(budget, [entry(number, client=client) for number in range(100, 200)])
    assert [line["client"] for line in write(budget, [entry(client="d")])] == ["a", "d"]


def test_clients_that_have_their_whole_budget_again_are_forgotten_first() -> None:
    budget = AuditBudget(SMALL)
    write(budget, [entry(number, client="a") for number in range(100, 200)])
    write(budget, [entry(client="b"), entry(client="c")])
    assert len(write(budget, [entry(client="d")], 1000.0)) == 1
    assert [json.loads(line)["client"] for line in budget.close()] == ["a"]


@given(
    st.lists(
        st.tuples(st.integers(0, 20), st.sampled_from("klmnopq"), st.sampled_from("ab"), st.floats(0, 30)),
        max_size=200,
    )
)
def test_nothing_is_lost_uncounted_and_nobody_writes_more_than_the_budget(
    records: list[tuple[int, str, str, float]],
) -> None:
    budget, now, lines = AuditBudget(SMALL), 0.0, list[str]()
    for detail, kind, client, passed in records:
        now += passed
        lines += budget.admit(entry(detail, kind=kind, client=client), now)
        if passed > 20:
            lines += budget.settle(now)
    paid = list(lines)
    lines += budget.close()
    assert sum(json.loads(line).get("repeated", 1) for line in lines) == len(records)
    for client in "ab":
        size = sum(len(line) + 1 for line in paid if json.loads(line)["client"] == client)
        assert size <= SMALL.burst_bytes + SMALL.reserve_bytes + 11 * now


async def test_counts_are_written_while_nothing_else_happens_and_at_the_end() -> None:
    lines: list[str] = []
    limits = BudgetLimits(period_seconds=0.02, repetitions=1)
    log = BudgetedLog(lines.append, limits)
    for _ in range(5):
        log.write(entry())
    assert len(lines) == 2
    async with asyncio.timeout(5):
        while len(lines) < 3:
            await asyncio.sleep(0.005)
    assert json.loads(lines[2])["repeated"] == 3
    for _ in range(5):
        log.write(entry())
    log.close()
    assert json.loads(lines[-1])["repeated"] == 4
