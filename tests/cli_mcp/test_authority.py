"""The proxy's authority, as OpenSSL sees it."""

from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from cli_mcp.authority import VALIDITY, generate_authority


def test_an_authority_is_a_p256_ca_without_name_constraints_that_signs_no_other_ca() -> None:
    now = datetime(2030, 1, 1, tzinfo=UTC)
    certificate = x509.load_pem_x509_certificate(
        generate_authority("sandbox CA " + 80 * "x", now)[0].encode()
    )
    key = certificate.public_key()
    assert isinstance(key, ec.EllipticCurvePublicKey)
    assert key.curve.name == "secp256r1"
    assert certificate.extensions.get_extension_for_class(
        x509.BasicConstraints
    ).value == x509.BasicConstraints(ca=True, path_length=0)
    assert not [e for e in certificate.extensions if isinstance(e.value, x509.NameConstraints)]
    # Machines whose clocks are behind must be able to use it at once.
    assert certificate.not_valid_before_utc <= now - timedelta(minutes=5)
    assert certificate.not_valid_after_utc == now + VALIDITY


def test_every_authority_is_a_different_one() -> None:
    now = datetime.now(UTC)
    assert len({generate_authority("x", now) for _ in range(3)}) == 3
