"""The server's certificate: from the files of a mounted Secret, replaced under a running server.

A new pair is for new connections; those that are open keep theirs. What cannot be used is said, and the pair
before it stays.
"""

import asyncio
import logging
import os
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509

from cli_mcp.mounted import fingerprint

_log = logging.getLogger(__name__)

CERTIFICATE_FILE, KEY_FILE = "tls.crt", "tls.key"
POLL_SECONDS = 2.0


class InvalidCertificate(Exception):
    """The pair of certificate and key cannot be used; the message quotes nothing of the key."""


@dataclass(frozen=True, slots=True)
class _Pair:
    context: ssl.SSLContext
    expires_at: datetime


class ServerCertificate:
    """`context` serves connections with the pair that was last good."""

    def __init__(self, directory: Path, clock: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        """Raises InvalidCertificate."""
        self._directory = directory
        self._files = (directory / CERTIFICATE_FILE, directory / KEY_FILE)
        self._clock = clock
        self._seen = fingerprint(self._files)
        self._pair = _load(directory, clock())
        self._refused = ""
        self.context = _server_context()
        # Called for every handshake, with or without a name in it. Another context there brings its
        # certificate alone, whereas loading a pair into a context adds to the keys of other types in it.
        self.context.sni_callback = self._choose

    @property
    def expires_at(self) -> datetime:
        return self._pair.expires_at

    @property
    def problem(self) -> str:
        """What an operator should know; empty when all is well."""
        if self._clock() >= self.expires_at:
            return f"the TLS certificate expired at {self.expires_at:%F %T} UTC. {self._refused}".strip()
        return self._refused

    async def follow(self) -> None:
        """Take over changed files until cancelled."""
        while True:
            await asyncio.sleep(POLL_SECONDS)
            self.reload()

    def reload(self) -> None:
        """Take over the files if they changed. What is invalid is tried again: perhaps only one of the two
        was there."""
        seen = fingerprint(self._files)
        if seen == self._seen and not self._refused:
            return
        self._seen = seen
        try:
            self._pair = _load(self._directory, self._clock())
        except InvalidCertificate as error:
            refused = f"the TLS certificate stays as it was: {error}"
            if refused != self._refused:
                _log.error(refused)
            self._refused = refused
            return
        self._refused = ""
        _log.info("TLS certificate reloaded; it expires at %s UTC", f"{self.expires_at:%F %T}")

    def _choose(self, connection: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
        connection.context = self._pair.context


def _server_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(["http/1.1"])
    # A resumed handshake would go on with the certificate before.
    context.options |= ssl.OP_NO_TICKET
    context.num_tickets = 0
    return context


def _load(directory: Path, now: datetime) -> _Pair:
    try:
        chain, key = ((directory / name).read_bytes() for name in (CERTIFICATE_FILE, KEY_FILE))
        certificate = x509.load_pem_x509_certificates(chain)[0]
    except OSError as error:
        raise InvalidCertificate(f"{error.filename}: {error.strerror}") from None
    except ValueError:
        raise InvalidCertificate(f"{directory / CERTIFICATE_FILE} holds no PEM certificate") from None
    if certificate.not_valid_after_utc <= now:
        raise InvalidCertificate(
            f"{directory / CERTIFICATE_FILE} expired at {certificate.not_valid_after_utc:%F %T} UTC"
        )
    context = _server_context()
    try:
        _load_pair(context, chain + b"\n" + key)
    except (ssl.SSLError, OSError, ValueError):
        # `from None`: nothing of a private key goes into a message.
        raise InvalidCertificate(
            f"{directory / KEY_FILE} is not the unencrypted PEM private key of {CERTIFICATE_FILE}"
        ) from None
    return _Pair(context, certificate.not_valid_after_utc)


def _load_pair(context: ssl.SSLContext, pem: bytes) -> None:
    """What was read, not what the files are by now: the mount may change between the two."""
    descriptor = os.memfd_create("tls", os.MFD_CLOEXEC)
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(pem)
        # A password, so that nobody is asked for one.
        context.load_cert_chain(f"/proc/self/fd/{descriptor}", password=lambda: b"none")
    finally:
        os.close(descriptor)
