"""Random bytes that resemble what a client sends: nothing crashes, hangs or reaches what is not listed.

`CLI_MCP_FUZZ_SECONDS` lets it run longer than the few seconds that it takes otherwise.
"""

import asyncio
import logging
import os
import random
import time

import pytest

from tests.cred_proxy.harness import TOKEN, Harness
from tests.cred_proxy.origin import Origin

SECONDS = float(os.environ.get("CLI_MCP_FUZZ_SECONDS", "4"))
PATIENCE_SECONDS = 0.3

PIECES = [
    *(b"GET ", b"POST ", b"CONNECT ", b"TRACE ", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
    *(
        b"/",
        b"/api/v1/pods",
        b"//",
        b"%2e%2e",
        b"/api/v1/nodes/n/proxy/x",
        b"https://evil.test/",
        b"@evil.test",
    ),
    *(b" HTTP/1.1\r\n", b" HTTP/1.0\r\n", b" HTTP/2.0\r\n"),
    *(b"Host: HOST\r\n", b"Host: evil.test\r\n", b"host: HOST\r\n"),
    *(b"Content-Length: 5\r\n", b"Content-Length: 0\r\n", b"Content-Length: 5, 5\r\n"),
    *(b"Transfer-Encoding: chunked\r\n", b"Transfer-Encoding: gzip\r\n", b"Transfer-Encoding : chunked\r\n"),
    *(b"Authorization: Bearer client\r\n", b"authorization:client\r\n", b"Impersonate-User: client\r\n"),
    *(b"Connection: Authorization\r\n", b"Connection: close\r\n", b"Connection: Upgrade\r\n"),
    *(b"Upgrade: websocket\r\n", b"Expect: 100-continue\r\n", b" folded\r\n"),
    *(b"X: " + bytes([byte]) + b"\r\n" for byte in (0xFF, 0, 11)),
    *(b"\r\n", b"\n", b"\r", b"hello", b"5\r\nhello\r\n", b"0\r\n\r\n", b"5;ext\r\nhello\r\n"),
    *(b"ffffffffffffffff\r\n", b"-1\r\n", bytes([22, 3, 1]), bytes(1)),
]
WHOLE = (
    b"GET /api HTTP/1.1\r\nHost: HOST\r\nAuthorization: Bearer client\r\n\r\n"
    b"POST /api HTTP/1.1\r\nHost: HOST\r\nContent-Length: 5\r\n\r\nhello"
    b"POST /api HTTP/1.1\r\nHost: HOST\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"
)


def mutated(chance: random.Random, host: bytes) -> bytes:
    """Pieces in any order, or whole requests with a few things wrong."""
    if chance.random() < 0.5:
        raw = b"".join(chance.choices(PIECES, k=chance.randrange(1, 15)))
    else:
        raw = WHOLE
        for _ in range(chance.randrange(1, 6)):
            at = chance.randrange(len(raw))
            raw = (
                raw[:at]
                + chance.choice([*PIECES, chance.randbytes(2), b""])
                + raw[at + chance.randrange(3) :]
            )
    return raw.replace(b"HOST", host)


@pytest.mark.parametrize("inside", [False, True])
async def test_random_clients_reach_nothing_that_is_not_listed(
    harness: Harness, origin: Origin, kubernetes: Origin, caplog: pytest.LogCaptureFixture, inside: bool
) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    host = kubernetes.endpoint.encode()
    end = time.monotonic() + SECONDS / 2

    async def one() -> None:
        client = await (harness.tunnel(kubernetes.endpoint) if inside else harness.connect())
        async with client:
            raw = mutated(chance, host)
            try:
                for part in (raw[: len(raw) // 2], raw[len(raw) // 2 :]):
                    await client.send(part)
                async with asyncio.timeout(PATIENCE_SECONDS):
                    while await client.reader.read(65536):
                        pass
            except (OSError, TimeoutError):
                pass  # the proxy ended it, or waits for the rest

    async def several() -> None:
        while time.monotonic() < end:
            await one()

    await asyncio.gather(*(several() for _ in range(12)))
    async with await harness.tunnel(kubernetes.endpoint) as client:
        assert (await client.request(b"GET /api HTTP/1.1\r\nHost: %s\r\n\r\n" % host)).status == 200
    assert origin.connections == 0
    for request in kubernetes.requests:
        assert request.values("host") == [kubernetes.endpoint]
        assert request.values("authorization") == [f"Bearer {TOKEN}"]
        assert request.target.startswith("/")
        assert not request.target.startswith("/api/v1/nodes/n/proxy/")
        assert not request.values("impersonate-user")
    assert not [record for record in harness.audit if record.reason == "internal"]
    errors = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    assert errors == []
