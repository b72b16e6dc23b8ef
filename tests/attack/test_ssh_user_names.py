"""Whether the time of one refused key tells which user names an SSH gateway has routes for."""

import asyncio
import contextlib
import random
import time
from pathlib import Path

import asyncssh
from asyncssh.constants import MSG_USERAUTH_FAILURE

from ssh_gateway.admission import Limits
from tests.ssh_gateway.harness import OTHER_KEY, RunningGateway, public, running_gateway

_PAIRS = 300
# Of 300 coins more than this share show the same side once in 500 times.
_SHARE_OF_COINS = 0.59
# A Secret that is nearly full: the more there is to read, the more there is to tell.
_KEYS = 8000


class _Timed(asyncssh.SSHClient):
    """How long the gateway took to refuse the one key that it was offered."""

    offered_at = 0.0
    seconds = 0.0

    def connection_made(self, conn: asyncssh.SSHClientConnection) -> None:
        received = conn.log_received_packet

        def log_received_packet(pkttype: int, *rest: object, **more: object) -> None:
            if pkttype == MSG_USERAUTH_FAILURE and self.offered_at:
                self.seconds = time.perf_counter() - self.offered_at
            received(pkttype, *rest, **more)  # type: ignore[arg-type]

        conn.log_received_packet = log_received_packet  # type: ignore[method-assign]

    def public_key_auth_requested(self) -> asyncssh.SSHKey | None:
        if self.offered_at:
            return None
        self.offered_at = time.perf_counter()
        return OTHER_KEY


async def refusal_seconds(gateway: RunningGateway, username: str) -> float:
    client = _Timed()
    with contextlib.suppress(asyncssh.PermissionDenied):
        await gateway.connect(username, [], client_factory=lambda: client)
    assert client.seconds > 0
    return client.seconds


async def test_one_refused_key_does_not_tell_a_user_name(tmp_path: Path) -> None:
    """Of pairs of a known and an unknown name the known one takes longer as often as a coin shows heads."""
    keys = [f"{public(OTHER_KEY)[:-6]}{number:06}" for number in range(_KEYS)]
    limits = Limits(connections_per_minute_per_address=100_000)
    known_took_longer = 0
    async with running_gateway(tmp_path, authorized=keys, limits=limits) as gateway:
        for number in range(_PAIRS):
            names = [f"agent-{number}", f"Agent-{number}"]
            seconds = {}
            for name in random.sample(names, 2):
                seconds[name] = await refusal_seconds(gateway, name)
                await asyncio.sleep(0)
            known_took_longer += seconds[names[0]] > seconds[names[1]]
    share = known_took_longer / _PAIRS
    told = max(share, 1 - share)
    print(f"the known name took longer in {share:.1%} of {_PAIRS} pairs; {told:.1%} are told")
    assert told <= _SHARE_OF_COINS
