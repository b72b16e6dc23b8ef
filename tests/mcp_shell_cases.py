"""Runs cases of tests/data/shell.yaml over MCP, against any server by its URL and token."""

import base64
import time
import uuid
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any, Literal

import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.types import CallToolResult, TextContent

from tests.shell_cases import Case, Observed, command_of, problems

Mode = Literal["auto", "legacy"]


async def run_case(
    url: str,
    token: str | None,
    mode: Mode,
    case: Case,
    *,
    session: str | None = None,
    connect: Callable[..., httpx2.AsyncClient] = httpx2.AsyncClient,
    patience_seconds: float = 0,
) -> list[str]:
    """Run the steps of `case` in a session of their own, then end it; what went wrong, a line each.

    `connect` makes the HTTP client, of the options `headers` and `timeout`. `patience_seconds` is what each
    call may take longer than the case says, on a busy machine.
    """
    headers = {"X-Session-ID": session or new_session()}
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(connect(headers=headers, timeout=120))
        transport = streamable_http_client(url, http_client=http)
        client = await stack.enter_async_context(Client(transport, mode=mode))
        wrong = await _run_steps(client, case, patience_seconds)
        ended = await http.delete(
            f"{url.removesuffix('/mcp')}/sessions/{headers['X-Session-ID']}?workspace=true"
        )
        return wrong if ended.status_code == 204 else [*wrong, f"DELETE: {ended.status_code} {ended.text}"]


def new_session() -> str:
    return f"case-{uuid.uuid4().hex[:12]}"


async def _run_steps(client: Client, case: Case, patience_seconds: float) -> list[str]:
    wrong: list[str] = []
    saved: dict[str, str] = {}
    for number, step in enumerate(case.steps, 1):
        arguments: dict[str, Any] = {"command": command_of(step, saved)}
        if "timeout" in step:
            arguments["timeout"] = step["timeout"]
        started = time.monotonic()
        result = await client.call_tool("bash", arguments)
        seen = observed(result, time.monotonic() - started - patience_seconds)
        wrong += [f"{case.id}, step {number}: {problem}" for problem in problems(step, seen)]
        if "save_path" in step and seen.output_file is not None:
            saved[step["save_path"]] = seen.output_file
    return wrong


def observed(result: CallToolResult, seconds: float) -> Observed:
    content = result.structured_content
    if content is None:
        (block,) = result.content
        assert isinstance(block, TextContent)
        return Observed(seconds, bool(result.is_error), tool_error=block.text)
    assert isinstance(content, dict)
    decode = base64.b64decode if content["encoding"] == "base64" else str.encode
    return Observed(
        seconds,
        bool(result.is_error),
        exit_code=content["exit_code"],
        stdout=decode(content["stdout"]),
        stderr=decode(content["stderr"]),
        timed_out=content["timed_out"],
        truncated=content["truncated"],
        shell_restarted=content["shell_restarted"],
        background=tuple(content["background"]),
        output_file=content["output_file"],
    )
