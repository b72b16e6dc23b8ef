"""The server's public keys: a directory of files `<kid>.pem`, which changes when a key is rotated."""

import base64
import binascii
import logging
import re
import time
from collections.abc import Callable
from pathlib import Path

from sandbox_agent.ed25519 import KEY_BYTES

_log = logging.getLogger(__name__)

_FILE_NAME = re.compile(r"([0-9a-f]{1,64})\.pem")
_PEM = re.compile(rb"-----BEGIN PUBLIC KEY-----\r?\n([A-Za-z0-9+/=]+)\r?\n-----END PUBLIC KEY-----\s*")
# SubjectPublicKeyInfo of an Ed25519 key, RFC 8410 section 4, up to the key itself.
_DER_PREFIX = bytes.fromhex("302a300506032b6570032100")
_FILE_LIMIT_BYTES = 4096
# A kid that nobody knows makes the directory be read again, but not for each of a flood of them.
_RETRY_SECONDS = 1.0
# So long a key may still be accepted after its file is gone.
_MAX_AGE_SECONDS = 60.0


class InvalidPublicKey(ValueError):
    """Text that is not the PEM of one Ed25519 public key."""


class PublicKeys:
    """The keys in `directory`; a directory that cannot be read has none."""

    def __init__(self, directory: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._directory = directory
        self._clock = clock
        self._keys: dict[str, bytes] = {}
        self._read_at: float | None = None

    def find(self, kid: str) -> bytes | None:
        """The raw key of KEY_BYTES, or None when there is none by that name."""
        age_seconds = float("inf") if self._read_at is None else self._clock() - self._read_at
        if age_seconds >= (_MAX_AGE_SECONDS if kid in self._keys else _RETRY_SECONDS):
            self._keys = self._read()
            self._read_at = self._clock()
        return self._keys.get(kid)

    def _read(self) -> dict[str, bytes]:
        try:
            found = [
                (match[1], path)
                for path in self._directory.iterdir()
                if (match := _FILE_NAME.fullmatch(path.name))
            ]
        except OSError as error:
            _log.error("the public keys cannot be read: %s", error)
            return {}
        return {kid: key for kid, path in found if (key := _read_key(path)) is not None}


def _read_key(path: Path) -> bytes | None:
    try:
        with path.open("rb") as file:
            return parse_public_key(file.read(_FILE_LIMIT_BYTES))
    except (OSError, InvalidPublicKey) as error:
        _log.error("%s is no public key: %s", path.name, error)
        return None


def parse_public_key(pem: bytes) -> bytes:
    """The raw key of KEY_BYTES in a PEM file. Raises InvalidPublicKey."""
    match = _PEM.fullmatch(pem)
    try:
        der = base64.b64decode(match[1], validate=True) if match else b""
    except binascii.Error:
        der = b""
    if not der.startswith(_DER_PREFIX) or len(der) != len(_DER_PREFIX) + KEY_BYTES:
        raise InvalidPublicKey("not the PEM of an Ed25519 public key")
    return der[len(_DER_PREFIX) :]
