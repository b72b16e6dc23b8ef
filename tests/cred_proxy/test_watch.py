"""Watches end after a whole event when the proxy does; what else is cut off can be told from a whole."""

import asyncio
from typing import TYPE_CHECKING, cast

import pytest

from cli_mcp.api.endpoint import Endpoint
from cred_proxy.request import Forward
from cred_proxy.routes import AllowlistRoute, KubernetesRoute, Route
from cred_proxy.watch import Frames, JsonLines, LengthPrefixed, is_watch
from tests.cred_proxy.harness import Client, Harness, eventually
from tests.cred_proxy.origin import Origin, Received

if TYPE_CHECKING:
    from cli_mcp.kubeconfig import KubernetesServer

EVENT = b'{"type":"ADDED","object":{}}\n'
PROTOBUF = (5).to_bytes(4, "big") + b"event"
KUBERNETES = cast("Route", KubernetesRoute(cast("KubernetesServer", None)))


@pytest.mark.parametrize(
    ("frames", "chunks", "between"),
    [
        (JsonLines, [], True),
        (JsonLines, [EVENT], True),
        (JsonLines, [EVENT[:9]], False),
        (JsonLines, [EVENT[:9], EVENT[9:]], True),
        (JsonLines, [EVENT + EVENT[:1]], False),
        (LengthPrefixed, [], True),
        (LengthPrefixed, [PROTOBUF], True),
        (LengthPrefixed, [PROTOBUF[:2]], False),
        (LengthPrefixed, [PROTOBUF[:4]], False),
        (LengthPrefixed, [bytes([byte]) for byte in 2 * PROTOBUF], True),
        (LengthPrefixed, [2 * PROTOBUF + PROTOBUF[:6]], False),
    ],
)
def test_a_whole_event_is_told_from_a_part_of_one(
    frames: type[JsonLines | LengthPrefixed], chunks: list[bytes], between: bool
) -> None:
    seen: Frames = frames()
    for chunk in chunks:
        seen.feed(chunk)
    assert seen.between is between


@pytest.mark.parametrize(
    ("route", "method", "query", "expected"),
    [
        (KUBERNETES, "GET", "watch=true&resourceVersion=1", True),
        (KUBERNETES, "GET", "limit=5&watch=1", True),
        (KUBERNETES, "GET", "watch=false", False),
        (KUBERNETES, "GET", "watch=0", False),
        (KUBERNETES, "GET", "watch=", False),
        (KUBERNETES, "GET", "", False),
        (KUBERNETES, "POST", "watch=true", False),
        (AllowlistRoute(Endpoint("a.b", 443)), "GET", "watch=true", False),
    ],
)
def test_a_watch_is_known_by_its_request(route: Route, method: str, query: str, expected: bool) -> None:
    assert is_watch(route, Forward(method, "/api/v1/pods", query, [])) is expected


async def begin(harness: Harness, origin: Origin, first: bytes, *, query: str = "?watch=true") -> Client:
    """A chunked stream of JSON through a tunnel, of which the client has the head and `first`."""

    async def respond(request: Received, writer: asyncio.StreamWriter) -> None:
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        writer.write(b"%x\r\n%s\r\n" % (len(first), first))
        await asyncio.Event().wait()

    origin.respond = respond
    client = await harness.tunnel(origin.endpoint)
    await client.send(f"GET /api/v1/pods{query} HTTP/1.1\r\nHost: {origin.endpoint}\r\n\r\n".encode())
    await client.head()
    assert await chunk(client) == first
    return client


async def chunk(client: Client) -> bytes:
    size = int(await client.reader.readuntil(b"\r\n"), 16)
    return (await client.reader.readexactly(size + 2))[:-2]


async def test_a_watch_ends_cleanly_and_at_once_when_the_proxy_does(
    harness: Harness, kubernetes: Origin
) -> None:
    client = await begin(harness, kubernetes, EVENT)
    closing = asyncio.create_task(harness.proxy.close(drain_seconds=60))
    async with asyncio.timeout(5):
        assert await client.reader.read() == b"0\r\n\r\n"
        await closing
    assert [record.reason for record in harness.audit] == [None]


@pytest.mark.parametrize(
    ("first", "query"), [(EVENT[:9], "?watch=true"), (EVENT, "?watch=false")], ids=["half", "no watch"]
)
async def test_what_may_not_end_here_is_cut_so_that_its_client_can_tell(
    harness: Harness, kubernetes: Origin, first: bytes, query: str
) -> None:
    client = await begin(harness, kubernetes, first, query=query)
    await harness.proxy.close(drain_seconds=0.2)
    assert await client.is_closed(), "no last chunk"


async def test_requests_to_what_is_withdrawn_end_and_others_go_on(
    harness: Harness, kubernetes: Origin
) -> None:
    client = await begin(harness, kubernetes, EVENT)
    harness.write_kubeconfig("rotated")
    harness.proxy.reload()
    await asyncio.sleep(0.05)
    assert harness.proxy.open_connections == 1, "a new credential ends nothing"
    harness.config_file.write_text("{}")
    harness.kubeconfig_file.write_text("no: [kubeconfig")
    harness.proxy.reload()
    assert await client.is_closed(), "no last chunk"
    await eventually(lambda: harness.proxy.open_connections == 0)
