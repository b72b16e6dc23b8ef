"""One SSH connection: who may log in, what may be asked for, and how much of everything.

asyncssh does the protocol. Added here are what it leaves to others: back-pressure from the socket, turns that
end, bounds on what may be sent before a session, the check of the signature's algorithm, and a word on every
refusal.
"""

import asyncio
import ipaddress
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, AnyStr

import asyncssh
from asyncssh.constants import (
    DISC_BY_APPLICATION,
    DISC_NO_MORE_AUTH_METHODS_AVAILABLE,
    DISC_PROTOCOL_ERROR,
    DISC_TOO_MANY_CONNECTIONS,
    OPEN_ADMINISTRATIVELY_PROHIBITED,
)

from ssh_gateway.admission import Limits, Rate, Refusal, Ticket
from ssh_gateway.audit import Event, SshAuditSink, SshRecord
from ssh_gateway.authorization import Authorizer, Refused
from ssh_gateway.authorized_keys import Address, fingerprint
from ssh_gateway.channel import WINDOW_BYTES, StdioChannel
from ssh_gateway.pace import Debts, Pace
from ssh_gateway.routes import session_key

MAX_BYTES_BEFORE_SESSION = 64 * 1024
"""Of key exchange, login and channel set-up, which take some 10 KiB."""
MAX_REFUSED_REQUESTS = 32
"""Of a login; each is a line in the audit log."""
MAX_AUTHENTICATION_REQUESTS = 32
"""Of a connection, by whatever method; a client asks twice for each of its keys."""
MIN_PACKET_BYTES = 4096
"""That a client must take. Each packet costs the same, and all clients take 16 KiB or more."""
KEY_EXCHANGES_PER_MINUTE = 6
"""Of a connection. OpenSSH's client wants one an hour or for each GiB."""

# RFC 8332: an ssh-rsa key signs with SHA-2. asyncssh would take SHA-1 as well.
_SIGNATURE_ALGORITHMS = (
    "ssh-ed25519",
    "ecdsa-sha2-nistp256",
    "ecdsa-sha2-nistp384",
    "ecdsa-sha2-nistp521",
    "rsa-sha2-256",
    "rsa-sha2-512",
)
# Of RFC 4253 section 12.
_KEXINIT, _NEWKEYS = 20, 21
# asyncssh copies what it holds for each packet in it, so that it gets little at a time.
_PIECE_BYTES = 2048
# Of the processor, estimated: signature and Diffie-Hellman run outside of the turn that asked for them.
_KEY_EXCHANGE_SECONDS = 0.002

_KEEPALIVE_SECONDS = 30
_KEEPALIVES_MISSED = 3
# A client asks for its session at once.
_SESSION_REQUEST_SECONDS = 30.0


def server_options(host_key: asyncssh.SSHKey, limits: Limits) -> asyncssh.SSHServerConnectionOptions:
    """The protocol: what is modern and common to clients, and nothing that only costs.

    Compression would be a way to make us inflate megabytes from kilobytes. The ciphers authenticate what they
    encrypt, so that the list of MACs is never used; it must not be empty.
    """
    return asyncssh.SSHServerConnectionOptions(
        config=None,
        server_factory=Login,
        server_version="cli-mcp",
        server_host_keys=[host_key],
        kex_algs=["mlkem768x25519-sha256", "curve25519-sha256", "curve25519-sha256@libssh.org"],
        encryption_algs=[
            "chacha20-poly1305@openssh.com",
            "aes256-gcm@openssh.com",
            "aes128-gcm@openssh.com",
        ],
        mac_algs=["hmac-sha2-256-etm@openssh.com", "hmac-sha2-512-etm@openssh.com"],
        signature_algs=list(_SIGNATURE_ALGORITHMS),
        compression_algs=None,
        password_auth=False,
        kbdint_auth=False,
        host_based_auth=False,
        gss_host=None,
        gss_kex=False,
        gss_auth=False,
        allow_pty=True,  # it is refused where the refusal can be written down
        line_editor=False,
        agent_forwarding=False,
        x11_forwarding=False,
        allow_scp=False,
        encoding=None,
        window=WINDOW_BYTES,
        rdns_lookup=False,
        login_timeout=limits.login_grace_seconds,
        keepalive_interval=_KEEPALIVE_SECONDS,
        keepalive_count_max=_KEEPALIVES_MISSED,
    )


