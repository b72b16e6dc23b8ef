"""Certificates for tests, in directories that change as the kubelet changes a mounted Secret."""

import ssl
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID

Key = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey
Pair = tuple[bytes, bytes]


def elliptic_key() -> Key:
    return ec.generate_private_key(ec.SECP256R1())


def rsa_key() -> Key:
    return rsa.generate_private_key(65537, 2048)


def self_signed(
    name: str = "first",
    key: Key | None = None,
    valid_for: timedelta = timedelta(days=1),
    password: bytes = b"",
) -> Pair:
    """PEM of certificate and key, for localhost and 127.0.0.1."""
    key = key or elliptic_key()
    now = datetime.now(UTC)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    names = [x509.DNSName("localhost"), x509.IPAddress(ip_address("127.0.0.1"))]
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=2))
        .not_valid_after(now + valid_for)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .sign(key, hashes.SHA256())
    )
    encryption = serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
    return (
        certificate.public_bytes(serialization.Encoding.PEM),
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption),
    )


class MountedSecret:
    """A directory of symbolic links that lead through `..data`, which is swapped at once."""

    def __init__(self, directory: Path, pair: Pair) -> None:
        self.path = directory
        self._version = 0
        directory.mkdir()
        self.swap(pair)
        for name in ("tls.crt", "tls.key"):
            (directory / name).symlink_to(Path("..data") / name)

    def swap(self, pair: tuple[bytes | None, bytes | None]) -> None:
        self._version += 1
        version = self.path / f"..version-{self._version}"
        version.mkdir()
        for name, content in zip(("tls.crt", "tls.key"), pair, strict=True):
            if content is not None:
                (version / name).write_bytes(content)
        new = self.path / "..data-new"
        new.symlink_to(version.name)
        new.replace(self.path / "..data")


def trusting(*pairs: Pair) -> ssl.SSLContext:
    """A client that trusts exactly these certificates."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=b"".join(pair[0] for pair in pairs).decode())
    return context
