"""The host key: pinned in a file."""

import stat
from pathlib import Path

import asyncssh
import pytest

from hooks.ssh import read_host_key
from ssh_gateway.host_key import HostKeyProblem, load_host_key, load_or_make_host_key
from tests.ssh_gateway.harness import KEY


def test_the_key_is_made_once_for_its_owner_alone_and_stays(tmp_path: Path) -> None:
    file = tmp_path / "host_key"
    first = load_or_make_host_key(file)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert load_or_make_host_key(file).public_key == first.public_key
    assert load_host_key(file).fingerprint == first.fingerprint == first.key.get_fingerprint()


def test_the_hooks_publish_the_same_of_a_key(tmp_path: Path) -> None:
    mine = load_or_make_host_key(tmp_path / "host_key")
    published = read_host_key((tmp_path / "host_key").read_text())
    assert published is not None
    assert (published.public_key, published.fingerprint) == (mine.public_key, mine.fingerprint)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "cannot be read"),
        (b"", "no private key"),
        (KEY.export_public_key(), "no private key"),
        (asyncssh.generate_private_key("ecdsa-sha2-nistp256").export_private_key(), "Ed25519"),
    ],
)
def test_what_is_no_such_key_is_refused_with_what_to_do(
    tmp_path: Path, content: bytes | None, problem: str
) -> None:
    if content is not None:
        (tmp_path / "key").write_bytes(content)
    with pytest.raises(HostKeyProblem, match=problem):
        load_host_key(tmp_path / "key")
