"""Authorities and the certificates that clients see."""

import ssl
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from cli_mcp.authority import generate_authority
from cred_proxy.certificates import (
    ADOPTION_SECONDS,
    LEAF_VALIDITY,
    Authority,
    InvalidAuthority,
    LeafCache,
    leaf_certificate,
    parse_authorities,
    signing_authority,
)

NOW = datetime.now(UTC)
NEW_CERTIFICATE, NEW_KEY = generate_authority("new", NOW)
OLD_CERTIFICATE, OLD_KEY = generate_authority("old", NOW - timedelta(days=300))


def handshake(server: ssl.SSLContext, client: ssl.SSLContext, name: str | None) -> ssl.SSLObject:
    """A whole TLS handshake in memory; raises ssl.SSLError as the client sees it."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server_side = server.wrap_bio(to_server, to_client, server_side=True)
    client_side = client.wrap_bio(to_client, to_server, server_hostname=name)
    for _ in range(10):
        for side in (client_side, server_side):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    client_side.do_handshake()
    return client_side


def trusting(*certificates: str) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata="".join(certificates))
    context.set_alpn_protocols(["h2", "http/1.1"])
    return context


def new_authority() -> Authority:
    return parse_authorities(NEW_CERTIFICATE, NEW_KEY, NOW)[0]


@pytest.mark.parametrize("host", ["git.example.com", "192.0.2.7", "2001:db8::1", "x" * 63 + ".example.com"])
def test_a_client_that_trusts_the_authority_accepts_the_leaf_of_a_name_or_an_address(host: str) -> None:
    connection = handshake(LeafCache().context(host, new_authority()), trusting(NEW_CERTIFICATE), host)
    assert connection.selected_alpn_protocol() == "http/1.1"


def test_a_client_that_trusts_another_authority_or_asks_for_another_name_does_not() -> None:
    context = LeafCache().context("git.example.com", new_authority())
    with pytest.raises(ssl.SSLError, match="verify failed"):
        handshake(context, trusting(OLD_CERTIFICATE), "git.example.com")
    with pytest.raises(ssl.SSLError):
        handshake(context, trusting(NEW_CERTIFICATE), "evil.example.com")


def test_a_leaf_is_short_lived_and_never_outlives_its_authority() -> None:
    key = ec.generate_private_key(ec.SECP256R1()).public_key()
    authority = new_authority()
    leaf = leaf_certificate("h", key, authority, NOW)
    assert leaf.not_valid_after_utc - NOW <= LEAF_VALIDITY
    late = authority.certificate.not_valid_after_utc - timedelta(hours=1)
    assert (
        leaf_certificate("h", key, authority, late).not_valid_after_utc
        == authority.certificate.not_valid_after_utc
    )
    assert not leaf.extensions.get_extension_for_class(x509.BasicConstraints).value.ca


def test_a_context_is_made_once_and_again_when_its_leaf_is_half_way_or_the_authority_changed() -> None:
    cache, authority = LeafCache(), new_authority()
    first = cache.context("h", authority, NOW)
    assert cache.context("h", authority, NOW + LEAF_VALIDITY / 3) is first
    second = cache.context("h", authority, NOW + LEAF_VALIDITY / 2)
    assert second is not first
    old = parse_authorities(OLD_CERTIFICATE, OLD_KEY, NOW)[0]
    assert cache.context("h", old, NOW) is not second


def test_forgotten_hosts_are_made_again() -> None:
    cache, authority = LeafCache(), new_authority()
    kept, dropped = cache.context("kept", authority), cache.context("dropped", authority)
    cache.keep_only({"kept"})
    assert cache.context("kept", authority) is kept
    assert cache.context("dropped", authority) is not dropped


def test_the_newest_authority_signs_once_sandboxes_had_time_to_see_it() -> None:
    both = parse_authorities(NEW_CERTIFICATE + OLD_CERTIFICATE, NEW_KEY + OLD_KEY, NOW)
    assert [a.certificate.subject.rfc4514_string() for a in both] == ["CN=new", "CN=old"]
    assert signing_authority(both, ADOPTION_SECONDS - 1) is both[1]
    assert signing_authority(both, ADOPTION_SECONDS) is both[0]
    alone = parse_authorities(NEW_CERTIFICATE + OLD_CERTIFICATE, NEW_KEY, NOW)
    assert signing_authority(alone, 0) is alone[0]


@pytest.mark.parametrize(
    ("certificates", "keys", "now"),
    [
        ("", NEW_KEY, NOW),
        ("not pem", NEW_KEY, NOW),
        (NEW_CERTIFICATE, "", NOW),
        (NEW_CERTIFICATE, "-----BEGIN PRIVATE KEY-----\nQUJD\n-----END PRIVATE KEY-----\n", NOW),
        (NEW_CERTIFICATE, OLD_KEY, NOW),
        (NEW_CERTIFICATE + OLD_CERTIFICATE, OLD_KEY, NOW),
        (NEW_CERTIFICATE, NEW_KEY, NOW + timedelta(days=400)),
        (NEW_CERTIFICATE, NEW_KEY, NOW - timedelta(days=1)),
    ],
)
def test_an_authority_that_cannot_sign_is_invalid(certificates: str, keys: str, now: datetime) -> None:
    with pytest.raises(InvalidAuthority) as caught:
        parse_authorities(certificates, keys, now)
    assert "PRIVATE KEY" not in str(caught.value)


def test_nothing_prints_a_private_key() -> None:
    assert "key" not in repr(new_authority())
