"""Keys come from a directory that changes, and from nothing else."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, x25519
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from sandbox_agent.public_keys import InvalidPublicKey, PublicKeys, parse_public_key


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def pem(key: Ed25519PrivateKey) -> bytes:
    return key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def raw(key: Ed25519PrivateKey) -> bytes:
    return key.public_key().public_bytes_raw()


def test_the_raw_key_is_read_from_what_the_hooks_write() -> None:
    key = Ed25519PrivateKey.generate()
    assert parse_public_key(pem(key)) == raw(key)
    assert parse_public_key(pem(key).replace(b"\n", b"\r\n")) == raw(key)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"-----BEGIN PUBLIC KEY-----\n-----END PUBLIC KEY-----\n",
        b"-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n",
        pem(Ed25519PrivateKey.generate()) * 2,
        pem(Ed25519PrivateKey.generate()).replace(b"PUBLIC", b"PRIVATE"),
        x25519.X25519PrivateKey.generate()
        .public_key()
        .public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo),
        ec.generate_private_key(ec.SECP256R1())
        .public_key()
        .public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo),
    ],
)
def test_anything_but_one_ed25519_key_is_refused(text: bytes) -> None:
    with pytest.raises(InvalidPublicKey):
        parse_public_key(text)


def test_a_key_that_appears_is_found_a_second_later(tmp_path: Path) -> None:
    clock, key = Clock(), Ed25519PrivateKey.generate()
    keys = PublicKeys(tmp_path, clock)
    assert keys.find("a1") is None
    (tmp_path / "a1.pem").write_bytes(pem(key))
    clock.now = 0.9
    assert keys.find("a1") is None
    clock.now = 1.0
    assert keys.find("a1") == raw(key)


def test_a_flood_of_unknown_names_reads_the_directory_once_a_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = []

    def listing(directory: Path) -> Iterator[Path]:
        reads.append(directory)
        return iter(())

    monkeypatch.setattr(Path, "iterdir", listing)
    clock = Clock()
    keys = PublicKeys(tmp_path, clock)
    for number in range(1_000):
        clock.now = number / 500
        assert keys.find(f"{number:x}") is None
    assert len(reads) == 2


def test_a_key_that_is_gone_is_no_longer_accepted_after_a_minute(tmp_path: Path) -> None:
    clock, key = Clock(), Ed25519PrivateKey.generate()
    (tmp_path / "a1.pem").write_bytes(pem(key))
    keys = PublicKeys(tmp_path, clock)
    assert keys.find("a1") is not None
    (tmp_path / "a1.pem").unlink()
    clock.now = 59
    assert keys.find("a1") is not None
    clock.now = 60
    assert keys.find("a1") is None


def test_one_file_that_is_no_key_does_not_hide_the_others(tmp_path: Path) -> None:
    key = Ed25519PrivateKey.generate()
    (tmp_path / "a1.pem").write_bytes(pem(key))
    (tmp_path / "b2.pem").write_text("nonsense")
    (tmp_path / "c3.pem").mkdir()
    (tmp_path / "NOT-HEX.pem").write_bytes(pem(key))
    keys = PublicKeys(tmp_path, Clock())
    assert keys.find("a1") == raw(key)
    assert [keys.find(kid) for kid in ("b2", "c3", "NOT-HEX")] == [None, None, None]


def test_a_directory_that_is_missing_has_no_keys(tmp_path: Path) -> None:
    assert PublicKeys(tmp_path / "none", Clock()).find("a1") is None
