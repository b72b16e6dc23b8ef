"""MCP over HTTP as the command line speaks it: one request at a time, with nothing but the standard library.

The SDK takes most of a second to import, more than most commands take. A server of ours needs no handshake:
each request stands for itself (Streamable HTTP, 2025-11-25).
https://modelcontextprotocol.io/specification/2025-11-25/basic/transports
"""

import contextlib
import http.client
import ipaddress
import json
import os
import re
import select
import socket
import ssl
import urllib.parse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cli_mcp.execution import MAX_TIMEOUT_SECONDS

DEFAULT_URL = "http://127.0.0.1:8080"
_PROTOCOL_VERSION = "2025-11-25"
# A command's timeout covers the wait for its turn; making a sandbox and the answer's way come on top.
_READ_TIMEOUT_SECONDS = MAX_TIMEOUT_SECONDS + 60
_CONNECT_TIMEOUT_SECONDS = 10
# A result has 1 MiB at most; an event stream that never ends a line is no server of ours.
_MAX_LINE_BYTES = 16 << 20
_ADDRESS_WITH_PORT = re.compile(r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+):[0-9]{1,5}(/\S*)?")
# What a header and a path can carry; the server knows the rest of the rule.
_SESSION = re.compile(r"[!-.0-~]+")

OnProgress = Callable[[float, str], None]
"""Gets the seconds since the call began, and a line that says how it goes."""


class ClientError(Exception):
    """A request without a result; the message is for the person at the terminal."""


@dataclass(frozen=True, slots=True)
class Target:
    """`url` is that of the MCP endpoint; `token` None sends none; without `ca_file` the system's authorities
    count."""

    url: str
    session: str
    token: str | None
    ca_file: Path | None = None


def looks_like_a_server(word: str) -> bool:
    """Whether `word`, of a command line, is meant as a server rather than as a command."""
    if "://" in word or word == "localhost" or _ADDRESS_WITH_PORT.fullmatch(word):
        return True
    try:
        ipaddress.ip_address(word.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    return True


def endpoint_url(given: str) -> str:
    """The URL of the MCP endpoint for what was given: host:port, a server's URL or the endpoint's.

    Raises ClientError.
    """
    example = ClientError(f"{given!r} is no server's URL. An example: {DEFAULT_URL}")
    if any(character.isspace() or not character.isprintable() for character in given):
        raise example
    try:
        parts = urllib.parse.urlsplit(given if "://" in given else f"http://{given}")
        has_host = bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is none, brackets that do not match
        raise example from None
    if parts.scheme not in ("http", "https") or not has_host or not given.isascii():
        raise example
    path = parts.path if parts.path.strip("/") else "/mcp"
    return urllib.parse.urlunsplit((parts.scheme, parts.netloc, path, parts.query, ""))


def is_on_loopback(url: str) -> bool:
    host = urllib.parse.urlsplit(url).hostname or ""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Connection:
    """To one session of a server; made when the first request needs it. Not for several threads."""

    def __init__(self, target: Target) -> None:
        """Raises ClientError for what cannot be sent, or trusted."""
        self.target = target
        parts = urllib.parse.urlsplit(target.url)
        self._host, self._port = parts.hostname or "", parts.port
        self._path = f"{parts.path}?{parts.query}" if parts.query else parts.path
        self._tls = _trusting(target.ca_file) if parts.scheme == "https" else None
        if self._tls is None and target.ca_file is not None:
            raise ClientError(
                f"--ca-file is for https, and {target.url} has no TLS. Write https://, or leave it out."
            )
        self._headers = _headers(target)
        self._http: http.client.HTTPConnection | None = None

    def close(self) -> None:
        if self._http is not None:
            self._http.close()
            self._http = None

    def call(self, tool: str, arguments: dict[str, object], on_progress: OnProgress, request_id: str) -> Any:
        """The result of tools/call, as MCP defines it. Raises ClientError when there is none."""
        params = {"name": tool, "arguments": arguments, "_meta": {"progressToken": request_id}}
        message = {"jsonrpc": "2.0", "id": request_id, "method": "tools/call", "params": params}
        with self._explained():
            response = self._send("POST", self._path, message)
            for event in _messages(response):
                if event.get("method") == "notifications/progress":
                    progress = event.get("params", {})
                    on_progress(float(progress.get("progress", 0)), str(progress.get("message", "")))
                elif event.get("id") == request_id:
                    return self._result(event)
        raise ClientError(f"{self.target.url} hung up without a result; whether the command ran is unknown.")

    def cancel(self, request_id: str) -> None:
        """Have a call that another Connection waits for interrupted; that one still gets what it gave."""
        params = {"requestId": request_id}
        message = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params}
        with self._explained():
            self._send("POST", self._path, message).read()

    def request(self, method: str, path: str) -> bytes:
        """The body that a path beside the MCP endpoint answers with. Raises ClientError."""
        base = self._path.partition("?")[0].rstrip("/").rpartition("/")[0]
        with self._explained():
            return self._send(method, f"{base}{path}", None).read()

    def _result(self, answer: dict[str, Any]) -> Any:
        if "result" in answer:
            return answer["result"]
        message = answer.get("error", {}).get("message", "no result")
        raise ClientError(f"{self.target.url} answers: {message}")

    def _send(self, method: str, path: str, message: dict[str, Any] | None) -> http.client.HTTPResponse:
        """The response to a request. Raises ClientError in the server's words when it is a refusal."""
        body = None if message is None else json.dumps(message).encode()
        connection = self._connected()
        try:
            connection.request(method, path, body, self._headers)
        except (BrokenPipeError, ConnectionResetError):
            pass  # refused before it had all of the request: its answer says why
        response = connection.getresponse()
        if response.status >= 300:
            raise ClientError(_refusal(response, self.target.url))
        return response

    def _connected(self) -> http.client.HTTPConnection:
        if self._http is not None and not _is_closed(self._http.sock):
            return self._http
        self.close()
        self._http = (
            http.client.HTTPConnection(self._host, self._port, timeout=_CONNECT_TIMEOUT_SECONDS)
            if self._tls is None
            else http.client.HTTPSConnection(
                self._host, self._port, context=self._tls, timeout=_CONNECT_TIMEOUT_SECONDS
            )
        )
        self._http.connect()
        self._http.sock.settimeout(_READ_TIMEOUT_SECONDS)
        # An answer may be followed by a command at once.
        self._http.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return self._http

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        """Raises ClientError in place of what the network, TLS and HTTP raise, and closes the connection."""
        try:
            yield
        except ClientError:
            self.close()
            raise
        except TimeoutError:
            self.close()
            raise ClientError(f"{self.target.url} does not answer.") from None
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise ClientError(
                f"No connection to {self.target.url}: {_cause(error)}. {_remedy(self.target.url, error)}"
            ) from error
        except ValueError as error:
            self.close()
            raise ClientError(_not_mcp(self.target.url)) from error
        except BaseException:
            self.close()  # interrupted: what would come on it belongs to nobody
            raise


