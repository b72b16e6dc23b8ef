"""A key waits once, the earliest delay counts, failures back off."""

from tests.kube.clock import Clock
from tests.kube.workqueue import MAX_BACKOFF_SECONDS, WorkQueue


def test_a_key_waits_once_and_keys_keep_their_order() -> None:
    queue = WorkQueue(Clock())
    for key in ("a", "b", "a"):
        queue.add(key)
    assert [queue.pop(), queue.pop(), queue.pop()] == ["a", "b", None]


def test_the_earliest_of_several_delays_counts() -> None:
    clock = Clock()
    queue = WorkQueue(clock)
    for seconds in (30, 1.5, 60):
        queue.add_after("a", seconds)
    assert queue.pop() is None
    assert queue.seconds_to_next() == 1.5
    clock.advance(1.5)
    assert queue.pop() == "a"
    assert queue.seconds_to_next() is None


def test_a_delay_of_nothing_is_at_once() -> None:
    queue = WorkQueue(Clock())
    queue.add_after("a", 0)
    assert queue.pop() == "a"


def test_each_failure_doubles_the_delay_until_a_success() -> None:
    queue = WorkQueue(Clock())
    assert [queue.add_rate_limited("a") for _ in range(3)] == [0.005, 0.01, 0.02]
    assert queue.add_rate_limited("b") == 0.005
    queue.forget("a")
    assert queue.add_rate_limited("a") == 0.005
    for _ in range(30):
        delay = queue.add_rate_limited("a")
    assert delay == MAX_BACKOFF_SECONDS
