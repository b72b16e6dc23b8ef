"""A session of a running server, as the command line uses it. Loads the MCP library when it connects."""

import base64
import ipaddress
import json
import ssl
import urllib.parse
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cli_mcp.execution import MAX_TIMEOUT_SECONDS

if TYPE_CHECKING:
    import httpx2
    from mcp import Client
    from mcp.types import CallToolResult

DEFAULT_URL = "http://127.0.0.1:8080"
# A command's timeout covers the wait for its turn; making a sandbox and the answer's way come on top.
_READ_TIMEOUT_SECONDS = MAX_TIMEOUT_SECONDS + 60
_CONNECT_TIMEOUT_SECONDS = 10

OnProgress = Callable[[float, str], None]
"""Gets the seconds since the call began, and a line that says how it goes."""


class ClientError(Exception):
    """A call without a result; the message is for the person at the terminal."""


@dataclass(frozen=True, slots=True)
class Target:
    """`url` is that of the MCP endpoint; `token` None sends none; without `ca_file` the system's authorities
    count."""

    url: str
    session: str
    token: str | None
    ca_file: Path | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """Of a command that ran. The streams are exact bytes unless `truncated`: then their middle is missing
    and `output_file`, a path in the sandbox, has the rest."""

    exit_code: int
    stdout: bytes
    stderr: bytes
    cwd: str
    truncated: bool
    output_file: str | None


def endpoint_url(given: str) -> str:
    """The URL of the MCP endpoint for what was given: host:port, a server's URL or the endpoint's.

    Raises ClientError.
    """
    parts = urllib.parse.urlsplit(given if "://" in given else f"http://{given}")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ClientError(f"{given!r} is no server's URL. An example: {DEFAULT_URL}")
    path = parts.path if parts.path.strip("/") else "/mcp"
    return urllib.parse.urlunsplit((parts.scheme, parts.netloc, path, parts.query, ""))


def is_on_loopback(url: str) -> bool:
    host = urllib.parse.urlsplit(url).hostname or ""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def parse_result(result: "CallToolResult") -> Result:
    """What a `bash` call gave. Raises ClientError with the server's words when nothing ran."""
    content: Any = result.structured_content
    if not isinstance(content, dict) or "exit_code" not in content:
        raise ClientError("\n".join(getattr(block, "text", "") for block in result.content))
    decode = base64.b64decode if content["encoding"] == "base64" else str.encode
    return Result(
        exit_code=content["exit_code"],
        stdout=decode(content["stdout"]),
        stderr=decode(content["stderr"]),
        cwd=content["cwd"],
        truncated=content["truncated"],
        output_file=content["output_file"],
    )


class Session:
    """One session of a server, over one connection."""

    def __init__(self, client: "Client", explain: "Callable[[Exception], ClientError | None]") -> None:
        self._client = client
        self._explain = explain

    async def run(self, command: str, timeout_seconds: float | None, on_progress: OnProgress) -> Result:
        """Run `command`; cancelling this interrupts it. Raises ClientError when there is no result."""
        arguments: dict[str, object] = {"command": command}
        if timeout_seconds is not None:
            arguments["timeout"] = timeout_seconds

        async def report(progress: float, total: float | None, message: str | None) -> None:
            on_progress(progress, message or "")

        try:
            result = await self._client.call_tool("bash", arguments, progress_callback=report)
        except Exception as error:
            if (explained := self._explain(error)) is None:
                raise
            raise explained from error
        return parse_result(result)


@asynccontextmanager
async def connect(target: Target) -> AsyncIterator[Session]:
    """Raises ClientError when the server cannot be reached or turns us away."""
    import httpx2
    from mcp import Client, MCPError
    from mcp.client.streamable_http import streamable_http_client

    refusals: list[str] = []

    async def note_refusal(response: httpx2.Response) -> None:
        if response.is_error and (message := await _refusal(response)):
            refusals.append(message)

    def explain(error: Exception) -> ClientError | None:
        match _first(error):
            case ClientError() as known:
                return known
            case httpx2.TimeoutException():
                return ClientError(f"{target.url} does not answer.")
            case httpx2.HTTPError() as failed:
                return ClientError(f"No connection to {target.url}: {failed}. {_remedy(target, failed)}")
            case MCPError() as refused:
                return ClientError(refusals[-1] if refusals else f"{target.url} answers: {refused.message}")
        return None

    headers = {"X-Session-ID": target.session}
    if target.token is not None:
        headers["Authorization"] = f"Bearer {target.token}"
    http = httpx2.AsyncClient(
        headers=headers,
        timeout=httpx2.Timeout(_CONNECT_TIMEOUT_SECONDS, read=_READ_TIMEOUT_SECONDS),
        # Not through a proxy of the environment: the token is for the server alone.
        trust_env=False,
        verify=_trusting(target.ca_file) if target.ca_file else True,
        event_hooks={"response": [note_refusal]},
    )
    try:
        async with http, Client(streamable_http_client(target.url, http_client=http)) as client:
            yield Session(client, explain)
    except Exception as error:
        if (explained := explain(error)) is None:
            raise
        raise explained from error


def _remedy(target: Target, failed: "httpx2.HTTPError") -> str:
    if isinstance(_cause(failed), ssl.SSLCertVerificationError):
        return "Name who signed its certificate with --ca-file FILE, and the server as its certificate does."
    if is_on_loopback(target.url):
        return "Is `cli-mcp local` running, or `kubectl port-forward`?"
    return "Is the address right, and the server up?"


def _trusting(ca_file: Path) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca_file)
    except (OSError, ssl.SSLError) as error:
        raise ClientError(f"Cannot read the authority in {ca_file}: {error}") from None


async def _refusal(response: "httpx2.Response") -> str | None:
    """The server's own words for why it turned a request away, which the MCP library would not pass on."""
    try:
        body = json.loads(await response.aread())
    except ValueError:
        return None
    error = body.get("error") if isinstance(body, dict) else None
    return error if isinstance(error, str) else None


def _cause(error: BaseException) -> BaseException:
    """What was raised first, of errors that were raised because of one another."""
    while (earlier := error.__cause__ or error.__context__) is not None:
        error = earlier
    return error


def _first(error: BaseException) -> BaseException:
    """The error itself, out of the groups that task groups wrap it in."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
