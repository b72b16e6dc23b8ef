"""A real agent as a process of an unprivileged user, if need be as pid 1, and a client that signs."""

import asyncio
import contextlib
import hashlib
import json
import os
import random
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from cli_mcp.agent_api import (
    CANCEL_PATH,
    HEALTH_PATH,
    RUN_PATH,
    CancelRequest,
    Failure,
    Finished,
    RunEvent,
    RunRequest,
    ToolResult,
    tool_path,
)
from cli_mcp.agent_json import decode_run_event, decode_tool_answer, encode_cancel_request, encode_run_request
from cli_mcp.execution import Outcome
from tests.local_runtime.users import as_unprivileged_user, passable_directory
from tests.sandbox_agent.tokens import token

POD_UID = "0c6d1b1e-pod"
KEY = Ed25519PrivateKey.generate()
AS_PID_ONE = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")


@dataclass
class RunningAgent:
    """`directory` has keys, state and workspace, and outlives the process."""

    directory: Path
    port: int
    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    prefix: tuple[str, ...] = ()
    process: "subprocess.Popen[bytes] | None" = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def workspace(self) -> Path:
        return self.directory / "workspace"

    def start(self) -> None:
        """Start it, and come back before it serves."""
        environment = {"LANG": "C.UTF-8", "CLI_MCP_POD_UID": POD_UID, **self.environment}
        command: list[str | Path] = [
            *self.prefix,
            *as_unprivileged_user(),
            *("env", *(f"{name}={value}" for name, value in environment.items())),
            *(sys.executable, "-I", "-m", "sandbox_agent.main"),
            *("--listen", f":{self.port}", "--public-keys", self.directory / "keys"),
            *("--state-dir", self.directory / "state", "--workspace", self.workspace),
            *self.arguments,
        ]
        with (self.directory / "log").open("ab") as log:
            self.process = subprocess.Popen(command, env={"PATH": os.environ["PATH"]}, stderr=log)

    @property
    def log(self) -> str:
        return (self.directory / "log").read_text()

    @property
    def pid(self) -> int:
        """Of the agent itself, as seen from here."""
        assert self.process is not None
        if not self.prefix:
            return self.process.pid
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return int(children[0])

    def wait(self, seconds: float = 15) -> int:
        assert self.process is not None
        return self.process.wait(seconds)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Signal it from outside of its pid namespace and wait for its exit status."""
        with contextlib.suppress(ProcessLookupError, IndexError):
            os.kill(self.pid, number)
        return self.wait()

    def close(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.stop(signal.SIGKILL)


@contextmanager
def agent_directory() -> Iterator[Path]:
    with passable_directory() as path:
        for name in ("keys", "state", "workspace"):
            (path / name).mkdir()
            (path / name).chmod(0o777)  # like the root of an emptyDir, whose owner is root
        pem = KEY.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        (path / "keys/a1.pem").write_bytes(pem)
        yield path


def free_port() -> int:
    """Below the range from which the kernel gives ports to clients, ip(7)."""
    while True:
        try:
            with socket.create_server(("", random.randrange(20_000, 32_000))) as listening:
                return int(listening.getsockname()[1])
        except OSError:
            continue  # taken


class SignedClient:
    """Calls an agent as a server of the session `session` would."""

    def __init__(self, agent: RunningAgent, session: str = "session-1") -> None:
        self.agent = agent
        self.session = session
        self.boot = ""
        self.http = httpx2.AsyncClient(base_url=agent.url, timeout=60, trust_env=False)

    async def __aenter__(self) -> "SignedClient":
        await self.wait_ready()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.http.aclose()

    async def wait_ready(self, seconds: float = 15) -> None:
        deadline = time.monotonic() + seconds
        while True:
            with contextlib.suppress(httpx2.TransportError):
                answer = await self.http.get(HEALTH_PATH)
                if answer.status_code == 200:
                    self.boot = answer.json()["boot"]
                    return
            assert time.monotonic() < deadline, self.agent.log
            await asyncio.sleep(0.01)

    def headers(self, path: str, content: bytes, /, **claims: Any) -> dict[str, str]:
        """The signature of a request; `claims` changes them."""
        issued_at = int(time.time())
        payload = {
            "iss": "server-uid",
            "sub": self.session,
            "aud": POD_UID,
            "boot": self.boot,
            "htm": "POST",
            "htu": path,
            "body": hashlib.sha256(content).hexdigest(),
            "jti": secrets.token_hex(16),
            "iat": issued_at,
            "exp": issued_at + 60,
            **claims,
        }
        return {"Authorization": f"Bearer {token(payload, KEY)}"}

    async def post(self, path: str, content: bytes, /, **claims: Any) -> httpx2.Response:
        return await self.http.post(path, content=content, headers=self.headers(path, content, **claims))

    async def events(
        self, command: str, timeout_seconds: float = 20, **claims: Any
    ) -> AsyncIterator[RunEvent]:
        """Of a run, as they come."""
        body = encode_run_request(RunRequest(command, timeout_seconds))
        headers = self.headers(RUN_PATH, body, **claims)
        async with self.http.stream("POST", RUN_PATH, content=body, headers=headers) as answer:
            assert answer.status_code == 200, await answer.aread()
            async for line in answer.aiter_lines():
                yield decode_run_event(line.encode())

    async def run(self, command: str, timeout_seconds: float = 20, **claims: Any) -> Outcome:
        event = await self.last_event(command, timeout_seconds, **claims)
        assert isinstance(event, Finished), event
        return event.outcome

    async def last_event(self, command: str, timeout_seconds: float = 20, **claims: Any) -> RunEvent:
        return [event async for event in self.events(command, timeout_seconds, **claims)][-1]

    async def out(self, command: str, timeout_seconds: float = 20) -> str:
        outcome = await self.run(command, timeout_seconds)
        return outcome.stdout.head.decode()

    async def cancel(self, jti: str) -> None:
        answer = await self.post(CANCEL_PATH, encode_cancel_request(CancelRequest(jti)))
        assert (answer.status_code, answer.json()) == (200, {})

    async def tool(self, tool: str, /, **arguments: Any) -> ToolResult | Failure:
        answer = await self.post(tool_path(tool), json.dumps(arguments).encode())
        assert answer.status_code == 200, answer.content
        return decode_tool_answer(answer.content)