def _headers(target: Target) -> dict[str, str]:
    """Raises ClientError for a session or token that no header can carry."""
    if not _SESSION.fullmatch(target.session):
        raise ClientError(
            f"{target.session!r} is no session id: lower-case letters, digits and hyphens, for example s1."
        )
    headers = {
        "Content-Type": "application/json",
        "Accept": "application/json, text/event-stream",
        "MCP-Protocol-Version": _PROTOCOL_VERSION,
        "X-Session-ID": target.session,
    }
    if target.token is not None:
        headers["Authorization"] = f"Bearer {target.token}"
    return headers


def new_request_id() -> str:
    """Unlike that of every other call of the session, which a cancellation must not mean."""
    return os.urandom(12).hex()


def _messages(response: http.client.HTTPResponse) -> Iterator[dict[str, Any]]:
    """The JSON-RPC messages of an answer: one, or those of an event stream. Raises ValueError."""
    kind = response.headers.get_content_type()
    if kind == "application/json":
        yield _message(response.read())
    elif kind == "text/event-stream":
        yield from _events(response)
    else:
        raise ValueError(kind)


def _events(response: http.client.HTTPResponse) -> Iterator[dict[str, Any]]:
    """https://html.spec.whatwg.org/multipage/server-sent-events.html#parsing-an-event-stream"""
    data: list[bytes] = []
    while line := response.readline(_MAX_LINE_BYTES):
        if not line.endswith(b"\n"):
            raise ValueError("an event without end")
        line = line.rstrip(b"\r\n")
        if line.startswith(b"data:"):
            data.append(line.removeprefix(b"data:").removeprefix(b" "))
        elif not line and data:
            yield _message(b"\n".join(data))
            data = []


def _message(data: bytes) -> dict[str, Any]:
    message = json.loads(data)
    if not isinstance(message, dict) or message.get("jsonrpc") != "2.0":
        raise ValueError("no JSON-RPC message")
    return message


def _refusal(response: http.client.HTTPResponse, url: str) -> str:
    """The server's own words for why it turned a request away."""
    try:
        error = json.loads(response.read(1 << 20)).get("error")
    except (ValueError, AttributeError, OSError, http.client.HTTPException):
        error = None
    if isinstance(error, dict):
        error = error.get("message")
    if not isinstance(error, str) or not error:
        return f"{_not_mcp(url)} (HTTP {response.status})"
    hint = " See --token-file." if response.status == 401 else ""
    return f"{error}{hint}"


def _not_mcp(url: str) -> str:
    return f"{url} answers, but not as a server of cli-mcp does. Give the URL that the server printed."


def _is_closed(sock: "socket.socket | None") -> bool:
    """Whether the other side has hung up; nothing else can be there to read between two requests."""
    return sock is None or bool(select.select([sock], [], [], 0)[0])


def _remedy(url: str, error: Exception) -> str:
    secure = url.startswith("https:")
    match error:
        case ssl.SSLCertVerificationError():
            return (
                "Name who signed its certificate with --ca-file FILE, and the server as its certificate does."
            )
        case ssl.SSLError() if secure:
            return "Does it speak TLS? Without it, the URL begins with http://"
        case ConnectionRefusedError() if is_on_loopback(url):
            return "Is `cli-mcp local` running, or `kubectl port-forward`?"
        case http.client.HTTPException() | ConnectionResetError() if not secure:
            return "Does it speak TLS? Then the URL begins with https://"
        case http.client.HTTPException() | ConnectionResetError():
            return "It hung up; whether a command ran is unknown."
    return "Is the address right, and the server up?"


def _cause(error: BaseException) -> str:
    match error:
        case ssl.SSLCertVerificationError():
            return f"certificate verify failed: {error.verify_message}"
        case ssl.SSLError():
            return f"no TLS ({(error.reason or 'handshake failed').lower().replace('_', ' ')})"
        case socket.gaierror():
            return "no such host"
        case http.client.RemoteDisconnected() | ConnectionResetError():
            return "it hung up without an answer"
        case http.client.HTTPException():
            return "its answer is not HTTP"
        case OSError() if error.strerror:
            return error.strerror
    return type(error).__name__


def _trusting(ca_file: Path | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca_file)
    except (OSError, ssl.SSLError) as error:
        cause = error.strerror if isinstance(error, OSError) and not isinstance(error, ssl.SSLError) else None
        raise ClientError(
            f"Cannot read the authority in {ca_file}: {cause or 'no certificate in PEM form'}"
        ) from None
