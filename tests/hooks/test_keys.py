"""Keys from the system's random source."""

from datetime import UTC, datetime

from cryptography import x509
from cryptography.hazmat.primitives import serialization

from hooks.keys import RandomKeys
from hooks.ssh import read_host_key

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def test_a_session_key_is_a_pair_named_by_its_public_half() -> None:
    one, other = RandomKeys().session_key(NOW), RandomKeys().session_key(NOW)
    assert one.kid != other.kid
    private = serialization.load_pem_private_key(one.private_key.encode(), None)
    public = private.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    assert public.decode() == one.public_key
    assert one.published_at == NOW


def test_an_authority_is_a_certificate_with_its_key() -> None:
    made = RandomKeys().proxy_authority("cli-mcp-demo-proxy-ca", NOW)
    certificate = x509.load_pem_x509_certificate(made.certificate.encode())
    private = serialization.load_pem_private_key(made.private_key.encode(), None)
    assert certificate.public_key() == private.public_key()


def test_a_host_key_is_one_that_ssh_reads() -> None:
    assert read_host_key(RandomKeys().ssh_host_key()) is not None
