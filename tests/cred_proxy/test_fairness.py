"""Bounds and turns between clients."""

import asyncio
import time

from cred_proxy.fairness import PASS_SECONDS, ConnectionLimit, Turns


def test_connections_are_counted_by_client_and_in_total() -> None:
    limit = ConnectionLimit(per_client=2, total=3)
    assert [limit.admit(client) for client in ("a", "a", "a", "b", "b")] == [True, True, False, True, False]
    assert not limit.idle.is_set()
    limit.release("a")
    assert limit.connections_of("a") == 1
    assert limit.admit("b")
    assert not limit.admit("a")
    for client in ("a", "b", "b"):
        limit.release(client)
    assert limit.open_connections == 0
    assert limit.connections_of("a") == 0
    assert limit.idle.is_set()


def test_whoever_has_most_gives_one_up_when_all_are_taken() -> None:
    limit = ConnectionLimit(per_client=10, total=5)
    for client in ("many", "many", "many", "two"):
        limit.admit(client)
    assert limit.crowded_out_by("new") is None, "one is free"
    limit.admit("two")
    assert limit.crowded_out_by("new") == "many"
    assert limit.crowded_out_by("many") is None
    assert limit.crowded_out_by("two") is None, "it would only change who has three"


def busy() -> None:
    end = time.perf_counter() + PASS_SECONDS / 2
    while time.perf_counter() < end:
        pass


async def test_a_busy_client_waits_for_itself_and_not_the_others_for_it() -> None:
    turns, order = Turns(), []

    def work(client: str) -> None:
        busy()
        order.append(client)

    for _ in range(50):
        turns.run("busy", lambda: work("busy"))
    await asyncio.sleep(0)
    turns.run("quiet", lambda: work("quiet"))
    turns.run("other", lambda: work("other"))
    while len(order) < 52:
        await asyncio.sleep(0)
    assert order.index("quiet") < 8
    assert order.index("other") < 8


async def test_a_pass_of_the_loop_is_short_whatever_waits() -> None:
    turns, passes, done = Turns(), 0, 0

    def work() -> None:
        nonlocal done
        busy()
        done += 1

    for _ in range(40):
        turns.run("one", work)
    while done < 40:
        await asyncio.sleep(0)
        passes += 1
    assert passes >= 15


async def test_a_turn_that_is_given_up_goes_to_the_next() -> None:
    turns, order = Turns(), []

    async def work(name: int) -> None:
        await turns.take("one", PASS_SECONDS)
        order.append(name)

    tasks = [asyncio.create_task(work(name)) for name in range(6)]
    await asyncio.sleep(0)
    for task in tasks[2:4]:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert order == [0, 1, 4, 5]


async def test_turns_of_one_client_come_in_order_and_leave_nothing_behind() -> None:
    now = 0.0
    turns, order = Turns(lambda: now), []

    async def work(name: int) -> None:
        await turns.take("one", PASS_SECONDS)
        order.append(name)

    await asyncio.gather(*(work(name) for name in range(100)))
    assert order == list(range(100))
    assert turns._waiting == {}
    now = 60.0
    turns.charge("two", PASS_SECONDS)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert set(turns._used) <= {"two"}
