"""Whom the proxy trusts upstream, what a failure is called, and who reuses which connection."""

import asyncio
import ssl
from types import SimpleNamespace
from typing import Any, cast

import aiohttp
import pytest
from aiohttp.base_protocol import BaseProtocol

from cli_mcp.api.endpoint import Endpoint
from cli_mcp.proxy_config import UpstreamConfig
from cred_proxy.core import Limits
from cred_proxy.fairness import Turns
from cred_proxy.refusal import Reason
from cred_proxy.request import Forward
from cred_proxy.routes import AllowlistRoute
from cred_proxy.upstream import FAILURES, Upstream, _trust, explain, next_chunk
from tests.cred_proxy.harness import LoopbackResolver, eventually
from tests.cred_proxy.origin import Origin, PrivateAuthority

ROUTE = AllowlistRoute(Endpoint("git.example.com", 443))
KEY = cast("Any", SimpleNamespace(host="git.example.com", port=443, is_ssl=True, ssl=True))
INFO = cast("Any", SimpleNamespace(real_url="https://git.example.com", headers={"Authorization": "secret"}))


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (aiohttp.ClientConnectorDNSError(KEY, OSError(8, "no such name")), Reason.UNRESOLVED),
        (aiohttp.ClientConnectorError(KEY, OSError(111, "refused")), Reason.UNREACHABLE),
        (aiohttp.ClientConnectorSSLError(KEY, OSError(1, "tls")), Reason.UNTRUSTED),
        (aiohttp.ClientConnectorCertificateError(KEY, ssl.SSLCertVerificationError("bad")), Reason.UNTRUSTED),
        (aiohttp.ClientProxyConnectionError(KEY, OSError(111, "refused")), Reason.UPSTREAM_PROXY),
        (aiohttp.ClientHttpProxyError(INFO, (), status=407), Reason.UPSTREAM_PROXY),
        (aiohttp.ConnectionTimeoutError(), Reason.UPSTREAM_TIMEOUT),
        (aiohttp.SocketTimeoutError(), Reason.UPSTREAM_TIMEOUT),
        (aiohttp.ServerDisconnectedError(), Reason.UPSTREAM_BROKEN),
        (aiohttp.ClientPayloadError(), Reason.UPSTREAM_BROKEN),
        (aiohttp.ClientResponseError(INFO, (), message="secret"), Reason.UPSTREAM_BROKEN),
        (ConnectionResetError(), Reason.UPSTREAM_BROKEN),
    ],
)
def test_a_failure_has_a_reason_and_quotes_nothing_that_was_sent(error: Exception, reason: Reason) -> None:
    assert isinstance(error, FAILURES)
    refusal = explain(error, ROUTE)
    assert refusal.reason is reason
    assert refusal.detail.startswith("git.example.com:443")
    assert "secret" not in refusal.text


def test_a_servers_own_authority_is_the_only_one_and_a_bundle_comes_on_top() -> None:
    own, bundle = PrivateAuthority().pem, PrivateAuthority().pem
    system = len(ssl.create_default_context().get_ca_certs())
    assert len(_trust(own, bundle).get_ca_certs()) == 1
    assert len(_trust(None, bundle).get_ca_certs()) == system + 1
    for context in (_trust(own, None), _trust(None, None)):
        assert context.verify_mode is ssl.CERT_REQUIRED
        assert context.check_hostname


def test_the_same_trust_is_the_same_context_so_that_connections_are_reused() -> None:
    pem = PrivateAuthority().pem
    assert _trust(pem, None) is _trust(pem, None)


async def test_a_body_whose_connection_has_just_ended_is_cut_off_and_no_failure_of_ours() -> None:
    loop = asyncio.get_running_loop()
    ended = aiohttp.StreamReader(BaseProtocol(loop), 2**16, loop=loop)
    with pytest.raises(FAILURES):
        await next_chunk(ended)


async def test_clients_do_not_share_connections_and_leave_none_behind(
    origin: Origin, origin_authority: PrivateAuthority
) -> None:
    upstream = Upstream(Limits(), Turns(), lambda client: 1, LoopbackResolver())
    route = AllowlistRoute(Endpoint(origin.host, origin.port))
    config = UpstreamConfig(ca_bundle=origin_authority.pem)

    async def get(client: str) -> None:
        forward = Forward("GET", "/", "", [("Host", origin.endpoint)])
        response = await upstream.send(client, route, forward, None, config)
        assert await response.read() == b"ok"

    for client in ("a", "b", "a", "b"):
        await get(client)
    assert [request.connection for request in origin.requests] == [1, 2, 1, 2]
    upstream.forget("a")
    await get("b")
    await eventually(lambda: origin.open_connections == 1)
    await get("a")
    assert origin.requests[-1].connection == 3
    await upstream.close()
    await eventually(lambda: origin.open_connections == 0)
