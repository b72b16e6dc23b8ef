"""The proxy's authority and the certificates it shows to clients: short-lived, made when first needed.

Two authorities at once are a rotation. Sandboxes trust every certificate of `ca.crt` but see a change only
after a while, so the newest signs once it has been known for a time.
"""

import os
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from cli_mcp.authority import CLOCK_SKEW

LEAF_VALIDITY = timedelta(days=2)
# A connection may outlive its certificate, a handshake may not; nobody gets one that is about to end.
LEAF_RENEWAL_AGE = LEAF_VALIDITY / 2
# Kubernetes takes 60 to 90 s to bring a changed Secret into running pods.
ADOPTION_SECONDS = 120.0
_PEM_BEGIN = "-----BEGIN"


class InvalidAuthority(Exception):
    """The files of the authority cannot be used; the message quotes nothing of them."""


@dataclass(frozen=True, slots=True)
class Authority:
    """One certificate with its private key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey = field(repr=False)

    @property
    def fingerprint(self) -> bytes:
        return self.certificate.fingerprint(hashes.SHA256())


def parse_authorities(certificates_pem: str, keys_pem: str, now: datetime) -> tuple[Authority, ...]:
    """The authorities whose keys are there, in the order of `ca.crt`: the newest first.

    Raises InvalidAuthority when the first certificate, which is to sign, has no key or is not valid at `now`.
    """
    try:
        certificates = x509.load_pem_x509_certificates(certificates_pem.encode())
    except ValueError:
        raise InvalidAuthority("ca.crt is not a list of PEM certificates") from None
    keys = {_public_bytes(key.public_key()): key for key in _parse_keys(keys_pem)}
    authorities = tuple(
        Authority(certificate, key)
        for certificate in certificates
        if (key := keys.get(_public_bytes(certificate.public_key()))) is not None
    )
    if not authorities or authorities[0].certificate != certificates[0]:
        raise InvalidAuthority("ca.key has no key for the first certificate of ca.crt")
    newest = certificates[0]
    if not newest.not_valid_before_utc <= now < newest.not_valid_after_utc:
        raise InvalidAuthority(
            f"the first certificate of ca.crt is valid from {newest.not_valid_before_utc:%F %T} "
            f"to {newest.not_valid_after_utc:%F %T} UTC only"
        )
    return authorities


def signing_authority(authorities: Sequence[Authority], known_seconds: float) -> Authority:
    """Which one signs, when the newest has been known for `known_seconds`."""
    if len(authorities) > 1 and known_seconds < ADOPTION_SECONDS:
        return authorities[1]
    return authorities[0]


def _parse_keys(pem: str) -> list[ec.EllipticCurvePrivateKey]:
    keys: list[ec.EllipticCurvePrivateKey] = []
    for block in pem.split(_PEM_BEGIN)[1:]:
        try:
            key = serialization.load_pem_private_key((_PEM_BEGIN + block).encode(), password=None)
        except (ValueError, TypeError, InvalidSignature):
            # `from None`: nothing of a private key goes into a message.
            raise InvalidAuthority("ca.key is not a list of unencrypted PEM private keys") from None
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise InvalidAuthority("ca.key must hold elliptic-curve keys")
        keys.append(key)
    return keys


def _public_bytes(key: object) -> bytes:
    if not isinstance(key, ec.EllipticCurvePublicKey):
        return b""
    return key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)


def leaf_certificate(
    host: str, public_key: ec.EllipticCurvePublicKey, authority: Authority, now: datetime
) -> x509.Certificate:
    """A server certificate for one host name or address."""
    try:
        name: x509.GeneralName = x509.IPAddress(ip_address(host))
    except ValueError:
        name = x509.DNSName(host)
    issuer = authority.certificate
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host[:64])]))
        .issuer_name(issuer.subject)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(max(now - CLOCK_SKEW, issuer.not_valid_before_utc))
        .not_valid_after(min(now + LEAF_VALIDITY, issuer.not_valid_after_utc))
        .add_extension(x509.SubjectAlternativeName([name]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(
            x509.KeyUsage(
                digital_signature=True,
                content_commitment=False,
                key_encipherment=False,
                data_encipherment=False,
                key_agreement=False,
                key_cert_sign=False,
                crl_sign=False,
                encipher_only=False,
                decipher_only=False,
            ),
            critical=True,
        )
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key()), critical=False
        )
        .sign(authority.key, hashes.SHA256())
    )


@dataclass(slots=True)
class _Leaf:
    context: ssl.SSLContext
    authority: bytes
    renew_at: datetime


class LeafCache:
    """TLS server contexts by host. It is as large as the route table, since only routes get this far."""

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._leaves: dict[str, _Leaf] = {}

    def context(self, host: str, authority: Authority, now: datetime | None = None) -> ssl.SSLContext:
        """A context that proves to be `host` to whoever trusts `authority`, and takes no other SNI."""
        now = now or datetime.now(UTC)
        leaf = self._leaves.get(host)
        if leaf is None or leaf.authority != authority.fingerprint or leaf.renew_at <= now:
            leaf = _Leaf(
                self._make_context(host, authority, now), authority.fingerprint, now + LEAF_RENEWAL_AGE
            )
            self._leaves[host] = leaf
        return leaf.context

    def keep_only(self, hosts: set[str]) -> None:
        """Forget the hosts that are no longer any route's."""
        self._leaves = {host: leaf for host, leaf in self._leaves.items() if host in hosts}

    def _make_context(self, host: str, authority: Authority, now: datetime) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_RENEGOTIATION
        # Two for each connection cost what a resumed handshake would save, and most clients never resume.
        context.num_tickets = 0
        # Clients that prefer HTTP/2 fall back to this.
        context.set_alpn_protocols(["http/1.1"])
        certificate = leaf_certificate(host, self._key.public_key(), authority, now)
        chain = b"".join(
            one.public_bytes(serialization.Encoding.PEM) for one in (certificate, authority.certificate)
        )
        _load_chain(context, chain, self._key)
        context.sni_callback = _only(host)
        return context


def _load_chain(context: ssl.SSLContext, chain: bytes, key: ec.EllipticCurvePrivateKey) -> None:
    """What load_cert_chain does from a file, from memory: the key never lies on a disk."""
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    fd = os.memfd_create("leaf", os.MFD_CLOEXEC)
    try:
        with open(fd, "wb", closefd=False) as file:
            file.write(chain + private)
        context.load_cert_chain(f"/proc/self/fd/{fd}")
    finally:
        os.close(fd)


def _only(host: str) -> Callable[[ssl.SSLObject, str | None, ssl.SSLContext], int | None]:
    def check(connection: ssl.SSLObject, server_name: str | None, context: ssl.SSLContext) -> int | None:
        # Without a name it is an IP target or an old client; the CONNECT said where it goes.
        if server_name is None or server_name.lower() == host:
            return None
        return ssl.ALERT_DESCRIPTION_UNRECOGNIZED_NAME

    return check
