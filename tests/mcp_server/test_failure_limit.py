import pytest

from mcp_server.failure_limit import FAILURES_AT_ONCE, FailureLimit


def spend(limit: FailureLimit, address: str, now: float = 0) -> int:
    """How often that address may fail."""
    taken = 0
    while limit.take(address, now):
        taken += 1
    return taken


def test_an_address_may_fail_a_few_times_and_then_one_time_each_second() -> None:
    limit = FailureLimit()
    assert spend(limit, "10.0.0.1") == FAILURES_AT_ONCE
    assert spend(limit, "10.0.0.1", now=0.5) == 0
    assert spend(limit, "10.0.0.1", now=3) == 3
    assert spend(limit, "10.0.0.1", now=10_000) == FAILURES_AT_ONCE


def test_a_success_is_given_back() -> None:
    limit = FailureLimit()
    for _ in range(3 * FAILURES_AT_ONCE):
        assert limit.take("10.0.0.1", 0)
        limit.give_back("10.0.0.1", 0)
    assert spend(limit, "10.0.0.1") == FAILURES_AT_ONCE


@pytest.mark.parametrize(
    ("one", "other", "together"),
    [
        ("10.0.0.1", "10.0.0.2", False),
        ("10.0.0.1", "::ffff:10.0.0.1", True),
        ("2001:db8::1", "2001:db8::ffff:2", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("", "10.0.0.1", False),
    ],
)
def test_addresses_count_together_that_one_user_can_choose_from(one: str, other: str, together: bool) -> None:
    limit = FailureLimit()
    spend(limit, one)
    assert limit.take(other, 0) is not together


def test_addresses_without_number_take_no_memory_without_bound() -> None:
    limit = FailureLimit()
    for number in range(20_000):
        limit.take(f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}", 0)
    assert len(limit._spent) == 10_000
