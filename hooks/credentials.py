"""The admin's Secrets: whether they are there, complete, and for how long their contents are good."""

import base64
import binascii
import json
from collections.abc import Iterator
from dataclasses import dataclass
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
"""How long ahead an expiry is said, at most."""
WARN_AT_MOST = 0.25
"""The share of its whole life for which a credential may be said to expire soon: one that is made for an hour
is not about to expire from its first second."""
_CACHED_CREDENTIALS = 1024


@dataclass(frozen=True, slots=True)
class Validity:
    """Until when a credential is good, and since when; `begins` is None where that is not known."""

    begins: datetime | None
    expires: datetime

    @property
    def mentioned_from(self) -> datetime:
        """From when on a warning is due."""
        if self.begins is None:
            return self.expires - WARN_BEFORE_EXPIRY
        return self.expires - min(WARN_BEFORE_EXPIRY, WARN_AT_MOST * (self.expires - self.begins))


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
    for what, remedy, validity in _expiries(request, kubeconfig_secret, proxy_ca):
        if validity.mentioned_from > now:
            mention_at.append(validity.mentioned_from)
        elif validity.expires > now:
            mention_at.append(validity.expires)
            # The date and no countdown, which would be another message at every sync.
            text = f"{what} expires at {_text(validity.expires)}; {remedy}"
            problems.append(Problem(Reason.CREDENTIAL_EXPIRING, text, warning=True))
        else:
            text = f"{what} expired at {_text(validity.expires)}; {remedy}"
            problems.append(Problem(Reason.CREDENTIAL_EXPIRED, text))
    return problems, min(mention_at, default=None)


def _expiries(
    request: HookRequest, kubeconfig_secret: str | None, proxy_ca: GeneratedSecret
) -> Iterator[tuple[str, str, Validity]]:
    """What expires, what to do about it, and its validity."""
    tls = request.related_object(SECRET, request.parent.names.tls)
    certificate = decoded_data(tls).get(TLS_KEYS[0], "") if tls else ""
    validity = _certificate_validity(certificate)
    if validity:
        yield f"the certificate in Secret {request.parent.names.tls}", "renew it", validity
    validity = _certificate_validity(proxy_ca.data.get(authority.CERTIFICATE_FILE, ""))
    if validity and proxy_ca.observed:
        yield (
            f"the proxy's CA in Secret {proxy_ca.name}",
            f"set the annotation {names.ANNOTATION_ROTATE_PROXY_CA} of the instance to today's date",
            validity,
        )
    secret = request.related_object(SECRET, kubeconfig_secret) if kubeconfig_secret else None
    text = decoded_data(secret).get(names.KUBECONFIG_KEY, "") if secret else ""
    for context, validity in _token_validities(text):
        yield (
            f'the token of context "{context}" in Secret {kubeconfig_secret}',
            "put a new one there",
            validity,
        )


@lru_cache(maxsize=_CACHED_CREDENTIALS)
def _certificate_validity(pem: str) -> Validity | None:
    """Of the first certificate; None when there is none that can be read."""
    try:
        certificate = x509.load_pem_x509_certificates(pem.encode())[0]
    except ValueError:
        return None
    return Validity(certificate.not_valid_before_utc, certificate.not_valid_after_utc)


@lru_cache(maxsize=_CACHED_CREDENTIALS)
def _token_validities(text: str) -> tuple[tuple[str, Validity], ...]:
    try:
        contexts = parse_kubeconfig(text).contexts
    except InvalidKubeconfig:
        return ()
    validities = [(context.name, _token_validity(context.server.token)) for context in contexts]
    return tuple((name, validity) for name, validity in validities if validity is not None)


def _token_validity(token: str) -> Validity | None:
    """`iat` and `exp` of a JWT (RFC 7519 section 4.1), not verified: they are only for a warning. None for
    any other token."""
    parts = token.split(".")
    if len(parts) != 3:
        return None
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
        issued = datetime.fromtimestamp(claims["iat"], UTC) if "iat" in claims else None
        return Validity(issued, datetime.fromtimestamp(claims["exp"], UTC))
    except (binascii.Error, ValueError, KeyError, TypeError, OverflowError, OSError):
        return None


def _text(time: datetime) -> str:
    return time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