@dataclass(frozen=True, slots=True)
class Policy:
    """What all connections of a gateway have in common. Input is paid for by the address until the login,
    then by the user. Of `large_messages` a channel takes one for each that it receives. `on_session` serves
    the channel of a login."""

    authorizer: Authorizer
    limits: Limits
    audit: SshAuditSink
    pace: Pace
    debts: Debts
    max_line_bytes: int
    large_messages: asyncio.Semaphore
    on_session: Callable[["Connection", StdioChannel], None]


class Connection(asyncssh.SSHServerConnection):
    """`ticket` is its place among the others, given back at the end."""

    def __init__(
        self,
        options: asyncssh.SSHServerConnectionOptions,
        policy: Policy,
        address: Address,
        ticket: Ticket,
        on_closed: Callable[["Connection"], None],
    ) -> None:
        super().__init__(asyncio.get_running_loop(), options)
        self.policy = policy
        self.address = address
        self.username: str | None = None
        """Set by the login."""
        self.fingerprint: str | None = None
        self.accepted_blob: bytes | None = None
        self.channel: StdioChannel | None = None
        self.writable = asyncio.Event()
        self.writable.set()
        self._ticket = ticket
        self._on_closed = on_closed
        self._tcp: asyncio.Transport | None = None
        self._socket_full = False
        self._exchanging_keys = False
        self._key_exchanges = Rate(KEY_EXCHANGES_PER_MINUTE, time.monotonic)
        self.debt = policy.debts.of(f"address {ticket.source}")
        """Of who pays for what this connection sends."""
        self._input = bytearray()
        """What has come and not had its turn."""
        self._turn: asyncio.Handle | None = None
        self._over = False
        self._bytes_before_session = 0
        self._authentication_requests = 0
        self._failed_attempts = 0
        self._refused_requests = 0

    def record(self, event: Event, reason: str | None = None, username: str | None = None) -> None:
        """Write down what happened to this connection."""
        user = username or self.username
        self.policy.audit(
            SshRecord(
                event,
                datetime.now(UTC),
                client=str(self.address),
                username=user,
                session=session_key(self.username).id if self.username else None,
                fingerprint=self.fingerprint,
                reason=reason,
            )
        )

    def cut(self, reason: str) -> None:
        """End the connection at once, without waiting for the client."""
        if not self._over:
            self.record(Event.REFUSED_CONNECTION, reason)
        self._forget_input()
        self.abort()

    def ended(self) -> None:
        self._forget_input()
        self._ticket.leave()
        self.writable.set()
        self._on_closed(self)

    # The socket

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._tcp = transport
        super().connection_made(transport)

    def data_received(self, data: bytes, datatype: asyncssh.DataType = None) -> None:
        if self.channel is None:
            self._bytes_before_session += len(data)
            if self._bytes_before_session > MAX_BYTES_BEFORE_SESSION:
                self.cut("it sent too much before a session")
                return
        self._input += data
        if self._turn is None and not self._socket_full:
            self._take_turn()

    def _take_turn(self) -> None:
        """Let asyncssh have as much of the input as a turn takes; a long one makes the next late."""
        self._turn = None
        begun, taken_bytes = time.thread_time(), 0
        seconds = 0.0
        pace = self.policy.pace
        while self._input and taken_bytes < pace.turn_bytes and seconds < pace.turn_seconds:
            piece = bytes(self._input[:_PIECE_BYTES])
            del self._input[:_PIECE_BYTES]
            taken_bytes += len(piece)
            super().data_received(piece)
            if self.channel is not None and self.channel.overstuffed:
                self.cut("it set too many environment variables")
            seconds = time.thread_time() - begun
        self.debt.charge(seconds)
        self._continue()

    def _continue(self) -> None:
        """Once there is no input without its turn, more is read."""
        if self._over or self._socket_full or self._turn is not None or self._tcp is None:
            return
        delay = self.debt.delay_seconds()
        if self._input or delay:
            self._turn = asyncio.get_running_loop().call_later(delay, self._take_turn)
            self._tcp.pause_reading()
        elif not self._tcp.is_closing():
            self._tcp.resume_reading()

    def _forget_input(self) -> None:
        self._over = True
        self._input.clear()
        if self._turn is not None:
            self._turn.cancel()

    def pause_writing(self) -> None:
        """The client does not read; it is not listened to either, or its requests would become answers."""
        self._socket_full = True
        self._tell_writable()
        if self._turn is not None:
            self._turn.cancel()
            self._turn = None
        if self._tcp is not None and not self._tcp.is_closing():
            self._tcp.pause_reading()

    def resume_writing(self) -> None:
        self._socket_full = False
        self._tell_writable()
        self._continue()

    def send_packet(self, pkttype: int, *args: bytes, handler: Any = None) -> None:
        """During a key exchange, which a client may leave unfinished, asyncssh keeps all that is written."""
        if pkttype in (_KEXINIT, _NEWKEYS):
            self._exchanging_keys = pkttype == _KEXINIT
            self._tell_writable()
        if pkttype == _KEXINIT:
            self.debt.charge(_KEY_EXCHANGE_SECONDS)
            if not self._key_exchanges.take(""):
                self.cut("it asked for too many key exchanges")
        super().send_packet(pkttype, *args, handler=handler)

    def _tell_writable(self) -> None:
        if self._socket_full or self._exchanging_keys:
            self.writable.clear()
        else:
            self.writable.set()

    def create_server_channel(self, *args: Any, **kwargs: Any) -> asyncssh.SSHServerChannel[AnyStr]:
        """As asyncssh makes it, for a client that takes packets of a sane size."""
        channel = super().create_server_channel(*args, **kwargs)
        open_channel = channel.process_open

        def process_open(send_chan: int, send_window: int, send_pktsize: int, session: Any) -> None:
            if send_pktsize < MIN_PACKET_BYTES:
                self.cut(f"it takes packets of {send_pktsize} bytes, at least {MIN_PACKET_BYTES} are needed")
            else:
                open_channel(send_chan, send_window, send_pktsize, session)

        channel.process_open = process_open  # type: ignore[method-assign]
        return channel

    # What nobody gets, where asyncssh asks nobody

    async def create_agent_listener(self) -> bool:
        self.refuse_request("agent forwarding")
        return False

    async def attach_x11_listener(
        self, chan: asyncssh.SSHServerChannel[AnyStr], auth_proto: bytes, auth_data: bytes, screen: int
    ) -> str | None:
        self.refuse_request("X11 forwarding")
        return None

    def _process_hostkeys_prove_00_at_openssh_dot_com_global_request(self, packet: object) -> None:
        """It would sign as often as the client likes, thousands of times in one packet."""
        self.refuse_request("a proof of host keys")
        self._report_global_response(False)

    def refuse_request(self, what: str) -> None:
        self._refused_requests += 1
        if self._refused_requests <= MAX_REFUSED_REQUESTS:
            self.record(Event.REFUSED_REQUEST, f"{what} was asked for")
        elif self._refused_requests == MAX_REFUSED_REQUESTS + 1:
            self.cut("it asked again and again for what nobody gets")

    # The login

    async def validate_public_key(self, username: str, key_data: bytes, msg: bytes, signature: bytes) -> bool:
        """First without a signature (may this key log in?), then with one. Raises DisconnectError.

        A refusal comes at a fixed time after the question: the time that it takes to find no key, or no route
        at all, is nobody's business.
        """
        loop = asyncio.get_running_loop()
        answer_at = loop.time() + self.policy.limits.refusal_seconds
        self.fingerprint = fingerprint(key_data)
        self._count_authentication_request()
        refused = await asyncio.to_thread(self.policy.authorizer.judge, username, key_data, self.address)
        if refused is None and signature:
            refused = await self._verify(username, key_data, msg, signature)
        if refused is not None:
            await asyncio.sleep(answer_at - loop.time())
            self._attempt_failed(username, refused)
        elif signature:
            self._log_in(username)
        return refused is None

    def send_userauth_failure(self, partial_success: bool) -> None:
        """Whatever the method was, and `none` and those that nobody has come by no other way."""
        self._count_authentication_request()
        super().send_userauth_failure(partial_success)

    def _count_authentication_request(self) -> None:
        self._authentication_requests += 1
        if self._authentication_requests > MAX_AUTHENTICATION_REQUESTS:
            raise asyncssh.DisconnectError(DISC_NO_MORE_AUTH_METHODS_AVAILABLE, "Too many requests to log in")

    async def _verify(self, username: str, key_data: bytes, msg: bytes, signature: bytes) -> Refused | None:
        algorithm = _first_string(signature)
        if algorithm not in _SIGNATURE_ALGORITHMS:
            return Refused(f"signatures of type {algorithm[:40]!r} are not accepted")
        self.accepted_blob = key_data
        verified = await super().validate_public_key(username, key_data, msg, signature)
        self.accepted_blob = None
        return None if verified else Refused("the signature is wrong")

    def _attempt_failed(self, username: str, refused: Refused) -> None:
        self.record(Event.REFUSED_LOGIN, refused.reason, username)
        self._failed_attempts += 1
        if self._failed_attempts >= self.policy.limits.attempts_per_connection:
            raise asyncssh.DisconnectError(DISC_NO_MORE_AUTH_METHODS_AVAILABLE, "Too many keys were refused")

    def _log_in(self, username: str) -> None:
        try:
            self._ticket.log_in(username)
        except Refusal as refusal:
            self.record(Event.REFUSED_LOGIN, str(refusal), username)
            raise asyncssh.DisconnectError(DISC_TOO_MANY_CONNECTIONS, str(refusal)) from None
        self.username = username
        self.debt = self.policy.debts.of(f"user {username}")


