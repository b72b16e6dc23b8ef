"""Reads the answers of agents to their end; what is not exactly the protocol raises AgentMisbehaved."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

import h11

from cli_mcp.agent_api import (
    EVENT_LIMIT_BYTES,
    REFUSAL_STATUS,
    Accepted,
    Failure,
    Finished,
    Health,
    RefusalKind,
    RunEvent,
    ToolResult,
)
from cli_mcp.agent_json import decode_health, decode_refusal, decode_run_event, decode_tool_answer
from cli_mcp.execution import Progress, ProgressCallback
from cli_mcp.strict_json import MalformedMessage, members, parse
from mcp_server.agents.agent import misbehaved
from mcp_server.agents.answers import check_identity, failure_error, refusal_error
from mcp_server.agents.connection import AgentConnection
from mcp_server.agents.limits import Allowance

PROGRESS_AT_ONCE, PROGRESS_PER_SECOND = 20, 4

T = TypeVar("T")


class WrongBoot(Exception):
    """The agent was started anew and did not run the call."""

    def __init__(self, boot: str) -> None:
        super().__init__(boot)
        self.boot = boot


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer whose head is here. It must come from the pod `pod_uid`, and where `boot` is given, from that
    start of its agent."""

    head: h11.Response
    connection: AgentConnection
    pod_uid: str
    boot: str | None = None

    @property
    def status(self) -> int:
        return self.head.status_code

    def expect_type(self, content_type: bytes) -> None:
        if [value for name, value in self.head.headers if name == b"content-type"] != [content_type]:
            raise misbehaved("it is of another type")

    async def json(self, decode: Callable[[bytes], T]) -> T:
        self.expect_type(b"application/json")
        data = bytearray()
        async for piece in self.connection.body():
            data += piece
        return _decoded(decode, bytes(data))

    async def lines(self) -> AsyncIterator[bytes]:
        rest = bytearray()
        async for piece in self.connection.body():
            searched = len(rest)
            rest += piece
            while (end := rest.find(b"\n", searched)) >= 0:
                yield bytes(rest[:end])
                del rest[: end + 1]
                searched = 0
            if len(rest) > EVENT_LIMIT_BYTES:
                raise misbehaved("a line of it is too long")
        if rest:
            raise misbehaved("its last line has no end")


ReadAnswer = Callable[[Answer], Awaitable[T]]
"""Makes a result of an answer with status 200."""


def run_reader(on_progress: ProgressCallback) -> ReadAnswer[Finished]:
    """Reads the events of a run. Raises what the agent says the call failed with."""

    async def read(answer: Answer) -> Finished:
        answer.expect_type(b"application/x-ndjson")
        accepted = False
        final: Finished | Failure | None = None
        reports = _Reports(on_progress)
        async for line in answer.lines():
            event: RunEvent = _decoded(decode_run_event, line)
            if final is not None or accepted is isinstance(event, Accepted):
                raise misbehaved("its events are out of order")
            match event:
                case Accepted():
                    check_identity(event.identity, answer.pod_uid, answer.boot)
                    accepted = True
                case Progress():
                    reports.pass_on(event)
                case _:
                    final = event
        if final is None:
            raise misbehaved("it ends without an outcome")
        if isinstance(final, Failure):
            raise failure_error(final)
        return final

    return read


class _Reports:
    """Passes progress on, at an honest agent's rate."""

    def __init__(self, on_progress: ProgressCallback) -> None:
        self._on_progress = on_progress
        self._allowance = Allowance(PROGRESS_AT_ONCE, PROGRESS_PER_SECOND)
        self._clock = asyncio.get_running_loop().time
        self._started_at = self._clock()

    def pass_on(self, progress: Progress) -> None:
        if not self._allowance.spend(1, self._clock() - self._started_at):
            raise misbehaved("too much progress")
        self._on_progress(progress)


async def read_tool(answer: Answer) -> ToolResult:
    """A typed tool's result. Raises what the agent says the call failed with."""
    result = await answer.json(decode_tool_answer)
    if isinstance(result, Failure):
        raise failure_error(result)
    return result


async def read_empty(answer: Answer) -> None:
    await answer.json(lambda data: members(parse(data)))


async def read_health(answer: Answer) -> Health:
    """Health, of an agent that is ready (200) or not (503)."""
    if answer.status not in (200, 503):
        raise misbehaved("its health has an unknown status")
    health = await answer.json(decode_health)
    check_identity(health.identity, answer.pod_uid)
    return health


async def read_refusal(answer: Answer) -> Exception:
    """What an answer with another status than 200 means: WrongBoot, or an ExecutionError."""
    if answer.status not in REFUSAL_STATUS.values():
        raise misbehaved("it has an unknown status")
    refusal = await answer.json(decode_refusal)
    check_identity(refusal.identity, answer.pod_uid)
    if answer.status != REFUSAL_STATUS[refusal.kind]:
        raise misbehaved("its status does not fit its reason")
    if refusal.kind is RefusalKind.WRONG_BOOT:
        return WrongBoot(refusal.identity.boot)
    return refusal_error(refusal)


def _decoded(decode: Callable[[bytes], T], data: bytes) -> T:
    try:
        return decode(data)
    except MalformedMessage as error:
        # Messages of that type quote nothing of what was sent.
        raise misbehaved(str(error)) from None
