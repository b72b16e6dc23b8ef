"""The watch over the memory of sockets."""

import asyncio

import pytest

from local_runtime.socket_watch import SocketWatch

LIMIT_BYTES = 1 << 20


class Recorder:
    def __init__(self, held_bytes: int) -> None:
        self.held_bytes = held_bytes
        self.stopped: list[str] = []

    def socket_bytes(self) -> int:
        return self.held_bytes

    def stop_at_once(self, reason: str) -> None:
        self.stopped.append(reason)


@pytest.mark.parametrize(("held_bytes", "stopped"), [(0, 0), (2 * LIMIT_BYTES, 0), (2 * LIMIT_BYTES + 1, 1)])
def test_whoever_holds_far_more_than_the_limit_is_stopped_and_nobody_else(
    held_bytes: int, stopped: int
) -> None:
    watch = SocketWatch(LIMIT_BYTES)
    holder, other = Recorder(held_bytes), Recorder(0)
    watch.add(holder)
    watch.add(other)
    watch.look()
    assert (len(holder.stopped), len(other.stopped)) == (stopped, 0)
    watch.remove(holder)
    watch.look()
    assert len(holder.stopped) == stopped


async def test_it_looks_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("local_runtime.socket_watch._INTERVAL_SECONDS", 0.01)
    watch = SocketWatch(LIMIT_BYTES)
    holder = Recorder(3 * LIMIT_BYTES)
    watch.start()
    watch.add(holder)
    try:
        async with asyncio.timeout(10):
            while not holder.stopped:
                await asyncio.sleep(0.01)
    finally:
        await watch.close()
    assert "2 MiB" in holder.stopped[0]
