"""The admin's Secrets: whether they are there, complete, and for how long their contents are good."""

import base64
import binascii
import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import lru_cache

from cryptography import x509

from cli_mcp import authority, names
from cli_mcp.api.instance import InstanceSpec
from cli_mcp.kubeconfig import InvalidKubeconfig, parse_kubeconfig
from hooks.generated import GeneratedSecret, decoded_data
from hooks.problem import Problem, Reason
from hooks.ssh import AUTHORIZED_KEYS, HOST_KEY
from hooks.wire import SECRET, HookRequest

TLS_KEYS = ("tls.crt", "tls.key")
WARN_BEFORE_EXPIRY = timedelta(days=14)
_CACHED_CREDENTIALS = 1024


def required_secrets(parent_names: names.InstanceNames, spec: InstanceSpec) -> dict[str, tuple[str, ...]]:
    """The Secrets that an admin has to provide, by name, with their keys; without the kubeconfig, which is
    read where routes are planned."""
    required: dict[str, tuple[str, ...]] = {parent_names.tls: TLS_KEYS}
    if spec.ssh:
        required |= {route.authorized_keys_secret: (AUTHORIZED_KEYS,) for route in spec.ssh.routes}
        if spec.ssh.host_key_secret:
            required[spec.ssh.host_key_secret] = (HOST_KEY,)
    return required


def check_secrets(request: HookRequest, spec: InstanceSpec) -> list[Problem]:
    """Which required Secrets are missing or lack keys."""
    problems = []
    for name, keys in required_secrets(request.parent.names, spec).items():
        secret = request.related_object(SECRET, name)
        if secret is None:
            problems.append(
                Problem(
                    Reason.SECRETS_NOT_FOUND,
                    f"Secret {name} is missing; create it with {' and '.join(keys)}",
                )
            )
            continue
        missing = [key for key in keys if not (secret.get("data") or {}).get(key)]
        if missing:
            problems.append(
                Problem(
                    Reason.SECRET_KEYS_INVALID, f"Secret {name} lacks {' and '.join(missing)}; add the key"
                )
            )
    return problems


def check_expiry(
    request: HookRequest, kubeconfig_secret: str | None, proxy_ca: GeneratedSecret, now: datetime
) -> tuple[list[Problem], datetime | None]:
    """What expires soon or has expired, and when the next of the others will have to be mentioned."""
    problems: list[Problem] = []
    mention_at: list[datetime] = []
    for what, remedy, expires in _expiries(request, kubeconfig_secret, proxy_ca):
        if expires - WARN_BEFORE_EXPIRY > now:
            mention_at.append(expires - WARN_BEFORE_EXPIRY)
            continue
        expired = expires <= now
        mention_at += [] if expired else [expires]
        # The date and no countdown, which would be another message at every sync.
        message = f"{what} {'expired' if expired else 'expires'} at {_text(expires)}; {remedy}"
        problems.append(Problem(Reason.CREDENTIAL_EXPIRING, message, warning=not expired))
    return problems, min(mention_at, default=None)


def _expiries(
    request: HookRequest, kubeconfig_secret: str | None, proxy_ca: GeneratedSecret
) -> Iterator[tuple[str, str, datetime]]:
    tls = request.related_object(SECRET, request.parent.names.tls)
    certificate = decoded_data(tls).get(TLS_KEYS[0], "") if tls else ""
    expires = _certificate_expiry(certificate)
    if expires:
        yield f"the certificate in Secret {request.parent.names.tls}", "renew it", expires
    expires = _certificate_expiry(proxy_ca.data.get(authority.CERTIFICATE_FILE, ""))
    if expires and proxy_ca.observed:
        yield (
            f"the proxy's CA in Secret {proxy_ca.name}",
            f"set the annotation {names.ANNOTATION_ROTATE_PROXY_CA} of the instance to today's date",
            expires,
        )
    secret = request.related_object(SECRET, kubeconfig_secret) if kubeconfig_secret else None
    text = decoded_data(secret).get(names.KUBECONFIG_KEY, "") if secret else ""
    for context, expires in _token_expiries(text):
        yield (
            f'the token of context "{context}" in Secret {kubeconfig_secret}',
            "put a new one there",
            expires,
        )


@lru_cache(maxsize=_CACHED_CREDENTIALS)
def _certificate_expiry(pem: str) -> datetime | None:
    """Of the first certificate; None when there is none that can be read."""
    try:
        return x509.load_pem_x509_certificates(pem.encode())[0].not_valid_after_utc
    except ValueError:
        return None


@lru_cache(maxsize=_CACHED_CREDENTIALS)
def _token_expiries(text: str) -> tuple[tuple[str, datetime], ...]:
    try:
        contexts = parse_kubeconfig(text).contexts
    except InvalidKubeconfig:
        return ()
    expiries = [(context.name, _token_expiry(context.server.token)) for context in contexts]
    return tuple((name, expires) for name, expires in expiries if expires is not None)


def _token_expiry(token: str) -> datetime | None:
    """The `exp` of a JWT (RFC 7519), not verified: it is only for a warning. None for any other token."""
    parts = token.split(".")
    if len(parts) != 3:
        return None
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
        return datetime.fromtimestamp(claims["exp"], UTC)
    except (binascii.Error, ValueError, KeyError, TypeError, OverflowError, OSError):
        return None


def _text(time: datetime) -> str:
    return time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
