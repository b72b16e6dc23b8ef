"""The gateway's host key: one Ed25519 key from a file, the same after every restart."""

import os
from dataclasses import dataclass, field
from pathlib import Path

import asyncssh

from ssh_gateway.authorized_keys import fingerprint

_ALGORITHM = "ssh-ed25519"


class HostKeyProblem(Exception):
    """The file has no key that can be used; the message says what it should have."""


@dataclass(frozen=True, slots=True)
class HostKey:
    """`public_key` is `type base64`, as in known_hosts."""

    key: asyncssh.SSHKey = field(repr=False)
    public_key: str

    @property
    def fingerprint(self) -> str:
        return fingerprint(self.key.public_data)


def load_host_key(file: Path) -> HostKey:
    """Raises HostKeyProblem."""
    try:
        key = asyncssh.import_private_key(file.read_bytes())
    except OSError as error:
        raise HostKeyProblem(f"the host key {file} cannot be read: {error.strerror}") from None
    except (asyncssh.KeyImportError, asyncssh.KeyEncryptionError) as error:
        raise HostKeyProblem(f"{file} has no private key without a passphrase: {error}") from None
    if key.get_algorithm() != _ALGORITHM:
        raise HostKeyProblem(
            f"{file} has a key of type {key.get_algorithm()}; make an Ed25519 one: "
            "ssh-keygen -t ed25519 -N '' -f ssh_host_ed25519_key"
        )
    return HostKey(key, " ".join(key.export_public_key().decode().split()[:2]))


def load_or_make_host_key(file: Path) -> HostKey:
    """The key in `file`, made there for its owner alone when there is none.

    Raises HostKeyProblem, OSError."""
    if not file.exists():
        made = asyncssh.generate_private_key(_ALGORITHM)
        new = file.with_name(f"{file.name}.new")
        new.unlink(missing_ok=True)
        fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        with open(fd, "wb") as opened:
            opened.write(made.export_private_key("openssh"))
        new.rename(file)
    return load_host_key(file)
