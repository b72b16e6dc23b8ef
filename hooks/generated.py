"""The Secrets that are made once: proxy CA, session keys, SSH host key; and what may be derived from them.

They are read back from the cluster at every sync and returned as observed. A value counts only once it has
been observed: a sync that does not see the Secret yet, because a cache lags, makes another that loses (409),
and nothing may have been built on it.

They are updated in place, so that a rotation is one compare-and-swap and a Secret is never gone in between.
One that somebody deletes is made again as if it had been rotated: what was public of it is published apart,
and stays so until all have heard of the new one.
"""

import base64
import binascii
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime

from pydantic import ValidationError

from cli_mcp import authority, names
from cli_mcp.session_keys import PUBLICATION, SessionKey, SessionKeys
from hooks.keys import KeyGenerator
from hooks.ssh import HOST_KEY
from hooks.wire import CONFIG_MAP, SECRET, HookRequest, Manifest

_CERTIFICATE_END = "-----END CERTIFICATE-----\n"
_PRIVATE_KEY_END = "-----END PRIVATE KEY-----\n"

Data = Mapping[str, str]
"""Of a Secret, decoded."""


@dataclass(frozen=True, slots=True)
class GeneratedSecret:
    """A Secret that should exist with `data` (decoded); `observed` when it does, with whatever data."""

    name: str
    component: str
    data: Data
    rotated_for: str
    observed: bool


def proxy_ca(request: HookRequest, now: datetime, keygen: KeyGenerator) -> GeneratedSecret:
    """The proxy's authority. A rotation puts a new one in front and keeps the one before it, so that
    sandboxes trust both."""
    name = request.parent.names.proxy_ca

    def made() -> Data:
        return rotated(_published(request, name))

    def rotated(current: Data) -> Data:
        new = keygen.proxy_authority(name, now)
        before = {
            file: _first_pem(current.get(file, ""), end)
            for file, end in (
                (authority.CERTIFICATE_FILE, _CERTIFICATE_END),
                (authority.KEY_FILE, _PRIVATE_KEY_END),
            )
        }
        return {
            authority.CERTIFICATE_FILE: new.certificate + before[authority.CERTIFICATE_FILE],
            authority.KEY_FILE: new.private_key + before[authority.KEY_FILE],
        }

    return _secret(
        request, name, names.COMPONENT_PROXY, names.ANNOTATION_ROTATE_PROXY_CA, made=made, rotated=rotated
    )


def session_key(
    request: HookRequest, now: datetime, keygen: KeyGenerator, oldest_sandbox: datetime | None
) -> GeneratedSecret:
    """The keys that sign calls to sandboxes. A rotation appends one; the old ones go when the new one signs
    and no sandbox (`oldest_sandbox`: when the oldest was created) is from before that."""

    def made() -> Data:
        return _encoded(SessionKeys(keys=(keygen.session_key(now),)))

    def rotated(current: Data) -> Data:
        keys = parse_session_keys(current)
        added = keygen.session_key(now)
        return made() if keys is None else _encoded(SessionKeys(keys=(*keys.keys, added)))

    def settled(current: Data) -> Data:
        keys = parse_session_keys(current)
        if keys is None:
            return current
        newest = keys.keys[-1]
        signs_from = newest.published_at + PUBLICATION
        if len(keys.keys) == 1 or now < signs_from:
            return current
        if oldest_sandbox is not None and oldest_sandbox < signs_from:
            return current
        return _encoded(SessionKeys(keys=(newest,)))

    return _secret(
        request,
        request.parent.names.session_key,
        names.COMPONENT_SERVER,
        names.ANNOTATION_ROTATE_SESSION_KEY,
        made=made,
        rotated=rotated,
        settled=settled,
    )


def ssh_host_key(request: HookRequest, keygen: KeyGenerator) -> GeneratedSecret:
    """The gateway's host key; it has no rotation, clients pin it."""

    def made() -> Data:
        return {HOST_KEY: keygen.ssh_host_key()}

    return _secret(request, request.parent.names.ssh_host_key, names.COMPONENT_SSH, None, made=made)


def public_keys(secret: GeneratedSecret) -> list[SessionKey] | None:
    """The keys whose public halves are published: those observed. None while the Secret has not been."""
    keys = parse_session_keys(secret.data) if secret.observed else None
    return None if keys is None else list(keys.keys)


def leaving_keys(
    request: HookRequest, published: list[SessionKey] | None, now: datetime
) -> tuple[Data, datetime | None]:
    """Public keys, by the names of their files, that are out though the Secret does not have them, because it
    was made again; and until when: servers sign with what they remember until the new key has got around."""
    newest = published[-1] if published else None
    until = newest.published_at + PUBLICATION if newest else None
    if until is None or until <= now:
        return {}, None
    known = {key.file_name for key in published or ()}
    out = _published(request, request.parent.names.session_keys)
    leaving = {file: pem for file, pem in out.items() if file not in known}
    return leaving, until if leaving else None


def trusted_certificates(secret: GeneratedSecret) -> str | None:
    """The certificates of an observed authority; None while it has not been observed."""
    return secret.data.get(authority.CERTIFICATE_FILE) if secret.observed else None


def parse_session_keys(data: Data) -> SessionKeys | None:
    """None when the Secret's content is not what the hooks write."""
    try:
        return SessionKeys.model_validate_json(data.get(names.SESSION_KEYS_KEY, ""))
    except ValidationError:
        return None


def decoded_data(secret: Manifest) -> dict[str, str]:
    """The data of a Secret as text, without what is no text."""
    decoded = {}
    for key, value in (secret.get("data") or {}).items():
        try:
            decoded[key] = base64.b64decode(value, validate=True).decode()
        except (binascii.Error, UnicodeDecodeError):
            continue  # a missing key is reported by whoever needs it
    return decoded


def encoded_data(data: Data) -> dict[str, str]:
    return {key: base64.b64encode(value.encode()).decode() for key, value in sorted(data.items())}


def _secret(
    request: HookRequest,
    name: str,
    component: str,
    rotate_annotation: str | None,
    *,
    made: Callable[[], Data],
    rotated: Callable[[Data], Data] | None = None,
    settled: Callable[[Data], Data] = lambda data: data,
) -> GeneratedSecret:
    wanted = request.parent.annotations.get(rotate_annotation, "") if rotate_annotation else ""
    existing = request.child(SECRET, name)
    if existing is None:
        return GeneratedSecret(name, component, made(), wanted, observed=False)
    current = decoded_data(existing)
    if not current:
        return GeneratedSecret(name, component, made(), wanted, observed=False)
    done = (existing["metadata"].get("annotations") or {}).get(names.ANNOTATION_ROTATED_FOR, "")
    if rotated is None or wanted in ("", done):
        return GeneratedSecret(name, component, settled(current), done, observed=True)
    return GeneratedSecret(name, component, rotated(current), wanted, observed=True)


def _published(request: HookRequest, name: str) -> Data:
    """What the ConfigMap `name` has."""
    return (request.child(CONFIG_MAP, name) or {}).get("data") or {}


def _first_pem(bundle: str, end: str) -> str:
    head, found, _ = bundle.partition(end)
    return head + found


def _encoded(keys: SessionKeys) -> Data:
    return {names.SESSION_KEYS_KEY: keys.model_dump_json(by_alias=True)}
