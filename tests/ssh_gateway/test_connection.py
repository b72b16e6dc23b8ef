"""Who is let in, and what is refused to those who are."""

import asyncio
import contextlib
import time
from pathlib import Path
from typing import Any

import asyncssh
import pytest
from asyncssh.constants import MSG_IGNORE, MSG_USERAUTH_REQUEST, OPEN_ADMINISTRATIVELY_PROHIBITED
from asyncssh.packet import Boolean, String

from ssh_gateway.admission import Limits
from ssh_gateway.audit import Event
from ssh_gateway.authorization import UNKNOWN_KEY, UNKNOWN_USER
from ssh_gateway.connection import (
    KEY_EXCHANGES_PER_MINUTE,
    MAX_AUTHENTICATION_REQUESTS,
    MAX_BYTES_BEFORE_SESSION,
    MAX_REFUSED_REQUESTS,
)
from ssh_gateway.routes import session_key
from tests.mcp_server.fake_backend import eventually
from tests.ssh_gateway.harness import KEY, OTHER_KEY, public, running_gateway


async def test_a_login_is_written_down_with_user_session_and_key(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as gateway:
        assert await gateway.can_log_in("alice")
        await eventually(lambda: len(gateway.records) == 2)
        login, logout = gateway.records
        assert (login.event, logout.event) == (Event.LOGIN, Event.LOGOUT)
        assert login.client == "127.0.0.1"
        assert login.username == "alice"
        assert login.session == session_key("alice").id
        assert login.fingerprint == KEY.get_fingerprint()


@pytest.mark.parametrize(
    ("username", "key", "reason"),
    [
        ("alice", OTHER_KEY, UNKNOWN_KEY),
        ("bob", KEY, UNKNOWN_USER),
        ("agent-", KEY, UNKNOWN_USER),
        ("root", KEY, UNKNOWN_USER),
        ("alice", None, "no public key was offered"),
    ],
)
async def test_whoever_is_not_listed_is_refused_and_written_down(
    tmp_path: Path, username: str, key: asyncssh.SSHKey | None, reason: str
) -> None:
    async with running_gateway(tmp_path) as gateway:
        assert not await gateway.can_log_in(username, [key] if key else [])
        await eventually(lambda: gateway.reasons(Event.REFUSED_LOGIN) == [reason])
        (record,) = gateway.records
        assert record.username == username
        assert record.fingerprint == (key and key.get_fingerprint())
        assert not gateway.reasons(Event.LOGIN)


@pytest.mark.parametrize("method", ["password", "keyboard-interactive", "hostbased", "gssapi-with-mic"])
async def test_public_keys_are_the_only_way(tmp_path: Path, method: str) -> None:
    async with running_gateway(tmp_path) as gateway:
        assert not await gateway.can_log_in("alice", [KEY], password="alice", preferred_auth=method)
        methods = await asyncssh.get_server_auth_methods("127.0.0.1", gateway.port, "alice")
        assert methods == ["publickey"]


@pytest.mark.parametrize(
    "key",
    [
        asyncssh.generate_private_key("ssh-rsa", key_size=3072),
        asyncssh.generate_private_key("ecdsa-sha2-nistp256"),
        asyncssh.generate_private_key("ecdsa-sha2-nistp521"),
    ],
    ids=lambda key: key.get_algorithm(),
)
async def test_the_other_kinds_of_keys_log_in(tmp_path: Path, key: asyncssh.SSHKey) -> None:
    async with running_gateway(tmp_path, authorized=[public(key)]) as gateway:
        assert await gateway.can_log_in("alice", [key])


async def test_an_rsa_key_signs_with_sha2_or_not_at_all(tmp_path: Path) -> None:
    key = asyncssh.generate_private_key("ssh-rsa", key_size=3072)
    async with running_gateway(tmp_path, authorized=[public(key)]) as gateway:
        (pair,) = asyncssh.load_keypairs(key)
        pair.sig_algorithm = b"ssh-rsa"
        pair.set_sig_algorithm = lambda sig_algorithm: None  # type: ignore[method-assign]
        assert not await gateway.can_log_in("alice", [pair])
        assert gateway.reasons(Event.REFUSED_LOGIN) == ["signatures of type 'ssh-rsa' are not accepted"]


async def test_a_signature_of_another_key_is_refused(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as gateway:
        (pair,) = asyncssh.load_keypairs(KEY)
        pair.sign = asyncssh.load_keypairs(OTHER_KEY)[0].sign  # type: ignore[method-assign]
        assert not await gateway.can_log_in("alice", [pair])
        assert gateway.reasons(Event.REFUSED_LOGIN) == ["the signature is wrong"]


@pytest.mark.parametrize("listed", ["the authority", "the authority, as one", "the certificate", "the key"])
async def test_a_certificate_opens_nothing(tmp_path: Path, listed: str) -> None:
    authority = OTHER_KEY
    certificate = authority.generate_user_certificate(KEY, "alice", principals=["alice"])
    lines = {
        "the authority": public(authority),
        "the authority, as one": f"cert-authority {public(authority)}",
        "the certificate": certificate.export_certificate().decode().strip(),
        "the key": f"no-pty {public(asyncssh.generate_private_key('ssh-ed25519'))}",
    }
    async with running_gateway(tmp_path, authorized=[lines[listed]]) as gateway:
        assert not await gateway.can_log_in("alice", [(KEY, certificate)])
        assert gateway.reasons(Event.REFUSED_LOGIN)


async def test_options_of_a_key_are_kept_and_their_reason_is_written_down(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as gateway:
        for options, reason in (
            ('from="192.0.2.0/24"', "from="),
            ('expiry-time="20200101"', "expired"),
            ('command="date"', "command"),
        ):
            gateway.authorize(f"{options} {public(KEY)}")
            assert not await gateway.can_log_in()
            assert reason in (gateway.reasons(Event.REFUSED_LOGIN)[-1] or "")
        gateway.authorize(f'from="127.0.0.0/8",restrict,expiry-time="29990101" {public(KEY)}')
        assert await gateway.can_log_in()


async def test_keys_and_routes_count_from_the_next_login_on(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as gateway:
        connection = await gateway.connect("alice")
        gateway.authorize(public(OTHER_KEY))
        assert not await gateway.can_log_in("alice")
        assert await gateway.can_log_in("alice", [OTHER_KEY])
        del gateway.routes[0]
        assert not await gateway.can_log_in("alice", [OTHER_KEY])
        assert await gateway.can_log_in("agent-1", [OTHER_KEY])
        assert not connection.is_closed()
        connection.abort()


async def test_too_many_keys_end_the_connection(tmp_path: Path) -> None:
    keys = [asyncssh.generate_private_key("ssh-ed25519") for _ in range(4)]
    async with running_gateway(tmp_path, limits=Limits(attempts_per_connection=3)) as gateway:
        with pytest.raises(asyncssh.DisconnectError, match="Too many keys"):
            await gateway.connect("alice", [*keys, KEY])
        assert gateway.reasons(Event.REFUSED_LOGIN) == [UNKNOWN_KEY] * 3


async def test_a_connection_that_does_not_log_in_is_ended(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, limits=Limits(login_grace_seconds=0.3)) as gateway:
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        assert (await reader.readline()).startswith(b"SSH-2.0-")
        async with asyncio.timeout(10):
            assert await reader.read() == b""
        writer.close()
        assert gateway.records == []  # as a health check would do it


async def forwards_to_us(connection: asyncssh.SSHClientConnection) -> None:
    await connection.open_connection("127.0.0.1", 22)


async def forwards_to_a_socket(connection: asyncssh.SSHClientConnection) -> None:
    await connection.open_unix_connection("/run/docker.sock")


async def makes_a_tunnel(connection: asyncssh.SSHClientConnection) -> None:
    await connection.open_tun()


async def opens_a_second_session(connection: asyncssh.SSHClientConnection) -> None:
    await connection.create_process()
    await connection.create_process()


async def forwards_to_itself(connection: asyncssh.SSHClientConnection) -> None:
    await connection.forward_remote_port("", 0, "127.0.0.1", 22)


async def forwards_a_socket_to_itself(connection: asyncssh.SSHClientConnection) -> None:
    await connection.forward_remote_path("/tmp/socket", "/run/docker.sock")


async def asks_for_sftp(connection: asyncssh.SSHClientConnection) -> None:
    await connection.start_sftp_client()


async def asks_for_a_subsystem(connection: asyncssh.SSHClientConnection) -> None:
    await connection.create_process(subsystem="netconf")


async def asks_for_a_terminal(connection: asyncssh.SSHClientConnection) -> None:
    await connection.create_process(term_type="xterm")


@pytest.mark.parametrize(
    ("ask", "reason"),
    [
        (forwards_to_us, "forwarding was asked for"),
        (forwards_to_a_socket, "forwarding was asked for"),
        (makes_a_tunnel, "a tunnel was asked for"),
        (opens_a_second_session, "a second session was asked for"),
        (forwards_to_itself, "remote forwarding was asked for"),
        (forwards_a_socket_to_itself, "remote forwarding was asked for"),
        (asks_for_sftp, "the subsystem 'sftp' was asked for"),
        (asks_for_a_subsystem, "the subsystem 'netconf' was asked for"),
        (asks_for_a_terminal, "a terminal was asked for"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
async def test_nothing_but_the_session_is_granted(tmp_path: Path, ask: Any, reason: str) -> None:
    async with running_gateway(tmp_path) as gateway:
        async with await gateway.connect() as connection:
            with pytest.raises((asyncssh.ChannelOpenError, asyncssh.ChannelListenError)) as refused:
                await ask(connection)
            if isinstance(refused.value, asyncssh.ChannelOpenError) and "available" in refused.value.reason:
                assert refused.value.code == OPEN_ADMINISTRATIVELY_PROHIBITED
        assert gateway.reasons(Event.REFUSED_REQUEST) == [reason]


async def test_who_asks_again_and_again_for_what_nobody_gets_is_cut(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as gateway:
        connection = await gateway.connect()
        for _ in range(MAX_REFUSED_REQUESTS):
            with pytest.raises(asyncssh.ChannelOpenError):
                await forwards_to_us(connection)
        with pytest.raises(asyncssh.Error):
            await forwards_to_us(connection)
        async with asyncio.timeout(10):
            await connection.wait_closed()
        assert len(gateway.reasons(Event.REFUSED_REQUEST)) == MAX_REFUSED_REQUESTS


async def test_a_connection_is_for_one_user_name(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, authorized=[public(OTHER_KEY)]) as gateway:

        class ChangesItsMind(asyncssh.SSHClient):
            def connection_made(self, conn: asyncssh.SSHClientConnection) -> None:
                self.connection = conn

            def public_key_auth_requested(self) -> asyncssh.SSHKey | None:
                self.connection._username = "agent-1"
                return OTHER_KEY

        with pytest.raises(asyncssh.DisconnectError, match="another connection"):
            await gateway.connect("alice", [], client_factory=ChangesItsMind)
        assert not gateway.reasons(Event.LOGIN)


async def test_too_many_environment_variables_end_the_connection(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as gateway:
        connection = await gateway.connect()
        with contextlib.suppress(asyncssh.Error, ConnectionError):
            await connection.create_process(env={f"NAME_{n}": "x" * 100 for n in range(100)})
        await connection.wait_closed()
        assert gateway.reasons(Event.REFUSED_CONNECTION) == ["it set too many environment variables"]


@pytest.mark.parametrize("logged_in", [False, True])
async def test_who_sends_a_lot_before_a_session_is_cut(tmp_path: Path, logged_in: bool) -> None:
    async with running_gateway(tmp_path) as gateway:
        if logged_in:
            connection = await gateway.connect()
            for _ in range(MAX_BYTES_BEFORE_SESSION // 16_000 + 2):
                connection.send_debug("x" * 16_000)
            async with asyncio.timeout(10):
                await connection.wait_closed()
        else:
            reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
            writer.write(
                b"SSH-2.0-flood\r\n" + (b"\0\0\0\x0c\x06\x02" + b"\0" * 10) * (MAX_BYTES_BEFORE_SESSION // 16)
            )
            async with asyncio.timeout(10):
                await reader.read()
            writer.close()
        await eventually(lambda: gateway.gateway.connection_count == 0)


async def test_input_is_taken_in_turns_between_which_others_are_served(tmp_path: Path) -> None:
    """The longest that the event loop was held up by a client that sends 256 KiB of the smallest packets."""
    async with running_gateway(tmp_path) as gateway, gateway.client() as client:
        await client.initialize()
        (served,) = gateway.gateway._connections
        assert served._tcp is not None
        sent: list[bytes] = []
        client.connection._send = sent.append  # type: ignore[assignment,method-assign]
        for _ in range(4000):
            client.connection.send_packet(MSG_IGNORE, String(b""))
        begun = time.thread_time()
        served.data_received(b"".join(sent))
        longest = time.thread_time() - begun
        assert served._input, "all of it was taken at once"
        assert not served._tcp.is_reading()
        await eventually(lambda: not served._input)
    assert longest < 0.03


async def never_ends_a_key_exchange(connection: asyncssh.SSHClientConnection) -> None:
    for _ in range(KEY_EXCHANGES_PER_MINUTE + 2):
        connection._send_kexinit()
        connection._kexinit_sent = True
        async with asyncio.timeout(10):
            while not connection._kex_complete and not connection.is_closed():
                await asyncio.sleep(0.01)


async def takes_one_byte_at_a_time(connection: asyncssh.SSHClientConnection) -> None:
    await connection.create_process(max_pktsize=1)


async def asks_for_proofs_of_host_keys(connection: asyncssh.SSHClientConnection) -> None:
    for _ in range(MAX_REFUSED_REQUESTS + 2):
        await connection._make_global_request(b"hostkeys-prove-00@openssh.com")


@pytest.mark.parametrize(
    ("misbehave", "reason"),
    [
        (never_ends_a_key_exchange, "it asked for too many key exchanges"),
        (takes_one_byte_at_a_time, "it takes packets of 1 bytes, at least 4096 are needed"),
        (asks_for_proofs_of_host_keys, "it asked again and again for what nobody gets"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
async def test_what_makes_the_gateway_work_for_nothing_ends_the_connection(
    tmp_path: Path, misbehave: Any, reason: str
) -> None:
    async with running_gateway(tmp_path) as gateway:
        connection = await gateway.connect()
        with contextlib.suppress(asyncssh.Error, ConnectionError):
            await misbehave(connection)
        async with asyncio.timeout(10):
            await connection.wait_closed()
        assert gateway.reasons(Event.REFUSED_CONNECTION) == [reason]


@pytest.mark.parametrize("method", ["none", "password", "publickey"])
async def test_requests_to_log_in_are_counted_by_whatever_method(tmp_path: Path, method: str) -> None:
    """Also for a key that may log in, of which only a signature would be an attempt."""
    more = {"publickey": Boolean(False) + String(b"ssh-ed25519") + String(KEY.public_data)}.get(method, b"")
    request = String(b"alice") + String(b"ssh-connection") + String(method.encode()) + more

    class Client(asyncssh.SSHClient):
        def connection_made(self, conn: asyncssh.SSHClientConnection) -> None:
            self.connection = conn

        def public_key_auth_requested(self) -> None:
            for _ in range(2 * MAX_AUTHENTICATION_REQUESTS):
                self.connection.send_packet(MSG_USERAUTH_REQUEST, request)

    async with running_gateway(tmp_path) as gateway:
        with pytest.raises(asyncssh.Error):
            await gateway.connect("alice", [], client_factory=Client)
        await eventually(lambda: gateway.gateway.connection_count == 0)
        assert not gateway.reasons(Event.LOGIN)


async def test_a_refusal_takes_as_long_for_a_user_as_for_nobody(tmp_path: Path) -> None:
    """It comes at a set time after the question; test_authorization.py says what is done until then."""
    async with running_gateway(tmp_path, limits=Limits(refusal_seconds=0.3)) as gateway:
        for username in ("alice", "nobody"):
            begun = time.monotonic()
            assert not await gateway.can_log_in(username, [OTHER_KEY])
            assert time.monotonic() - begun >= 0.3


async def test_the_algorithms_are_modern_and_nothing_is_compressed(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as gateway:
        async with await gateway.connect(compression_algs=["zlib@openssh.com", "none"]) as connection:
            assert connection.get_extra_info("recv_compression") == "none"
            assert connection.get_extra_info("send_cipher") == "chacha20-poly1305@openssh.com"
        offers: list[dict[str, Any]] = [
            {"kex_algs": ["diffie-hellman-group14-sha256"]},
            {"kex_algs": ["ecdh-sha2-nistp256"]},
            {"encryption_algs": ["aes256-ctr"]},
            {"encryption_algs": ["aes128-cbc"]},
            {"compression_algs": ["zlib"]},
        ]
        for offer in offers:
            with pytest.raises(asyncssh.KeyExchangeFailed):
                await gateway.connect(**offer)
