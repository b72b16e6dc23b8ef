import pytest

from mcp_server.agents.limits import Allowance


@pytest.mark.parametrize(
    ("spending", "verdicts"),
    [
        ([(10, 0)], [True]),
        ([(10, 0), (1, 0)], [True, False]),
        # Two more for each second that has passed, of which nothing is spent twice.
        ([(10, 0), (1, 1), (1, 1), (1, 1)], [True, True, True, False]),
        ([(14, 2), (1, 2), (1, 3)], [True, False, True]),
        ([(0, 0)] * 3, [True] * 3),
    ],
)
def test_an_allowance_is_a_stock_and_what_time_adds(
    spending: list[tuple[float, float]], verdicts: list[bool]
) -> None:
    allowance = Allowance(at_once=10, per_second=2)
    assert [allowance.spend(amount, elapsed) for amount, elapsed in spending] == verdicts
