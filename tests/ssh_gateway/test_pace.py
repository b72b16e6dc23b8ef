"""Who has taken more than its share waits for as long as the share needs to make up for it."""

import pytest

from ssh_gateway import pace
from ssh_gateway.pace import Debt, Debts, Pace

PACE = Pace(burst_seconds=0.1, share=0.1)


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(
    ("charges", "later_seconds", "delay_seconds"),
    [
        ([], 0, 0),
        ([0.1], 0, 0),  # the burst
        ([0.2], 0, 1),
        ([0.1, 0.1], 0, 1),
        ([0.2], 0.5, 0.5),  # paid by waiting
        ([0.2], 60, 0),  # and no credit beyond the burst
        ([5.0], 0, 49),
        ([0.3, -0.1], 0, 1),
        ([-1.0, 0.2], 0, 1),
    ],
)
def test_what_was_taken_beyond_the_burst_is_waited_for(
    charges: list[float], later_seconds: float, delay_seconds: float
) -> None:
    clock = Clock()
    debt = Debt(PACE, clock)
    for seconds in charges:
        debt.charge(seconds)
    clock.now += later_seconds
    assert debt.delay_seconds() == pytest.approx(delay_seconds)


def test_a_payer_is_the_same_on_its_next_connection_and_none_pays_for_another() -> None:
    debts = Debts(PACE, Clock())
    debts.of("user alice").charge(0.2)
    assert debts.of("user alice").delay_seconds() == pytest.approx(1)
    assert debts.of("user bob").delay_seconds() == 0


def test_those_longest_unseen_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "_REMEMBERED", 2)
    debts = Debts(PACE, Clock())
    for name in ("alice", "bob", "alice", "carol"):
        debts.of(name).charge(0.2)
    assert debts.of("alice").delay_seconds() > 0
    assert debts.of("bob").delay_seconds() == 0
