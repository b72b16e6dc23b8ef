"""The proxy as a client: verified TLS to the origins, connections to reuse, failures as reasons."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from functools import lru_cache, partial

import aiohttp
from aiohttp.abc import AbstractResolver
from yarl import URL

from cli_mcp.proxy_config import UpstreamConfig
from cred_proxy.core import Limits
from cred_proxy.fairness import Turns
from cred_proxy.headers import Fields
from cred_proxy.memory import BODY_BYTES, origin_socket
from cred_proxy.origin_connection import OriginConnection
from cred_proxy.refusal import Reason, Refusal
from cred_proxy.request import Forward
from cred_proxy.routes import KubernetesRoute, Route

# aiohttp would add these where a client sent none.
_NOT_ADDED = ("User-Agent", "Accept", "Accept-Encoding", "Content-Type")
# The first that matches; the order is that of aiohttp's class hierarchy, from the special to the general.
_FAILURES: tuple[tuple[type[BaseException], Reason], ...] = (
    (aiohttp.ClientConnectorDNSError, Reason.UNRESOLVED),
    (aiohttp.ClientProxyConnectionError, Reason.UPSTREAM_PROXY),
    (aiohttp.ClientHttpProxyError, Reason.UPSTREAM_PROXY),
    (aiohttp.ClientConnectorCertificateError, Reason.UNTRUSTED),
    (aiohttp.ClientConnectorSSLError, Reason.UNTRUSTED),
    (aiohttp.ClientConnectorError, Reason.UNREACHABLE),
    (TimeoutError, Reason.UPSTREAM_TIMEOUT),
    (aiohttp.ClientError, Reason.UPSTREAM_BROKEN),
    (OSError, Reason.UPSTREAM_BROKEN),
)
FAILURES = tuple(kind for kind, _ in _FAILURES)


def explain(error: BaseException, route: Route) -> Refusal:
    """What one of FAILURES means. The text is made of our own words: an exception may carry a header."""
    reason = next(reason for kind, reason in _FAILURES if isinstance(error, kind))
    cause = ""
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        # OpenSSL's own phrase, such as "unable to get local issuer certificate".
        problem = getattr(error.certificate_error, "verify_message", None)
        cause = f" ({problem})" if problem else ""
    elif isinstance(error, aiohttp.ClientHttpProxyError):
        cause = f" (status {error.status})"
    return Refusal(reason, f"{route.endpoint}{cause}")


@lru_cache(maxsize=64)
def _trust(certificate_authority: str | None, bundle: str | None) -> ssl.SSLContext:
    """Whom to believe: the one authority alone, or the system's and those of the bundle.

    Cached, since connections are reused only under the very same context.
    """
    if certificate_authority is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(cadata=certificate_authority)
    else:
        context = ssl.create_default_context()
        if bundle is not None:
            context.load_verify_locations(cadata=bundle)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # Python 3.13 turns this on; it refuses CAs without key identifiers, which clusters have and Go accepts.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    context.set_alpn_protocols(["http/1.1"])
    return context


class Upstream:
    """Sends judged requests. To be made and closed inside the event loop.

    A connection is reused by its client alone. Where an origin takes what it got for two requests, or sends
    more than it was asked for, the next request on that connection gets the answer to something else.
    """

    def __init__(
        self,
        limits: Limits,
        turns: Turns,
        connections_of: Callable[[str], int],
        resolver: AbstractResolver | None = None,
    ) -> None:
        """`connections_of` tells how many a client has to the proxy."""
        self._limits = limits
        self._turns = turns
        self._connections_of = connections_of
        self._resolver = resolver
        self._sessions: dict[str, aiohttp.ClientSession] = {}
        self._ending: set[asyncio.Task[None]] = set()

    async def send(
        self,
        client: str,
        route: Route,
        forward: Forward,
        body: AsyncIterator[bytes] | None,
        config: UpstreamConfig,
    ) -> aiohttp.ClientResponse:
        """The response, its body still to be read; the caller closes it. Raises one of FAILURES.

        A `body` is sent once: aiohttp does not repeat a request whose body is used up.
        """
        certificate_authority = server_name = None
        if isinstance(route, KubernetesRoute):
            certificate_authority = route.server.certificate_authority
            server_name = route.server.tls_server_name
        url = URL.build(
            scheme="https",
            authority=str(route.endpoint),
            path=forward.path,
            query_string=forward.query,
            encoded=True,
        )
        session = self._sessions.get(client) or self._begin(client)
        return await session.request(
            forward.method,
            url,
            headers=_one_spelling_each(forward.fields),
            data=body,
            allow_redirects=False,
            ssl=_trust(certificate_authority, config.ca_bundle),
            server_hostname=server_name,
            proxy=config.http_proxy,
            read_bufsize=BODY_BYTES,
        )

    def forget(self, client: str) -> None:
        """The client's last connection has ended. Whoever has its name next, such as a pod that is given the
        same address, gets nothing of what it left."""
        session = self._sessions.pop(client, None)
        if session is not None:
            ending = asyncio.get_running_loop().create_task(session.close())
            self._ending.add(ending)
            ending.add_done_callback(self._ending.discard)

    def _begin(self, client: str) -> aiohttp.ClientSession:
        session = self._sessions[client] = self._session(client)
        return session

    def _session(self, client: str) -> aiohttp.ClientSession:
        limits = self._limits
        connector = aiohttp.TCPConnector(
            # Bounded by the connections of the clients.
            limit=0,
            keepalive_timeout=limits.upstream_keepalive_seconds,
            resolver=self._resolver,
            socket_factory=lambda address: origin_socket(self._connections_of(client), address),
        )
        connector._factory = partial(  # type: ignore[assignment]  # what it makes is one of aiohttp's
            OriginConnection, client, self._turns, loop=asyncio.get_running_loop()
        )
        return aiohttp.ClientSession(
            connector=connector,
            timeout=aiohttp.ClientTimeout(
                total=None,
                connect=limits.upstream_connect_seconds,
                sock_connect=limits.upstream_connect_seconds,
                sock_read=limits.upstream_idle_seconds,
            ),
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=_NOT_ADDED,
            auto_decompress=False,
            trust_env=False,
            max_line_size=limits.upstream_line_bytes,
            max_field_size=limits.upstream_line_bytes,
        )

    async def close(self) -> None:
        for client in list(self._sessions):
            self.forget(client)
        if self._ending:
            await asyncio.wait(self._ending)


async def next_chunk(content: aiohttp.StreamReader) -> bytes:
    """What has come of a response's body, b"" at its end. Raises one of FAILURES."""
    try:
        return await content.readany()
    except RuntimeError as error:
        # What aiohttp says of a connection that has just ended, when nobody was waiting.
        raise aiohttp.ClientPayloadError("the connection ended inside the body") from error


def _one_spelling_each(fields: Fields) -> Fields:
    """aiohttp keeps repeated fields only when their names are spelled alike."""
    spelling: dict[str, str] = {}
    return [(spelling.setdefault(name.lower(), name), value) for name, value in fields]
