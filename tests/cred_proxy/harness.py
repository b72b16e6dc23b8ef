"""A proxy on loopback and a way to speak to it byte by byte, as a client that follows no rule would."""

import asyncio
import base64
import socket
import ssl
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

import yaml
from aiohttp.abc import AbstractResolver, ResolveResult

from cli_mcp.authority import generate_authority
from cli_mcp.kubeconfig import parse_kubeconfig
from cli_mcp.proxy_config import AllowlistRouteConfig, ProxyConfig, UpstreamConfig, proxy_config
from cred_proxy.core import Limits
from cred_proxy.proxy import ClientIdentity, CredentialProxy, Listener
from cred_proxy.sources import authorities_from_directory, routing_from_files
from tests.cred_proxy.origin import Origin, PrivateAuthority

if TYPE_CHECKING:
    from cred_proxy.audit import AuditRecord

TOKEN = "the-real-token-8f2c"
DEADLINE_SECONDS = 20


class LoopbackResolver(AbstractResolver):
    """Every name of the reserved top-level domain `test` (RFC 6761) is here."""

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        if not host.endswith(".test"):
            raise OSError(None, f"no such name: {host}")
        return [
            ResolveResult(hostname=host, host="127.0.0.1", port=port, family=socket.AF_INET, proto=0, flags=0)
        ]

    async def close(self) -> None:
        pass


@dataclass
class Response:
    status: int
    phrase: str
    fields: list[tuple[str, str]]
    body: bytes
    complete: bool = True

    def value(self, name: str) -> str | None:
        return next((value for key, value in self.fields if key.lower() == name.lower()), None)


