"""New keys: the only chance that enters a reconcile, handed in from outside."""

import hashlib
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from cli_mcp.authority import generate_authority
from cli_mcp.session_keys import SessionKey

_KID_CHARACTERS = 16


@dataclass(frozen=True, slots=True)
class Authority:
    """A certificate authority, certificate and private key in PEM."""

    certificate: str
    private_key: str


class KeyGenerator(Protocol):
    """Makes keys; called only when a Secret has to be made or rotated."""

    def proxy_authority(self, common_name: str, now: datetime) -> Authority: ...

    def session_key(self, now: datetime) -> SessionKey: ...

    def ssh_host_key(self) -> str:
        """An Ed25519 private key in OpenSSH's format."""
        ...


class RandomKeys:
    """Keys from the system's random source."""

    def proxy_authority(self, common_name: str, now: datetime) -> Authority:
        return Authority(*generate_authority(common_name, now))

    def session_key(self, now: datetime) -> SessionKey:
        private = Ed25519PrivateKey.generate()
        public = private.public_key()
        raw = public.public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
        return SessionKey(
            kid=hashlib.sha256(raw).hexdigest()[:_KID_CHARACTERS],
            published_at=now,
            private_key=private.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            ).decode(),
            public_key=public.public_bytes(
                serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
            ).decode(),
        )

    def ssh_host_key(self) -> str:
        return (
            Ed25519PrivateKey.generate()
            .private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.OpenSSH,
                serialization.NoEncryption(),
            )
            .decode()
        )
