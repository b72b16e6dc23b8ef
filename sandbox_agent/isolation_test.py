"""Shows that the network lets this pod out to nothing but the proxy, before a command may run.

Each round connects to the proxy, as a control, and to what a sandbox must not reach. Only the sandbox's own
policy can close the proxy's other port, which is open to everybody else.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from cli_mcp.names import PROXY_METRICS_PORT, PROXY_PORT

GIVE_UP_SECONDS = 15.0
"""How long a leak may last: network plugins enforce a policy some time after a pod has started."""
ROUNDS = 2
"""How many in a row must be clean."""
_CONTROL_SECONDS = 2.0
# What is not blocked answers as fast as the control does; to be sure it gets several times as long.
_LEAST_SILENCE_SECONDS, _MOST_SILENCE_SECONDS = 0.075, 3.0
_SILENCE_FACTOR = 10
_PAUSE_SECONDS = 0.1

Connect = Callable[[str, int], Awaitable[None]]
"""Opens a TCP connection and closes it. Raises OSError."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """`name` is for an operator."""

    name: str
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Probes:
    """What a sandbox reaches, and what it must not reach."""

    control: Endpoint
    forbidden: tuple[Endpoint, ...]


@dataclass(frozen=True, slots=True)
class Round:
    """What one round saw: whether the control connected, and the names of what else did."""

    control: bool
    leaks: tuple[str, ...]


class Verdict(Enum):
    ISOLATED = auto()
    UNDECIDED = auto()
    NOT_ISOLATED = auto()


def probes(proxy_host: str, environment: Mapping[str, str]) -> Probes:
    """The kubelet names the API server in every container's environment. The metadata service of cloud nodes
    hands out the node's credentials, and has the same address everywhere."""
    forbidden = [
        Endpoint("the proxy's metrics port", proxy_host, PROXY_METRICS_PORT),
        Endpoint("the node's metadata service", "169.254.169.254", 80),
    ]
    host, port = environment.get("KUBERNETES_SERVICE_HOST"), environment.get("KUBERNETES_SERVICE_PORT", "443")
    if host and port.isdecimal():
        forbidden.append(Endpoint("the API server", host, int(port)))
    return Probes(Endpoint("the proxy", proxy_host, PROXY_PORT), tuple(forbidden))


def verdict(rounds: Sequence[Round], elapsed_seconds: float) -> Verdict:
    """A leak that lasts is proof. That nothing at all connects is none: the proxy may be away."""
    last = rounds[-ROUNDS:]
    if len(last) == ROUNDS and all(each.control and not each.leaks for each in last):
        return Verdict.ISOLATED
    if elapsed_seconds >= GIVE_UP_SECONDS and last and last[-1].leaks:
        return Verdict.NOT_ISOLATED
    return Verdict.UNDECIDED


def explanation(last: Round) -> str:
    """Why the last round was not clean, for an operator."""
    if last.leaks:
        return f"the sandbox is not isolated: it reaches {' and '.join(last.leaks)}"
    return "the proxy cannot be reached" if not last.control else "the network is being tested"


async def wait_for_isolation(
    tested: Probes,
    report: Callable[[str], None],
    *,
    connect: Connect | None = None,
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> bool:
    """Whether the pod is isolated; returns when that is decided. `report` gets explanations meanwhile."""
    started = clock()
    rounds: list[Round] = []
    while True:
        rounds = [*rounds[1 - ROUNDS :], await _round(tested, connect or _connect, clock)]
        decided = verdict(rounds, clock() - started)
        if decided is not Verdict.UNDECIDED:
            return decided is Verdict.ISOLATED
        report(explanation(rounds[-1]))
        if rounds[-1].leaks or not rounds[-1].control:
            await pause(_PAUSE_SECONDS)


async def _round(tested: Probes, connect: Connect, clock: Callable[[], float]) -> Round:
    """All at the same time; what is forbidden has lost when it is not there some time after the control."""
    started = clock()
    attempts = {
        endpoint.name: asyncio.create_task(_connects(connect, endpoint)) for endpoint in tested.forbidden
    }
    try:
        async with asyncio.timeout(_CONTROL_SECONDS):
            control = await _connects(connect, tested.control)
    except TimeoutError:
        control = False
    done, late = await asyncio.wait(attempts.values(), timeout=_silence_seconds(clock() - started))
    for attempt in late:
        attempt.cancel()
    await asyncio.gather(*late, return_exceptions=True)
    return Round(
        control, tuple(name for name, attempt in attempts.items() if attempt in done and attempt.result())
    )


def _silence_seconds(control_seconds: float) -> float:
    return min(max(_LEAST_SILENCE_SECONDS, _SILENCE_FACTOR * control_seconds), _MOST_SILENCE_SECONDS)


async def _connects(connect: Connect, endpoint: Endpoint) -> bool:
    try:
        await connect(endpoint.host, endpoint.port)
    except OSError:
        return False  # refused, unreachable, or a name that is not known: all the same here
    return True


async def _connect(host: str, port: int) -> None:
    _, writer = await asyncio.open_connection(host, port)
    writer.transport.abort()
