"""Runs `cli-mcp local` as whoever a test wants and talks to it over plain HTTP."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import requests
import yaml

from local_runtime import cgroups
from tests.local_runtime.users import UNPRIVILEGED_UID, as_unprivileged_user, passable_directory

_START_SECONDS = 30
_RUN = "import sys; from cli_mcp.cli import main; sys.exit(main())"


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of a call: text for the model, and what is structured in it (nothing for a failure)."""

    text: str
    is_error: bool
    structured: Mapping[str, Any]

    @property
    def stdout(self) -> str:
        return str(self.structured["stdout"])

    @property
    def exit_code(self) -> int:
        return int(self.structured["exit_code"])


@dataclass
class Server:
    """A server that runs, and everything it has printed."""

    process: subprocess.Popen[str]
    root: Path
    screen: str
    log: list[str] = field(default_factory=list)

    @property
    def url(self) -> str:
        return self.screen.split()[4]

    @property
    def state(self) -> Path:
        return next(path for path in (self.root / "state").iterdir())

    @property
    def token(self) -> str:
        return (self.state / "token").read_text().strip()

    @property
    def pid(self) -> int:
        """The server itself, without what was put before its command."""
        return self.process.pid

    def headers(self, session: str) -> dict[str, str]:
        return {
            "Authorization": f"Bearer {self.token}",
            "X-Session-ID": session,
            "Accept": "application/json, text/event-stream",
        }

    def call(self, session: str, command: str, timeout: float = 60) -> Answer:
        return self.tool(session, "bash", timeout, command=command, timeout=timeout)

    def tool(self, session: str, name: str, wait_seconds: float = 60, /, **arguments: Any) -> Answer:
        """Call any tool; `wait_seconds` is how long it may take."""
        request = {
            "jsonrpc": "2.0",
            "id": 1,
            "method": "tools/call",
            "params": {"name": name, "arguments": arguments},
        }
        headers = self.headers(session)
        response = requests.post(self.url, json=request, headers=headers, timeout=wait_seconds + 30)
        response.raise_for_status()
        result = _last_message(response)["result"]
        return Answer(result["content"][0]["text"], result["isError"], result.get("structuredContent") or {})

    def end(self, session: str, *, workspace: bool = False) -> int:
        url = f"{self.url.removesuffix('/mcp')}/sessions/{session}"
        query = {"workspace": "true"} if workspace else {}
        return requests.delete(url, params=query, headers=self.headers(session), timeout=30).status_code

    def workspaces(self) -> list[Path]:
        """As the server sees them: those that are file systems of their own are mounted for it alone."""
        seen = f"/proc/{self.pid}/root" if self.process.poll() is None else ""
        return sorted(Path(f"{seen}{self.state}/sessions").iterdir())

    @property
    def has_file_systems(self) -> bool:
        """Whether the kernel holds each workspace to its limit."""
        return not any("file system of its own" in line for line in self.log)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(timeout=30)


def _last_message(response: requests.Response) -> dict[str, Any]:
    """The answer itself: plain JSON, or the last event of a stream."""
    body = response.content.decode()
    if response.headers["Content-Type"].startswith("text/event-stream"):
        body = [line for line in body.split("\n") if line.startswith("data: ")][-1].removeprefix("data: ")
    message: dict[str, Any] = json.loads(body)
    return message


def instance(**sandbox: Any) -> dict[str, Any]:
    """A CliMcpInstance whose spec.sandbox has these fields; small limits unless others are given."""
    limits = {"memory": "256Mi", "ephemeral-storage": "64Mi"}
    return {
        "apiVersion": "cli-mcp.redhat.com/v1alpha1",
        "kind": "CliMcpInstance",
        "metadata": {"name": "test"},
        "spec": {"sandbox": {"resources": {"limits": limits}, **sandbox}},
    }


@contextmanager
def running(
    *,
    unprivileged: bool = False,
    root: Path | None = None,
    arguments: tuple[str, ...] = (),
    proxy: Mapping[str, Any] | None = None,
    tools: Sequence[str] = ("bash",),
    ssh: Mapping[str, Any] | None = None,
    **sandbox: Any,
) -> Iterator[Server]:
    """A server with this spec.proxy and spec.ssh, these spec.tools and these fields of spec.sandbox, its
    state below `root`, ended if the test has not."""
    owner = UNPRIVILEGED_UID if unprivileged and os.geteuid() == 0 else None
    if root is None:
        with (
            passable_directory(owner) as made,
            running(
                unprivileged=unprivileged,
                root=made,
                arguments=arguments,
                proxy=proxy,
                tools=tools,
                ssh=ssh,
                **sandbox,
            ) as server,
        ):
            yield server
        return
    file = root / "instance.yaml"
    document = instance(**sandbox)
    document["spec"]["tools"] = list(tools)
    if proxy is not None:
        document["spec"]["proxy"] = proxy
    if ssh is not None:
        document["spec"]["ssh"] = ssh
    file.write_text(yaml.safe_dump(document))
    file.chmod(0o644)
    server = start(file, unprivileged=unprivileged, root=root, arguments=arguments)
    try:
        yield server
    finally:
        if server.process.poll() is None:
            server.stop()
        if os.geteuid() == 0:  # what a killed server left
            cgroups.prepare(cgroups.group_name(server.state), cgroups.own_mounts()).remove()


def command_line(file: Path, *, unprivileged: bool, root: Path, arguments: tuple[str, ...]) -> list[str]:
    prefix = as_unprivileged_user() if unprivileged else ()
    run = (sys.executable, "-c", _RUN, "local", str(file), "--listen", "127.0.0.1:0")
    return [*prefix, *run, "--state-dir", str(root / "state"), *arguments]


def start(file: Path, *, unprivileged: bool, root: Path, arguments: tuple[str, ...]) -> Server:
    environment = {**os.environ, "SERVER_SECRET": "swordfish", "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(
        command_line(file, unprivileged=unprivileged, root=root, arguments=arguments),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    server = Server(process, root, "")
    assert process.stdout is not None and process.stderr is not None
    threading.Thread(target=server.log.extend, args=(process.stderr,), daemon=True).start()
    giving_up = threading.Timer(_START_SECONDS, process.kill)
    giving_up.start()
    for line in process.stdout:
        server.screen += line
        if line.startswith("Every X-Session-ID"):
            break
    else:
        process.wait()
        raise AssertionError(f"the server did not start: {server.log}")
    giving_up.cancel()
    return server
