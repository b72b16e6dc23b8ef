"""Talks to the agents in sandbox pods: signs, retries what is safe to retry, believes nothing.

An agent knows each call by its `jti` and runs it once: a call whose connection breaks is sent once more and
joins what runs. When the agent was started anew meanwhile, nobody knows how far the command came.
"""

import asyncio
import contextlib
import json
import logging
import secrets
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from cli_mcp.agent_api import (
    API_VERSION,
    BODY_LIMIT_BYTES,
    CANCEL_PATH,
    EVENT_LIMIT_BYTES,
    HEALTH_PATH,
    REFUSAL_LIMIT_BYTES,
    RUN_PATH,
    CancelRequest,
    Finished,
    RunRequest,
    ToolResult,
    tool_path,
)
from cli_mcp.agent_json import encode_cancel_request, encode_run_request
from cli_mcp.execution import (
    KEEP_OUTPUT,
    QUEUE_SECONDS,
    STREAM_LIMIT_BYTES,
    ExecutionError,
    ProgressCallback,
)
from cli_mcp.names import AGENT_PORT
from mcp_server.agents import answers, reading
from mcp_server.agents.agent import AgentAddress, AgentLost, AgentMisbehaved, AgentUnreachable, misbehaved
from mcp_server.agents.connection import AgentRequest, ConnectFailed, ConnectionBroken
from mcp_server.agents.limits import AnswerLimits
from mcp_server.agents.pool import ConnectionPool
from mcp_server.agents.reading import Answer, ReadAnswer, WrongBoot
from mcp_server.agents.signing import SignedCall

_log = logging.getLogger(__name__)

# What an agent may take beyond a command's own time: INT, TERM and KILL wait for each other.
GRACE_SECONDS = 20.0
# An agent says about once a second how far a command is.
SILENCE_SECONDS = 30.0
# How long a call waits for a container that is being started again.
RESTART_SECONDS = 10.0
_CANCEL_SECONDS = 3.0
_SMALL_SECONDS = 5.0
_TOOL_CHUNKS = 1024
_FIRST_POLL_SECONDS, _LAST_POLL_SECONDS = 0.01, 0.2
_PROGRESS_BYTES_PER_SECOND = 16 * 1024

_GET_HEALTH = AgentRequest("GET", HEALTH_PATH)
_SMALL = AnswerLimits(_SMALL_SECONDS, REFUSAL_LIMIT_BYTES)

T = TypeVar("T")


class Signer(Protocol):
    def token(self, call: SignedCall) -> str: ...


@dataclass(frozen=True, slots=True)
class _Call:
    """What is sent, again with the same `jti`, and what its answer may cost. `deadline` is of the loop."""

    agent: AgentAddress
    session_id: str
    path: str
    body: bytes = field(repr=False)
    limits: AnswerLimits
    deadline: float
    jti: str = field(default_factory=lambda: secrets.token_hex(16))