class Client:
    """One connection: raw bytes out, responses in."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abort()

    def abort(self) -> None:
        self.writer.transport.abort()

    async def send(self, raw: bytes) -> None:
        self.writer.write(raw)
        await self.writer.drain()

    async def request(self, raw: bytes, *, head_only: bool = False) -> Response:
        await self.send(raw)
        return await self.response(head_only=head_only)

    async def head(self) -> Response:
        async with asyncio.timeout(DEADLINE_SECONDS):
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode("utf-8")
        line, *lines = head.removesuffix("\r\n\r\n").split("\r\n")
        _, status, phrase = line.split(" ", 2)
        fields = [(name, value.strip()) for name, _, value in (line.partition(":") for line in lines)]
        return Response(int(status), phrase, fields, b"")

    async def response(self, *, head_only: bool = False) -> Response:
        response = await self.head()
        if head_only or response.status in (204, 304):
            return response
        async with asyncio.timeout(DEADLINE_SECONDS):
            try:
                response.body = await self._body(response)
            except (asyncio.IncompleteReadError, OSError):
                response.complete = False
        return response

    async def _body(self, response: Response) -> bytes:
        if (response.value("transfer-encoding") or "") == "chunked":
            body = b""
            while size := int(await self.reader.readuntil(b"\r\n"), 16):
                body += await self.reader.readexactly(size)
                await self.reader.readexactly(2)
            await self.reader.readexactly(2)
            return body
        length = response.value("content-length")
        return await (self.reader.readexactly(int(length)) if length else self.reader.read())

    async def is_closed(self) -> bool:
        """Whether the proxy ends the connection without another byte."""
        async with asyncio.timeout(DEADLINE_SECONDS):
            try:
                return await self.reader.read() == b""
            except OSError:
                return True


class Harness(AbstractAsyncContextManager["Harness"]):
    """A CredentialProxy that reads its files from `directory`, as in a pod, and listens on loopback."""

    def __init__(
        self,
        directory: Path,
        origin_authority: PrivateAuthority,
        allowlist: tuple[AllowlistRouteConfig, ...] = (),
        kubernetes: Origin | None = None,
        *,
        kubernetes_path: str = "",
        upstream: UpstreamConfig | None = None,
        limits: Limits | None = None,
        client: ClientIdentity | None = None,
    ) -> None:
        self.directory = directory
        self.ca_directory = directory / "ca"
        self.ca_directory.mkdir()
        self.config_file = directory / "proxy-config.json"
        self.kubeconfig_file = directory / "kubeconfig"
        self.origin_authority = origin_authority
        self.kubernetes = kubernetes
        self.kubernetes_path = kubernetes_path
        self.audit: list[AuditRecord] = []
        self.write_kubeconfig(TOKEN)
        self.write_config(allowlist, upstream or UpstreamConfig(ca_bundle=origin_authority.pem))
        self.write_authority()
        self._limits = limits
        self._client = client
        self.proxy: CredentialProxy
        self.listener: Listener
        self.port = 0

    def write_kubeconfig(self, token: str, **cluster: str) -> None:
        if self.kubernetes is None:
            return
        document = {
            "clusters": [
                {
                    "name": "c",
                    "cluster": {
                        "server": f"https://{self.kubernetes.endpoint}{self.kubernetes_path}",
                        "certificate-authority-data": base64.b64encode(
                            self.origin_authority.pem.encode()
                        ).decode(),
                        **cluster,
                    },
                }
            ],
            "users": [{"name": "u", "user": {"token": token}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "x",
        }
        self.kubeconfig_file.write_text(yaml.safe_dump(document))

    def write_config(self, allowlist: tuple[AllowlistRouteConfig, ...], upstream: UpstreamConfig) -> None:
        servers = parse_kubeconfig(self.kubeconfig_file.read_bytes()).servers if self.kubernetes else ()
        config: ProxyConfig = proxy_config(servers, allowlist, upstream)
        self.config_file.write_text(config.model_dump_json(by_alias=True))

    def write_authority(self) -> None:
        certificate, key = generate_authority("sandbox CA", datetime.now(UTC))
        (self.ca_directory / "ca.crt").write_text(certificate)
        (self.ca_directory / "ca.key").write_text(key)

    @property
    def ca_file(self) -> Path:
        return self.ca_directory / "ca.crt"

    async def __aenter__(self) -> Self:
        self.proxy = CredentialProxy(
            load_routing=routing_from_files(self.config_file, self.kubeconfig_file),
            load_authorities=authorities_from_directory(self.ca_directory),
            audit=self.audit.append,
            limits=self._limits,
            resolver=LoopbackResolver,
        )
        sock = socket.create_server(("127.0.0.1", 0))
        self.port = sock.getsockname()[1]
        self.listener = await self.proxy.serve(sock, self._client)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.proxy.close()

    async def listen(self, client: ClientIdentity) -> int:
        """The port of one more listener, which is `client`'s."""
        sock = socket.create_server(("127.0.0.1", 0))
        await self.proxy.serve(sock, client)
        port: int = sock.getsockname()[1]
        return port

    async def connect(self) -> Client:
        """A connection to the proxy, before any CONNECT."""
        return Client(*await asyncio.open_connection("127.0.0.1", self.port))

    def trust(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(self.ca_file)
        return context

    async def tunnel(
        self, endpoint: str, *, server_name: str | None = "", context: ssl.SSLContext | None = None
    ) -> Client:
        """CONNECT and TLS. `server_name` None sends no SNI; by default it is the host of `endpoint`."""
        client = await self.connect()
        response = await client.request(
            f"CONNECT {endpoint} HTTP/1.1\r\nHost: {endpoint}\r\n\r\n".encode(), head_only=True
        )
        assert response.status == 200, response
        context = context or self.trust()
        if server_name is None:
            context.check_hostname = False
        if server_name == "":
            server_name = endpoint.rpartition(":")[0].strip("[]").lower()
        await client.writer.start_tls(context, server_hostname=server_name)
        return client


def allow(origin: Origin, *, upgrades: bool = False) -> AllowlistRouteConfig:
    return AllowlistRouteConfig(host=origin.host, port=origin.port, allow_upgrades=upgrades)


async def eventually(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_SECONDS):
        while not condition():
            await asyncio.sleep(0.01)
