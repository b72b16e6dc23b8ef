import asyncio
import ssl
import warnings
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from mcp_server.app import build_app
from mcp_server.authentication import NoAuthentication
from mcp_server.serving import serve
from mcp_server.settings import ServerSettings
from mcp_server.tls import InvalidCertificate, ServerCertificate
from tests.mcp_server.certificates import (
    MountedSecret,
    elliptic_key,
    rsa_key,
    self_signed,
    trusting,
)
from tests.mcp_server.fake_backend import FakeBackend

FIRST = self_signed("first")
REQUEST = b"GET /live HTTP/1.1\r\nHost: localhost\r\n\r\n"

BROKEN: dict[str, tuple[bytes | None, bytes | None]] = {
    "key of another certificate": (FIRST[0], self_signed()[1]),
    "no certificate": (b"text", FIRST[1]),
    "empty certificate": (b"", FIRST[1]),
    "no key": (FIRST[0], b"-----BEGIN PRIVATE KEY-----\nsecret-text\n-----END PRIVATE KEY-----\n"),
    "an encrypted key": self_signed(password=b"secret"),
    "expired": self_signed(valid_for=timedelta(hours=-1)),
    "certificate missing": (None, FIRST[1]),
    "key missing": (FIRST[0], None),
}


@dataclass
class Running:
    port: int
    certificate: ServerCertificate

    async def connect(
        self, context: ssl.SSLContext, name: str | None = "localhost"
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if name is None:
            context.check_hostname = False
        return await asyncio.open_connection("127.0.0.1", self.port, ssl=context, server_hostname=name or "")

    async def shown(self, context: ssl.SSLContext, name: str | None = "localhost") -> str:
        """The common name of the certificate that a new connection gets."""
        reader, writer = await self.connect(context, name)
        subject = dict(item[0] for item in writer.get_extra_info("peercert")["subject"])
        assert b" 200 " in await ask(reader, writer)
        writer.close()
        return str(subject["commonName"])


async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    writer.write(REQUEST)
    return await reader.readuntil(b"}")


@asynccontextmanager
async def running(directory: Path) -> AsyncIterator[Running]:
    certificate = ServerCertificate(directory)
    app = build_app(FakeBackend(), ServerSettings(), NoAuthentication())
    stop = asyncio.Event()
    bound: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    serving = asyncio.create_task(
        serve(
            app,
            "127.0.0.1",
            0,
            drain_seconds=0,
            stop=stop,
            tls=certificate.context,
            on_bound=bound.set_result,
        )
    )
    try:
        yield Running(await bound, certificate)
    finally:
        stop.set()
        await serving


@pytest.mark.parametrize("make_key", [elliptic_key, rsa_key])
@pytest.mark.parametrize("name", ["localhost", "127.0.0.1", None], ids=["name", "address", "nothing"])
async def test_a_new_pair_is_for_new_connections_and_open_ones_go_on(
    tmp_path: Path, make_key: type, name: str | None
) -> None:
    """Whatever the client says it connects to, and when the type of key changes."""
    secret, second = MountedSecret(tmp_path / "tls", FIRST), self_signed("second", make_key())
    async with running(secret.path) as server:
        reader, writer = await server.connect(trusting(FIRST))
        assert b" 200 " in await ask(reader, writer)
        assert await server.shown(trusting(FIRST, second), name) == "first"
        secret.swap(second)
        server.certificate.reload()
        assert await server.shown(trusting(FIRST, second), name) == "second"
        only_rsa = trusting(FIRST, second)
        only_rsa.set_ciphers("ECDHE+AESGCM")
        only_rsa.maximum_version = ssl.TLSVersion.TLSv1_2
        assert await server.shown(only_rsa, name) == "second"
        assert b" 200 " in await ask(reader, writer)
        writer.close()
        with pytest.raises(ssl.SSLError):
            await server.shown(trusting(FIRST))


@pytest.mark.parametrize("pair", BROKEN.values(), ids=BROKEN.keys())
async def test_a_broken_pair_leaves_the_one_before_it_and_says_so_once(
    tmp_path: Path, pair: tuple[bytes | None, bytes | None], caplog: pytest.LogCaptureFixture
) -> None:
    secret, second = MountedSecret(tmp_path / "tls", FIRST), self_signed("second")
    async with running(secret.path) as server:
        assert server.certificate.problem == ""
        secret.swap(pair)
        for _ in range(3):
            server.certificate.reload()
        assert await server.shown(trusting(FIRST)) == "first"
        assert "stays as it was" in server.certificate.problem
        assert [record.levelname for record in caplog.records].count("ERROR") == 1
        assert "secret" not in caplog.text
        secret.swap(second)
        server.certificate.reload()
        assert await server.shown(trusting(second)) == "second"
        assert server.certificate.problem == ""


@pytest.mark.parametrize("pair", BROKEN.values(), ids=BROKEN.keys())
def test_a_server_does_not_start_with_a_broken_pair(
    tmp_path: Path, pair: tuple[bytes | None, bytes | None]
) -> None:
    secret = MountedSecret(tmp_path / "tls", FIRST)
    secret.swap(pair)
    with pytest.raises(InvalidCertificate) as caught:
        ServerCertificate(secret.path)
    assert "secret-text" not in str(caught.value)


async def test_files_that_are_followed_are_taken_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mcp_server.tls.POLL_SECONDS", 0.02)
    secret = MountedSecret(tmp_path / "tls", FIRST)
    certificate = ServerCertificate(secret.path)
    before = certificate.expires_at
    following = asyncio.create_task(certificate.follow())
    secret.swap(self_signed(valid_for=timedelta(days=9)))
    async with asyncio.timeout(10):
        while certificate.expires_at == before:
            await asyncio.sleep(0.01)
    following.cancel()


def test_a_certificate_that_ran_out_is_a_problem(tmp_path: Path) -> None:
    now = datetime.now(UTC)
    secret = MountedSecret(tmp_path / "tls", FIRST)
    certificate = ServerCertificate(secret.path, lambda: now)
    assert certificate.problem == ""
    now += timedelta(days=2)
    assert "expired" in certificate.problem


async def test_what_is_older_than_tls_1_2_is_refused(tmp_path: Path) -> None:
    secret = MountedSecret(tmp_path / "tls", FIRST)
    old = trusting(FIRST)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        old.minimum_version = ssl.TLSVersion.TLSv1
        old.maximum_version = ssl.TLSVersion.TLSv1_1
    old.set_ciphers("DEFAULT:@SECLEVEL=0")
    async with running(secret.path) as server:
        with pytest.raises((ssl.SSLError, ConnectionResetError)):
            await server.shown(old)
        old.maximum_version = ssl.TLSVersion.TLSv1_2
        assert await server.shown(old) == "first"


async def test_plain_http_gets_no_answer(tmp_path: Path) -> None:
    secret = MountedSecret(tmp_path / "tls", FIRST)
    async with running(secret.path) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(REQUEST)
        async with asyncio.timeout(10):
            assert b"HTTP" not in await reader.read()
        writer.close()
