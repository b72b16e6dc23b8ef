"""Signs the server's calls to agents with the key that session-keys.json says is to sign now."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import jwt
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from pydantic import ValidationError

from cli_mcp.agent_token import TOKEN_LIFETIME_SECONDS, Claims, body_digest
from cli_mcp.mounted import fingerprint
from cli_mcp.session_keys import SessionKeys

_log = logging.getLogger(__name__)


class InvalidSessionKeys(Exception):
    """The file of the session keys cannot be used; the message quotes nothing of it."""


@dataclass(frozen=True, slots=True)
class SignedCall:
    """A request to an agent: to whom, for which session, what. The same `jti` again is the same call."""

    pod_uid: str
    boot: str
    session_id: str
    method: str
    path: str
    body: bytes
    jti: str


@dataclass(frozen=True, slots=True)
class _Loaded:
    keys: SessionKeys
    private: dict[str, Ed25519PrivateKey] = field(repr=False)


class CallSigner:
    """`issuer` is the uid of the server's pod. The file is read again when it changes; one that became
    invalid leaves the keys as they were and is said in the log, once."""

    def __init__(
        self, file: Path, issuer: str, *, clock: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        """Raises InvalidSessionKeys."""
        self._file = file
        self._issuer = issuer
        self._clock = clock
        self._seen = fingerprint([file])
        self._checked_at = clock()
        self._loaded = _load(file)

    def token(self, call: SignedCall) -> str:
        """The bearer token of `call`."""
        now = self._clock()
        self._follow(now)
        key = self._loaded.keys.signing_key(now)
        issued_at = int(now.timestamp())
        claims = Claims(
            iss=self._issuer,
            sub=call.session_id,
            aud=call.pod_uid,
            boot=call.boot,
            htm=call.method,
            htu=call.path,
            body=body_digest(call.body),
            jti=call.jti,
            iat=issued_at,
            exp=issued_at + TOKEN_LIFETIME_SECONDS,
        )
        return jwt.encode(
            claims.payload(), self._loaded.private[key.kid], algorithm="EdDSA", headers={"kid": key.kid}
        )

    def _follow(self, now: datetime) -> None:
        if abs((now - self._checked_at).total_seconds()) < 1:
            return
        self._checked_at = now
        seen = fingerprint([self._file])
        if seen == self._seen:
            return
        self._seen = seen
        try:
            self._loaded = _with_previous(_load(self._file), self._loaded, now)
        except InvalidSessionKeys as error:
            _log.warning("the session keys stay as they were: %s", error)
        else:
            _log.info("session keys reloaded")


def _with_previous(loaded: _Loaded, before: _Loaded, now: datetime) -> _Loaded:
    """`loaded`, and before its keys the one that signs now when it has none of those that were there: their
    Secret was deleted and made again, and sandboxes have to hear of the new key first."""
    if loaded.private.keys() & before.private.keys():
        return loaded
    signing = before.keys.signing_key(now)
    keys = SessionKeys(keys=(signing, *loaded.keys.keys))
    return _Loaded(keys, {signing.kid: before.private[signing.kid], **loaded.private})


def _load(file: Path) -> _Loaded:
    try:
        keys = SessionKeys.model_validate_json(file.read_bytes())
        return _Loaded(keys, {key.kid: _private_key(key.private_key) for key in keys.keys})
    except OSError as error:
        raise InvalidSessionKeys(f"{file}: {error.strerror}") from None
    except (ValidationError, ValueError, TypeError):
        # `from None`: nothing of a private key goes into a message.
        raise InvalidSessionKeys(f"{file} is no list of Ed25519 session keys") from None


def _private_key(pem: str) -> Ed25519PrivateKey:
    key = load_pem_private_key(pem.encode(), password=None)
    if not isinstance(key, Ed25519PrivateKey):
        raise TypeError("another kind of key")
    return key
