"""Calls the MCP server of an instance over HTTPS, at any address that has the certificate of its Service."""

from __future__ import annotations

import json
import ssl
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import httpx2
import requests
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from requests.adapters import HTTPAdapter

from tests.e2e_local.harness import Answer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

# Beside the command's own: a pod that has to be created first.
PATIENCE_SECONDS = 60
# Where many pods start at once, and much else goes on.
START_SECONDS = 180


class McpClient:
    """A caller with one token. `address` is host and port of the Service or of a pod; `name` stands in the
    certificate that `authority`, a file, has signed."""

    def __init__(self, address: str, name: str, authority: Path, token: str | None) -> None:
        self.url = f"https://{address}"
        self.name = name
        self.authority = authority
        self.token = token
        self._http = requests.Session()
        self._http.mount("https://", _ByName(name))
        self._http.verify = str(authority)
        # Nothing of the environment: no proxy, no other CA.
        self._http.trust_env = False

    def headers(self, session: str | None) -> dict[str, str]:
        authorization = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        return authorization | ({"X-Session-ID": session} if session else {})

    def bash(self, session: str | None, command: str, timeout: float = 60) -> Answer:
        """The result of the tool. Raises requests.HTTPError when the server turns the request away."""
        return self.tool(session, "bash", timeout, command=command, timeout=timeout)

    def bash_once_started(self, session: str, command: str) -> Answer:
        """The same, asked again as it says as long as the session's pod is still starting."""
        deadline = time.monotonic() + START_SECONDS
        while (answer := self.bash(session, command)).text.endswith("call again."):
            assert time.monotonic() < deadline, answer.text
        return answer

    def tool(self, session: str | None, name: str, wait_seconds: float = 60, /, **arguments: Any) -> Answer:
        response = self.post(session, name, wait_seconds, **arguments)
        response.raise_for_status()
        messages = [line[6:] for line in response.text.splitlines() if line.startswith("data: ")]
        result = json.loads(messages[-1] if messages else response.text)["result"]
        return Answer(result["content"][0]["text"], result["isError"], result.get("structuredContent") or {})

    def post(
        self, session: str | None, name: str, wait_seconds: float = 60, /, **arguments: Any
    ) -> requests.Response:
        """A tool call, with whatever status the server gives it."""
        request = {
            "jsonrpc": "2.0",
            "id": 1,
            "method": "tools/call",
            "params": {"name": name, "arguments": arguments},
        }
        headers = self.headers(session) | {"Accept": "application/json, text/event-stream"}
        return self._http.post(
            f"{self.url}/mcp", json=request, headers=headers, timeout=wait_seconds + PATIENCE_SECONDS
        )

    def end(self, session: str, **query: str) -> requests.Response:
        url = f"{self.url}/sessions/{session}"
        return self._http.delete(url, params=query, headers=self.headers(None), timeout=PATIENCE_SECONDS)

    def get(self, path: str) -> requests.Response:
        return self._http.get(f"{self.url}{path}", headers=self.headers(None), timeout=PATIENCE_SECONDS)

    @asynccontextmanager
    async def sdk(self, session: str) -> AsyncIterator[Client]:
        """The MCP library's own client, connected."""

        http = self.http(headers=self.headers(session), timeout=PATIENCE_SECONDS)
        async with http, Client(streamable_http_client(f"{self.url}/mcp", http_client=http)) as client:
            yield client

    def http(self, **options: Any) -> httpx2.AsyncClient:
        """Without a credential unless it is among the options."""

        async def by_name(request: httpx2.Request) -> None:
            request.extensions["sni_hostname"] = self.name

        return httpx2.AsyncClient(
            verify=ssl.create_default_context(cafile=str(self.authority)),
            trust_env=False,
            event_hooks={"request": [by_name]},
            **options,
        )


class _ByName(HTTPAdapter):
    """Connects to an address, and asks for and verifies a name."""

    def __init__(self, name: str) -> None:
        self._name = name
        super().__init__()

    def init_poolmanager(self, connections: int, maxsize: int, block: bool = False, **options: Any) -> None:
        options |= {"server_hostname": self._name, "assert_hostname": self._name}
        super().init_poolmanager(connections, maxsize, block, **options)
