"""Who hears of a refusal: the client that was refused, at once, in words that say what to do."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from cli_mcp.names import REFUSED_PATH
from cred_proxy.audit import AuditRecord
from cred_proxy.proxy import ClientIdentity
from cred_proxy.refusal import Reason
from cred_proxy.refused import Subscriptions, explanation
from tests.cred_proxy.harness import Client, Harness

RECORD = AuditRecord(
    event="connect",
    time=datetime(2030, 1, 2, tzinfo=UTC),
    client="s1",
    target="github.com:443",
    method="CONNECT",
    path="",
    status=403,
    bytes_up=0,
    bytes_down=0,
    duration_ms=0,
    reason=Reason.DOMAIN_NOT_ALLOWED,
)
ASK = f"GET {REFUSED_PATH} HTTP/1.1\r\nHost: proxy\r\n\r\n".encode()


@pytest.mark.parametrize(
    ("record", "hosts", "text"),
    [
        (
            RECORD,
            ["files.example.com:443", "b.test:5000"],
            "refused: github.com:443 is not among the hosts of this sandbox (files.example.com, b.test:5000)",
        ),
        (RECORD, [], "refused: github.com:443 is not among the hosts of this sandbox (there are none)"),
        (
            RECORD,
            [f"h{number}.test:443" for number in range(12)],
            "refused: github.com:443 is not among the hosts of this sandbox (h0.test, h1.test, h2.test, "
            "h3.test, h4.test, h5.test, h6.test, h7.test, h8.test, h9.test, …)",
        ),
        (
            replace(RECORD, method="GET", target="github.com", reason=Reason.NOT_CONNECT),
            [],
            "refused: plain http to github.com does not leave the sandbox; use https",
        ),
        (
            replace(RECORD, method="POST", target="k8s.test:6443", reason=Reason.UPGRADE_NOT_ALLOWED),
            [],
            "refused: POST k8s.test:6443: upgrade not allowed",
        ),
        (replace(RECORD, reason=Reason.UPSTREAM_TIMEOUT), [], None),
        (replace(RECORD, reason=Reason.CLIENT_GONE), [], None),
        (replace(RECORD, reason=None, status=403), [], None),
    ],
)
def test_a_refusal_is_explained_in_one_line(record: AuditRecord, hosts: list[str], text: str | None) -> None:
    assert explanation(record, hosts) == text


def test_only_the_client_itself_hears_and_nothing_is_kept_for_later() -> None:
    subscriptions, heard = Subscriptions(), {"s1": [], "s2": []}  # type: ignore[var-annotated]
    subscriptions.tell(RECORD, [])
    ends = [subscriptions.subscribe(client, heard[client].append) for client in heard]
    subscriptions.tell(RECORD, [])
    assert [len(texts) for texts in heard.values()] == [1, 0]
    for end in ends:
        end()
        end()
    subscriptions.tell(RECORD, [])
    assert len(heard["s1"]) == 1
    assert not subscriptions._hearers


async def subscribed(client: Client) -> asyncio.StreamReader:
    await client.send(ASK)
    assert (await client.head()).status == 200
    return client.reader


async def connect_to(port: int) -> Client:
    return Client(*await asyncio.open_connection("127.0.0.1", port))


async def test_a_client_hears_of_its_own_refusals_before_it_sees_them(harness: Harness) -> None:
    ports = [await harness.listen(ClientIdentity(name)) for name in ("one", "two")]
    async with await connect_to(ports[0]) as mine, await connect_to(ports[1]) as others:
        reader, other_reader = await subscribed(mine), await subscribed(others)
        for raw in (
            b"CONNECT github.com:443 HTTP/1.1\r\n\r\n",
            b"GET http://user:secret@example.com/x?token=1 HTTP/1.1\r\nHost: example.com\r\n\r\n",
        ):
            async with await connect_to(ports[0]) as refused:
                await refused.send(raw)
                assert (await refused.response()).status in (403, 405)
        lines = [(await asyncio.wait_for(reader.readline(), 5)).decode() for _ in range(2)]
        assert lines[0].startswith("refused: github.com:443 is not among the hosts of this sandbox (")
        assert lines[1] == "refused: plain http to example.com does not leave the sandbox; use https\n"
        async with await connect_to(ports[1]) as refused:
            await refused.send(b"CONNECT b.test:443 HTTP/1.1\r\n\r\n")
        assert b"b.test" in await asyncio.wait_for(other_reader.readline(), 5)


async def test_plain_http_is_recorded_with_its_own_method(harness: Harness) -> None:
    for method in (b"GET", b"POST", b"HEAD", b"PROPFIND"):
        async with await harness.connect() as client:
            await client.send(method + b" http://example.com/x HTTP/1.1\r\nHost: example.com\r\n\r\n")
            await client.response(head_only=True)
        assert (harness.audit[-1].method, harness.audit[-1].target) == (method.decode(), "example.com")
        assert harness.audit[-1].reason is Reason.NOT_CONNECT


async def test_who_listens_does_not_delay_the_end_of_the_proxy(harness: Harness) -> None:
    async with await harness.connect() as client:
        reader = await subscribed(client)
        await asyncio.wait_for(harness.proxy.close(drain_seconds=30), 5)
        assert await reader.read() == b""


async def test_who_listens_and_does_not_read_is_not_waited_for(harness: Harness) -> None:
    async with await harness.connect() as client:
        await subscribed(client)
        client.reader._transport.pause_reading()  # type: ignore[attr-defined]
        record = replace(RECORD, client="127.0.0.1", target="x" * 200)
        for _ in range(100_000):
            harness.proxy.refused.tell(record, [])
        async with await harness.connect() as other:
            await other.send(b"CONNECT github.com:443 HTTP/1.1\r\n\r\n")
            assert (await other.response()).status == 403
