"""A server's certificate as an admin would have it: for the name of a Service, from a private authority."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from cli_mcp.authority import generate_authority

VALIDITY = timedelta(days=360)


@dataclass(frozen=True, slots=True)
class ServerCertificate:
    """All PEM; `chain` begins with the server's."""

    authority: str
    chain: str
    key: str


def server_certificate(host: str, validity: timedelta = VALIDITY) -> ServerCertificate:
    now = datetime.now(UTC)
    authority_pem, authority_key_pem = generate_authority("e2e", now)
    authority = x509.load_pem_x509_certificate(authority_pem.encode())
    authority_key = serialization.load_pem_private_key(authority_key_pem.encode(), None)
    assert isinstance(authority_key, ec.EllipticCurvePrivateKey)
    key = ec.generate_private_key(ec.SECP256R1())
    signer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key())
    certificate = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "cli-mcp")]))
        .issuer_name(authority.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(authority.not_valid_before_utc)
        .not_valid_after(now + validity)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False)
        .add_extension(signer, critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    pem = certificate.public_bytes(serialization.Encoding.PEM).decode()
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return ServerCertificate(authority_pem, pem + authority_pem, private.decode())