class AgentClient:
    """A SandboxAgent over HTTP. `on_error` gets a name for the metrics."""

    def __init__(
        self, signer: Signer, *, port: int = AGENT_PORT, on_error: Callable[[str], None] = lambda kind: None
    ) -> None:
        self._signer = signer
        self._connections = ConnectionPool(port)
        self._boots: dict[str, str] = {}
        self._on_error = on_error

    async def run(
        self,
        agent: AgentAddress,
        session_id: str,
        command: str,
        timeout_seconds: float,
        on_progress: ProgressCallback,
        output_bytes: int = STREAM_LIMIT_BYTES,
    ) -> Finished:
        """See SandboxAgent."""
        limits = AnswerLimits(
            SILENCE_SECONDS,
            EVENT_LIMIT_BYTES + REFUSAL_LIMIT_BYTES,
            _PROGRESS_BYTES_PER_SECOND,
            chunks=2 * reading.PROGRESS_AT_ONCE,
            chunks_per_second=reading.PROGRESS_PER_SECOND,
        )
        body = encode_run_request(RunRequest(command, timeout_seconds, output_bytes))
        deadline = _from_now(QUEUE_SECONDS + timeout_seconds + GRACE_SECONDS)
        call = _Call(agent, session_id, RUN_PATH, body, limits, deadline)
        return await self._interruptible(call, reading.run_reader(on_progress))

    async def call_tool(
        self,
        agent: AgentAddress,
        session_id: str,
        name: str,
        arguments: Mapping[str, object],
        timeout_seconds: float,
    ) -> ToolResult:
        """See SandboxAgent."""
        seconds = timeout_seconds + GRACE_SECONDS
        limits = AnswerLimits(seconds, BODY_LIMIT_BYTES, chunks=_TOOL_CHUNKS)
        body = json.dumps(arguments).encode()
        call = _Call(agent, session_id, tool_path(name), body, limits, _from_now(seconds))
        return await self._interruptible(call, reading.read_tool)

    async def wait_ready(self, agent: AgentAddress, deadline: float) -> None:
        """See SandboxAgent."""
        with self._counted(agent):
            await self._poll_health(agent, deadline)

    def forget(self, pod_uid: str) -> None:
        """See SandboxAgent."""
        self._boots.pop(pod_uid, None)
        self._connections.forget(pod_uid)

    def close(self) -> None:
        self._connections.close()

    # --- calls

    async def _interruptible(self, call: _Call, read: ReadAnswer[T]) -> T:
        try:
            with self._counted(call.agent):
                return await self._call(call, read)
        except asyncio.CancelledError as cancelled:
            interrupted = await self._cancel(call)
            if cancelled.args != (KEEP_OUTPUT,) or not interrupted:
                raise
            return await self._interrupted(call, read)

    async def _interrupted(self, call: _Call, read: ReadAnswer[T]) -> T:
        """What a call gave that was interrupted: whoever asks for it again gets the same answer.
        Raises CancelledError when there is none soon."""
        try:
            async with asyncio.timeout(_CANCEL_SECONDS):
                return await self._attempt(call, self._boots[call.agent.pod_uid], read, fresh=True)
        except (ConnectFailed, ConnectionBroken, TimeoutError, WrongBoot, KeyError):
            raise asyncio.CancelledError from None

    async def _call(self, call: _Call, read: ReadAnswer[T]) -> T:
        boot = self._boots.get(call.agent.pod_uid) or await self._learn_boot(call.agent)
        may_run = signed_again = waited = False
        while True:
            try:
                return await self._attempt(call, boot, read, fresh=may_run)
            except WrongBoot as started_anew:
                if may_run:
                    raise answers.lost("its container was started again meanwhile") from None
                if signed_again:
                    raise misbehaved("it is another start of the agent each time") from None
                signed_again, boot = True, started_anew.boot
                self._boots[call.agent.pod_uid] = boot
            except ConnectFailed:
                if may_run:
                    raise answers.lost("it does not answer any more") from None
                if waited:
                    raise answers.unreachable() from None
                waited = True
                boot = await self._learn_boot(call.agent)
            except ConnectionBroken:
                if may_run:
                    raise answers.lost("the connection broke twice") from None
                may_run = True

    async def _attempt(self, call: _Call, boot: str, read: ReadAnswer[T], *, fresh: bool) -> T:
        agent = call.agent
        token = self._signer.token(
            SignedCall(agent.pod_uid, boot, call.session_id, "POST", call.path, call.body, call.jti)
        )
        headers = (("Authorization", f"Bearer {token}"), ("Content-Type", "application/json"))
        request = AgentRequest("POST", call.path, headers, call.body)
        async with self._connections.connection(agent, fresh=fresh) as connection:
            head = await connection.send(request, call.limits, call.deadline)
            answer = Answer(head, connection, agent.pod_uid, boot)
            if answer.status == 200:
                return await read(answer)
            raise await reading.read_refusal(answer)

    async def _cancel(self, call: _Call) -> bool:
        """Interrupt what `call` started; whether the agent was told. Otherwise it does so itself, 5 s after
        the connection broke."""
        boot = self._boots.get(call.agent.pod_uid)
        if boot is None:
            return False  # nothing was sent
        body = encode_cancel_request(CancelRequest(call.jti))
        cancellation = _Call(
            call.agent, call.session_id, CANCEL_PATH, body, _SMALL, _from_now(_CANCEL_SECONDS)
        )
        try:
            async with asyncio.timeout(_CANCEL_SECONDS):
                await self._attempt(cancellation, boot, reading.read_empty, fresh=False)
            return True
        except (ConnectFailed, ConnectionBroken, TimeoutError, WrongBoot, ExecutionError):
            _log.info(
                "pod %s could not be told to interrupt a command",
                call.agent.pod_uid,
                extra={"client": call.agent.pod_uid},
            )
            return False

    async def _learn_boot(self, agent: AgentAddress) -> str:
        """Raises AgentUnreachable when the agent is not ready soon."""
        await self._poll_health(agent, _from_now(RESTART_SECONDS))
        return self._boots[agent.pod_uid]

    async def _poll_health(self, agent: AgentAddress, deadline: float) -> None:
        loop = asyncio.get_running_loop()
        poll_seconds = _FIRST_POLL_SECONDS
        problem: str | None = "it does not answer"
        while loop.time() < deadline:
            try:
                async with asyncio.timeout_at(deadline):
                    problem = await self._health(agent)
            except (ConnectFailed, ConnectionBroken, TimeoutError):
                problem = "it does not answer"
            if problem is None:
                return
            await asyncio.sleep(poll_seconds)
            poll_seconds = min(poll_seconds * 1.5, _LAST_POLL_SECONDS)
        raise AgentUnreachable(f"The sandbox did not become ready in time: {problem}. Try again in a moment.")

    async def _health(self, agent: AgentAddress) -> str | None:
        """Why the agent is not ready; None when it is, and then its boot is known.

        Raises ConnectFailed, ConnectionBroken, AgentMisbehaved.
        """
        async with self._connections.connection(agent) as connection:
            head = await connection.send(_GET_HEALTH, _SMALL, _from_now(2 * _SMALL_SECONDS))
            answer = Answer(head, connection, agent.pod_uid)
            health = await reading.read_health(answer)
        if answer.status == 503:
            return answers.printable(health.detail)
        if API_VERSION not in health.versions:
            raise AgentUnreachable("The sandbox's agent is of another version than this server.")
        self._boots[agent.pod_uid] = health.identity.boot
        return None

    @contextlib.contextmanager
    def _counted(self, agent: AgentAddress) -> Iterator[None]:
        try:
            yield
        except (AgentUnreachable, AgentLost, AgentMisbehaved) as error:
            name = _ERROR_NAMES[type(error)]
            self._on_error(name)
            _log.warning(
                "the agent of pod %s: %s: %s", agent.pod_uid, name, error, extra={"client": agent.pod_uid}
            )
            raise


def _from_now(seconds: float) -> float:
    return asyncio.get_running_loop().time() + seconds


_ERROR_NAMES: Mapping[type[Exception], str] = {
    AgentUnreachable: "unreachable",
    AgentLost: "lost",
    AgentMisbehaved: "misbehaved",
}