class Login(asyncssh.SSHServer):
    """What asyncssh asks about a connection: public keys only, and one session."""

    _connection: Connection
    _asked_for = ""
    _no_session: asyncio.TimerHandle | None = None

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        assert isinstance(conn, Connection)
        self._connection = conn

    def connection_lost(self, exc: Exception | None) -> None:
        connection = self._connection
        connection.ended()
        if self._no_session is not None:
            self._no_session.cancel()
        if connection.username is not None:
            connection.record(Event.LOGOUT, str(exc) if exc is not None else None)
        elif self._asked_for and connection.fingerprint is None:
            connection.record(Event.REFUSED_LOGIN, "no public key was offered", self._asked_for)

    def begin_auth(self, username: str) -> bool:
        """Called once for each user name of a connection. As in sshd(8) there is only one: each costs some
        work, and whoever tries out names is to do it by connections, which are counted."""
        if self._asked_for:
            raise asyncssh.DisconnectError(DISC_PROTOCOL_ERROR, "Another user name needs another connection")
        self._asked_for = username
        return True

    def public_key_auth_supported(self) -> bool:
        return True

    def password_auth_supported(self) -> bool:
        return False

    def kbdint_auth_supported(self) -> bool:
        return False

    def validate_public_key(self, username: str, key: asyncssh.SSHKey) -> bool:
        """Whether it is the key that Connection has looked at, and none that came past it."""
        return key.public_data == self._connection.accepted_blob

    def auth_completed(self) -> None:
        self._connection.record(Event.LOGIN)
        self._no_session = asyncio.get_running_loop().call_later(
            _SESSION_REQUEST_SECONDS, self._without_session
        )

    def session_requested(self) -> asyncssh.SSHServerSession[bytes]:
        connection = self._connection
        if connection.channel is not None:
            raise self._prohibited("a second session")
        connection.channel = StdioChannel(
            max_line_bytes=connection.policy.max_line_bytes,
            large_messages=connection.policy.large_messages,
            connection_writable=connection.writable,
            debt=connection.debt,
            on_started=self._session_started,
            on_refusal=connection.refuse_request,
        )
        return connection.channel

    def connection_requested(self, dest_host: str, dest_port: int, orig_host: str, orig_port: int) -> bool:
        raise self._prohibited("forwarding")

    def unix_connection_requested(self, dest_path: str) -> bool:
        raise self._prohibited("forwarding")

    def tun_requested(self, unit: int | None) -> bool:
        raise self._prohibited("a tunnel")

    def tap_requested(self, unit: int | None) -> bool:
        raise self._prohibited("a tunnel")

    def server_requested(self, listen_host: str, listen_port: int) -> bool:
        self._connection.refuse_request("remote forwarding")
        return False

    def unix_server_requested(self, listen_path: str) -> bool:
        self._connection.refuse_request("remote forwarding")
        return False

    def _session_started(self, channel: StdioChannel) -> None:
        if self._no_session is not None:
            self._no_session.cancel()
        self._connection.policy.on_session(self._connection, channel)

    def _without_session(self) -> None:
        self._connection.disconnect(DISC_BY_APPLICATION, "No session was asked for")

    def _prohibited(self, what: str) -> asyncssh.ChannelOpenError:
        self._connection.refuse_request(what)
        return asyncssh.ChannelOpenError(OPEN_ADMINISTRATIVELY_PROHIBITED, f"{what} is not available here")


def peer_address(transport: asyncio.BaseTransport) -> Address:
    """The client's address; an IPv4 one also where it came in by an IPv6 socket."""
    address = ipaddress.ip_address(transport.get_extra_info("peername")[0].partition("%")[0])
    return getattr(address, "ipv4_mapped", None) or address


def _first_string(packet: bytes) -> str:
    """The first string of RFC 4251 section 5; empty when there is none."""
    length = int.from_bytes(packet[:4], "big")
    return packet[4 : 4 + length].decode("ascii", "replace")
