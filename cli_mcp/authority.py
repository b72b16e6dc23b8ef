"""The certificate authority of an instance's credential proxy: making one, without writing it anywhere.

In a directory it is two files. `ca.crt`, which every sandbox trusts, holds certificates in PEM, the newest
first; `ca.key` holds the private keys of one or more of them.
"""

from datetime import datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

CERTIFICATE_FILE = "ca.crt"
KEY_FILE = "ca.key"
VALIDITY = timedelta(days=365)
# Certificates begin before they are made, for machines whose clocks are behind.
CLOCK_SKEW = timedelta(hours=1)


def generate_authority(common_name: str, now: datetime) -> tuple[str, str]:
    """A new self-signed P-256 authority: its certificate and its private key, both PEM.

    `now` has a time zone. The authority may sign for any name, since the proxy signs only for what its
    instance lists, but no further authority.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name[:64])])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now + VALIDITY)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(
            x509.KeyUsage(
                key_cert_sign=True,
                crl_sign=True,
                digital_signature=False,
                content_commitment=False,
                key_encipherment=False,
                data_encipherment=False,
                key_agreement=False,
                encipher_only=False,
                decipher_only=False,
            ),
            critical=True,
        )
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return certificate.public_bytes(serialization.Encoding.PEM).decode(), private.decode()
