"""Bounds and turns between clients."""

import asyncio

from cred_proxy.fairness import ConnectionLimit, Turns


def test_connections_are_counted_by_client_and_in_total() -> None:
    limit = ConnectionLimit(per_client=2, total=3)
    assert [limit.admit(client) for client in ("a", "a", "a", "b", "b")] == [True, True, False, True, False]
    assert not limit.idle.is_set()
    limit.release("a")
    assert limit.is_connected("a")
    assert limit.admit("b")
    assert not limit.admit("a")
    for client in ("a", "b", "b"):
        limit.release(client)
    assert limit.open_connections == 0
    assert not limit.is_connected("a")
    assert limit.idle.is_set()


async def test_a_busy_client_waits_for_itself_and_not_the_others_for_it() -> None:
    turns, order = Turns(), []

    async def work(client: str) -> None:
        await turns.take(client)
        order.append(client)

    busy = [asyncio.create_task(work("busy")) for _ in range(50)]
    await asyncio.sleep(0)
    await asyncio.gather(*busy, asyncio.create_task(work("quiet")), asyncio.create_task(work("other")))
    assert order.index("quiet") < 5
    assert order.index("other") < 5
    assert order.count("busy") == 50


async def test_a_turn_that_is_given_up_goes_to_the_next() -> None:
    turns, order = Turns(), []

    async def work(name: int) -> None:
        await turns.take("one")
        order.append(name)

    tasks = [asyncio.create_task(work(name)) for name in range(6)]
    await asyncio.sleep(0)
    for task in tasks[2:4]:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert order == [0, 1, 4, 5]


async def test_turns_of_one_client_come_in_order_and_leave_nothing_behind() -> None:
    turns, order = Turns(), []

    async def work(name: int) -> None:
        await turns.take("one")
        order.append(name)

    await asyncio.gather(*(work(name) for name in range(100)))
    await asyncio.sleep(0)
    assert order == list(range(100))
    assert turns._waiting == {}
    assert turns._served == set()
