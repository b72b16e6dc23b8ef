"""The agent's HTTP interface: what each path does, for whom. See cli_mcp.agent_api for the messages."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from functools import partial
from typing import Any, TypeVar

from cli_mcp.agent_api import (
    CANCEL_PATH,
    HEALTH_PATH,
    REFUSAL_STATUS,
    RUN_PATH,
    Accepted,
    AgentIdentity,
    Finished,
    Health,
    Refusal,
    RefusalKind,
    ToolResult,
    tool_name,
)
from cli_mcp.agent_json import (
    decode_cancel_request,
    decode_run_request,
    decode_tool_arguments,
    encode_health,
    encode_refusal,
    encode_run_event,
    encode_tool_answer,
)
from cli_mcp.agent_token import Claims
from cli_mcp.execution import Outcome, ProgressCallback
from cli_mcp.strict_json import MalformedMessage
from sandbox_agent.authentication import Authenticator
from sandbox_agent.calls import Call, CallTable
from sandbox_agent.http_head import RequestHead
from sandbox_agent.http_server import Endpoint, Pieces, Response
from sandbox_agent.refused import Refused

_JSON = "application/json"
_NDJSON = "application/x-ndjson"
# An answer that is here this soon goes in one piece: each further one wakes the server once more.
_SHORT_SECONDS = 0.05

RunCommand = Callable[[str, float, ProgressCallback, int], Awaitable[Outcome]]
"""See ShellSession.run."""
CallTool = Callable[[str, Mapping[str, Any]], Awaitable[Mapping[str, Any]]]
"""Calls a typed tool by its name, with arguments that are not checked yet, and returns a JSON object.
Raises ExecutionError: ToolFailed when the tool says no, else when name or arguments are wrong."""

T = TypeVar("T")


class AgentApi:
    """An http_server.Application. Until `not_ready` is empty, all but health is refused with what it says.

    `on_bound` is called once, before the first command, and `on_answered` after each result that a client
    has taken in; `answered` says whether there was one before.
    """

    def __init__(
        self,
        identity: AgentIdentity,
        authenticator: Authenticator,
        calls: CallTable,
        *,
        run: RunCommand,
        call_tool: CallTool,
        on_bound: Callable[[], None],
        on_answered: Callable[[], None],
        answered: Callable[[], bool],
    ) -> None:
        self._identity = identity
        self._authenticator = authenticator
        self._calls = calls
        self._run_command = run
        self._call_tool = call_tool
        self._on_bound = on_bound
        self._on_answered = on_answered
        self._answered = answered
        self._posts: Mapping[str, Callable[[Claims, bytes], Awaitable[Response]]] = {
            RUN_PATH: self._run,
            CANCEL_PATH: self._cancel,
        }
        self.not_ready = "the agent is starting"

    def route(self, head: RequestHead) -> Endpoint:
        if head.path == HEALTH_PATH:
            _expect_method(head, "GET")
            if head.body_bytes:
                raise Refused(RefusalKind.MALFORMED, "a GET with a body")
            return self._health
        post = self._posts.get(head.path)
        if post is None and (name := tool_name(head.path)) is not None:
            post = partial(self._tool, name)
        if post is None:
            raise Refused(RefusalKind.NOT_FOUND, "no such path")
        _expect_method(head, "POST")
        if self.not_ready:
            raise Refused(RefusalKind.NOT_ISOLATED, self.not_ready)
        claims = self._authenticator.check_token(head.fields.get("authorization"), head.method, head.path)
        return partial(post, claims)

    def refusal(self, refused: Refused) -> Response:
        body = encode_refusal(Refusal(refused.kind, refused.message, self._identity))
        return Response(REFUSAL_STATUS[refused.kind], _JSON, body)

    async def _health(self, body: bytes) -> Response:
        status = 503 if self.not_ready else 200
        return Response(status, _JSON, encode_health(Health(self._identity, detail=self.not_ready)))

    async def _run(self, claims: Claims, body: bytes) -> Response:
        self._authenticator.check_body(claims, body)
        request = _decoded(decode_run_request, body)

        async def work(on_progress: ProgressCallback) -> bytes:
            outcome = await self._run_command(
                request.command, request.timeout_seconds, on_progress, request.output_bytes
            )
            return encode_run_event(Finished(outcome, first=not self._answered()))

        self._admit(claims)
        call = self._calls.enter(claims.jti, _content(claims), work, encode_run_event)
        accepted = encode_run_event(Accepted(self._identity))
        answer = (
            accepted + await call.result()
            if await call.ends_within(_SHORT_SECONDS)
            else Pieces(self._events(accepted, call), call.result)
        )
        return Response(200, _NDJSON, answer, on_sent=lambda: self._sent(call))

    async def _events(self, accepted: bytes, call: Call) -> AsyncGenerator[bytes, None]:
        yield accepted
        async with aclosing(call.follow()) as reports:
            async for progress in reports:
                yield encode_run_event(progress)

    def _sent(self, call: Call) -> None:
        if not call.failed:
            self._on_answered()

    async def _tool(self, name: str, claims: Claims, body: bytes) -> Response:
        self._authenticator.check_body(claims, body)
        arguments = _decoded(decode_tool_arguments, body)

        async def work(on_progress: ProgressCallback) -> bytes:
            value = await self._call_tool(name, arguments)
            return encode_tool_answer(ToolResult(value, first=not self._answered()))

        self._admit(claims)
        call = self._calls.enter(claims.jti, _content(claims), work, encode_tool_answer)
        async with aclosing(call.follow()) as reports:
            async for _ in reports:
                pass
        return Response(200, _JSON, await call.result(), on_sent=lambda: self._sent(call))

    async def _cancel(self, claims: Claims, body: bytes) -> Response:
        self._authenticator.check_body(claims, body)
        request = _decoded(decode_cancel_request, body)
        self._admit(claims)
        self._calls.interrupt(request.jti, "It was cancelled.")
        return Response(200, _JSON, b"{}")

    def _admit(self, claims: Claims) -> None:
        """A call that is known may be asked for again when its token is out of date, and only then."""
        if not self._calls.knows(claims.jti):
            self._authenticator.check_time(claims)
        if self._authenticator.bind(claims):
            self._on_bound()


def _expect_method(head: RequestHead, method: str) -> None:
    if head.method != method:
        raise Refused(RefusalKind.METHOD_NOT_ALLOWED, f"only {method} is allowed here")


def _decoded(decode: Callable[[bytes], T], body: bytes) -> T:
    try:
        return decode(body)
    except MalformedMessage as error:
        raise Refused(RefusalKind.MALFORMED, str(error)) from None


def _content(claims: Claims) -> str:
    return f"{claims.htu} {claims.body}"
