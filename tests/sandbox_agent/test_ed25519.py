"""The test vectors of RFC 8032 section 7.1, and everything that is not quite one of them."""

import hashlib

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from sandbox_agent import ed25519
from sandbox_agent.ed25519 import Ed25519, Ed25519Unavailable

# Public key, message, signature.
VECTORS = {
    "1": (
        "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
        "",
        "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9b46b"
        "d25bf5f0595bbe24655141438e7a100b",
    ),
    "2": (
        "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
        "72",
        "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da085ac1e43e15996e458f3613d0f11d8c"
        "387b2eaeb4302aeeb00d291612bb0c00",
    ),
    "3": (
        "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025",
        "af82",
        "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac18ff9b538d16f290ae67f760984dc659"
        "4a7c15e9716ed28dc027beceea1ec40a",
    ),
    "sha-abc": (
        "ec172b93ad5e563bf4932c70e1245034c35467ef2efd4d64ebf819683467e2bf",
        hashlib.sha512(b"abc").hexdigest(),
        "dc2a4459e7369633a52b1bf277839a00201009a3efbf3ecb69bea2186c26b58909351fc9ac90b3ecfdfbc7c66431e030"
        "3dca179c138ac17ad9bef1177331a704",
    ),
}
# The order of the group, RFC 8032 section 5.1: adding it to S gives a second spelling, which 5.1.7 forbids.
ORDER = 2**252 + 27742317777372353535851937790883648493
verify = Ed25519().verify


@pytest.mark.parametrize("vector", VECTORS.values(), ids=VECTORS.keys())
def test_a_vector_of_the_rfc_holds_and_no_change_of_it_does(vector: tuple[str, str, str]) -> None:
    key, message, signature = map(bytes.fromhex, vector)
    assert verify(key, signature, message)
    assert not verify(key, signature, message + b"\0")
    for position in (0, 31, 32, 63):
        changed = bytearray(signature)
        changed[position] ^= 1
        assert not verify(key, bytes(changed), message)
    other_key = bytearray(key)
    other_key[0] ^= 1
    assert not verify(bytes(other_key), signature, message)


def test_a_second_spelling_of_a_signature_does_not_hold() -> None:
    key, message, signature = map(bytes.fromhex, VECTORS["3"])
    second = int.from_bytes(signature[32:], "little") + ORDER
    assert not verify(key, signature[:32] + second.to_bytes(32, "little"), message)


@pytest.mark.parametrize("length", [0, 31, 33, 63, 65, 128])
def test_what_has_another_length_does_not_hold(length: int) -> None:
    key, message, signature = map(bytes.fromhex, VECTORS["2"])
    assert not verify(key, (signature * 2)[:length], message)
    assert not verify((key * 4)[:length], signature, message)


def test_a_message_may_contain_zero_bytes() -> None:
    private = Ed25519PrivateKey.generate()
    message = b"a\0b" * 100_000
    assert verify(private.public_key().public_bytes_raw(), private.sign(message), message)


def test_hashing_still_works_after_a_refusal() -> None:
    assert not verify(bytes.fromhex(VECTORS["2"][0]), bytes(64), b"x")
    assert hashlib.sha256(b"abc").hexdigest().startswith("ba7816bf")


def test_a_system_without_a_usable_library_is_an_error_that_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ed25519, "_loaded_libraries", lambda: iter(()))
    with pytest.raises(Ed25519Unavailable, match="libcrypto"):
        Ed25519()
    monkeypatch.undo()
    monkeypatch.setattr(ed25519, "_KNOWN_MESSAGE", b"another")
    with pytest.raises(Ed25519Unavailable):
        Ed25519()
