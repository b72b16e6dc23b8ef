"""A backend without sandboxes, and a server in front of it on a real socket."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace

import httpx2
from mcp import Client
from mcp.client.client import ConnectMode
from mcp.client.streamable_http import streamable_http_client

from cli_mcp.execution import NotSessionOwner, Outcome, Progress, ProgressCallback, StreamOutput
from mcp_server.app import build_app
from mcp_server.authentication import Authenticator, StaticToken
from mcp_server.backend import (
    OpenSession,
    Readiness,
    SessionKey,
    SessionOutcome,
    SessionState,
    SessionToolResult,
)
from mcp_server.catalogue import Offering
from mcp_server.serving import serve
from mcp_server.settings import ServerSettings

TOKEN = "token-of-the-test"


def stream(data: bytes) -> StreamOutput:
    return StreamOutput(data, total_bytes=len(data))


def outcome(stdout: bytes = b"", stderr: bytes = b"", exit_code: int = 0) -> Outcome:
    return Outcome(exit_code, stream(stdout), stream(stderr), duration_ms=3, cwd="/workspace")


@dataclass
class FakeBackend:
    """`sleep N` sleeps, `fail` raises `error`; everything else ends at once with `outcome`."""

    outcome: Outcome = field(default_factory=lambda: outcome(b"hi\n"))
    session_state: SessionState = SessionState.CONTINUED
    error: Exception | None = None
    ready: Readiness = field(default_factory=lambda: Readiness(True))
    calls: list[tuple[SessionKey, str, float]] = field(default_factory=list)
    ended: list[tuple[SessionKey, bool]] = field(default_factory=list)
    interrupted: list[str] = field(default_factory=list)
    running: int = 0
    tool_calls: list[tuple[SessionKey, str, Mapping[str, object], float]] = field(default_factory=list)
    tool_result: Mapping[str, object] = field(default_factory=dict)
    held: list[SessionKey] = field(default_factory=list)
    sessions: list[tuple[str, OpenSession]] = field(default_factory=list)

    def reset(self) -> None:
        """As it was made; nothing may be running."""
        vars(self).update(vars(FakeBackend()))

    async def run(
        self, session: SessionKey, command: str, timeout_seconds: float, on_progress: ProgressCallback
    ) -> SessionOutcome:
        self.calls.append((session, command, timeout_seconds))
        if self.error is not None and command == "fail":
            raise self.error
        self.running += 1
        try:
            if command.startswith("sleep "):
                on_progress(Progress(0.0, output_bytes=12, last_line="half way"))
                await asyncio.sleep(float(command.split()[1]))
        except asyncio.CancelledError:
            await asyncio.sleep(0.05)  # a real one kills processes meanwhile, and must not be cut short
            self.interrupted.append(command)
            raise
        finally:
            self.running -= 1
        return SessionOutcome(self.outcome, self.session_state)

    async def call_tool(
        self, session: SessionKey, name: str, arguments: Mapping[str, object], timeout_seconds: float
    ) -> SessionToolResult:
        self.tool_calls.append((session, name, arguments, timeout_seconds))
        if self.error is not None:
            raise self.error
        return SessionToolResult(self.tool_result, self.session_state)

    async def end(self, session: SessionKey, *, delete_workspace: bool) -> None:
        if session.id == "of-another":
            raise NotSessionOwner("The session of-another belongs to another caller.")
        if self.error is not None:
            raise self.error
        self.ended.append((session, delete_workspace))

    @contextmanager
    def hold(self, session: SessionKey) -> Iterator[None]:
        self.held.append(session)
        try:
            yield
        finally:
            self.held.remove(session)

    def open_sessions(self, owner: str) -> list[OpenSession]:
        return [session for session_owner, session in self.sessions if session_owner == owner]

    def readiness(self) -> Readiness:
        return self.ready

    def session_count(self) -> int:
        return 3

    def warm_count(self) -> int:
        return 2


@dataclass
class RunningServer:
    port: int
    backend: FakeBackend
    stop: asyncio.Event
    stop_now: asyncio.Event
    stopped: asyncio.Task[None]

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return f"{self.origin}/mcp"

    def http(self, headers: dict[str, str] | None = None, timeout: float = 20) -> httpx2.AsyncClient:
        """A client with the token and a session; a header of `headers` wins."""
        base = {"Authorization": f"Bearer {TOKEN}", "X-Session-ID": "s1"}
        return httpx2.AsyncClient(
            base_url=self.origin, headers=base | (headers or {}), timeout=timeout, trust_env=False
        )

    @asynccontextmanager
    async def client(self, mode: ConnectMode, headers: dict[str, str] | None = None) -> AsyncIterator[Client]:
        """The SDK's own client."""
        async with (
            self.http(headers, timeout=60) as http,
            Client(streamable_http_client(self.url, http_client=http), mode=mode) as client,
        ):
            yield client


@asynccontextmanager
async def running_server(
    backend: FakeBackend | None = None,
    settings: ServerSettings | None = None,
    authenticator: Authenticator | None = None,
    *,
    drain_seconds: float = 10,
    tools: Sequence[str] = ("bash",),
    reach: Sequence[str] = (),
    default_session: bool = True,
) -> AsyncIterator[RunningServer]:
    backend = backend or FakeBackend()
    # Progress is quicker than in real life, so that tests need not wait for it.
    settings = settings or replace(ServerSettings(), progress_interval_seconds=0.1)
    app = build_app(
        backend,
        settings,
        authenticator or StaticToken(TOKEN),
        offering=lambda: Offering(tuple(tools), tuple(reach), default_session),
    )
    bound: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    stop, stop_now = asyncio.Event(), asyncio.Event()
    serving = asyncio.create_task(
        serve(
            app,
            "127.0.0.1",
            0,
            drain_seconds=drain_seconds,
            stop=stop,
            stop_now=stop_now,
            on_bound=bound.set_result,
        )
    )
    try:
        async with asyncio.timeout(20):
            port = await bound
        yield RunningServer(port, backend, stop, stop_now, serving)
    finally:
        stop.set()
        stop_now.set()
        await serving


async def eventually(condition: Callable[[], bool], seconds: float = 10) -> None:
    """Return once `condition` holds; fail when it never does."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)
