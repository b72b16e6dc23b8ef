"""Which header fields cross the proxy, in either direction: tables and the functions that apply them.

docs/security.md has the tables for people; a test compares the two.
"""

import re
from collections.abc import Iterable
from fnmatch import fnmatchcase
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from cred_proxy.refusal import Reason, Refusal
from cred_proxy.routes import KubernetesRoute, Route

Fields = list[tuple[str, str]]

# RFC 9110 section 7.6.1 and RFC 9112 appendix C.2.2: about one connection only. HTTP2-Settings (RFC 7540
# section 3.2.1) belongs to an upgrade.
_HOP_BY_HOP = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "http2-settings",
        "proxy-authenticate",
        "proxy-authentication-info",
    }
)
# These are written anew from what was judged.
_REQUEST_DROPPED = _HOP_BY_HOP | {"host", "content-length", "expect"}
# A client cannot follow an alternative service (RFC 7838): it reaches nothing but this proxy.
_RESPONSE_DROPPED = _HOP_BY_HOP | {"alt-svc"}

# All that reaches an API server of a request's header besides what the proxy writes itself. What stands
# before it may believe any other field: X-Original-URL, X-SSL-Client-Cert, X-Auth-Request-User, Cookie, or a
# bearer token in Sec-WebSocket-Protocol.
KUBERNETES_PASSED = {
    "accept": "the form of the answer: JSON, protobuf, a table, aggregated discovery",
    "accept-encoding": "whether it may be compressed",
    "cache-control": "asks caches on the way for a fresh answer",
    "content-encoding": "how the body is compressed",
    "content-type": "what the body is; for a patch, which kind of patch",
    "if-match": "a write on condition of what it replaces",
    "if-modified-since": "the cached answer may be used",
    "if-none-match": "the cached answer may be used: kubectl's cache of discovery",
    "if-unmodified-since": "a write on condition of what it replaces",
    "kubectl-command": "which command it was, for the API server's own logs (KEP-859)",
    "kubectl-session": "which run of kubectl it was (KEP-859)",
    "pragma": "asks caches on the way for a fresh answer",
    "user-agent": "which client it is, for the API server's own logs",
}


class RefusedFields(NamedTuple):
    """Fields without which a request would be answered as if it were another one."""

    names: tuple[str, ...]
    """In lower case; a final `*` stands for anything. `_` and `.` count as `-`."""
    why: str

    def include(self, name: str) -> bool:
        return any(fnmatchcase(name, pattern) for pattern in self.names)


KUBERNETES_REFUSED = (
    RefusedFields(
        ("impersonate-*",),
        "impersonation (kubectl --as, --as-group, --as-uid) is not available from a sandbox; ask without it, "
        "and for what another identity may do, create a SubjectAccessReview",
    ),
    RefusedFields(
        ("x-remote-*",),
        "speaking for another user, as a front proxy does, is not available from a sandbox; ask without it",
    ),
    RefusedFields(
        ("x-http-method", "x-http-method-override", "x-method-override"),
        "a header cannot change the method; send the request with the method that is meant",
    ),
)

# By their names, fields that carry a credential; in all of them `_` and `.` count as `-`.
CREDENTIAL_WORDS = frozenset(
    {
        "auth",
        "authentication",
        "authorization",
        "cookie",
        "cookie2",
        "credential",
        "credentials",
        "jwt",
        "otp",
    }
)
CREDENTIAL_ENDINGS = ("token", "secret", "password", "passwd", "passphrase", "apikey", "accesskey")
WORDS_BEFORE_KEY = frozenset(
    {
        *("access", "account", "admin", "api", "app", "application", "client", "functions", "license"),
        *("master", "private", "project", "secret", "service", "shared", "subscription", "user"),
    }
)
CREDENTIAL_NAMES = frozenset(
    {
        *("cf-access-client-id", "fastly-key", "x-honeycomb-team", "x-jfrog-art-api"),
        *("remote-user", "x-forwarded-user"),
    }
)
CREDENTIAL_PREFIXES = ("impersonate-", "x-remote-", "x-webauth-")
# Named like a credential, and none.
NO_CREDENTIALS = {
    "lock-token": "names a WebDAV lock (RFC 4918)",
    "npm-auth-type": "how npm would log in",
    "x-continuation-token": "the next page of a list",
    "x-ms-continuationtoken": "the next page of a list, on Azure",
}
# No credential's name has more; what a client writes beyond costs nothing.
_MAX_WORDS = 16
_MAX_CACHED_CHARACTERS = 64

_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f\ud800-\udfff]")


def tokens(values: Iterable[str]) -> list[str]:
    """The members of a comma-separated field that may occur several times, in lower case."""
    return [member for value in values for token in value.split(",") if (member := token.strip().lower())]


def values_of(fields: Iterable[tuple[str, str]], name: str) -> list[str]:
    """All values of a field, `name` in lower case."""
    return [value for key, value in fields if key.lower() == name]


def refused_fields(fields: Fields, route: Route) -> Refusal | None:
    """Why a request with these fields is refused: without them it would be another request."""
    if not isinstance(route, KubernetesRoute):
        return None
    for name, _ in fields:
        why = _refusal_of(name) if len(name) <= _MAX_CACHED_CHARACTERS else _refusal_of.__wrapped__(name)
        if why is not None:
            return Refusal(Reason.FIELD_NOT_ALLOWED, why)
    return None


def request_fields(fields: Fields, route: Route) -> Fields:
    """What the origin gets of a client's header, with the route's credential and without the client's."""
    dropped = _REQUEST_DROPPED.union(tokens(values_of(fields, "connection")))
    if not isinstance(route, KubernetesRoute):
        return [
            (name, value) for name, value in fields if name.lower() not in dropped and not is_credential(name)
        ]
    kept = [
        (name, value)
        for name, value in fields
        if (key := name.lower()) in KUBERNETES_PASSED and key not in dropped
    ]
    return [*kept, ("Authorization", f"Bearer {route.server.token}")]


def response_fields(fields: Fields) -> Fields:
    """What the client gets of an origin's header. Values that no header can carry are left out whole."""
    dropped = _RESPONSE_DROPPED.union(tokens(values_of(fields, "connection")))
    # RFC 9112 section 6.3: with both, Transfer-Encoding is what counts.
    if values_of(fields, "transfer-encoding"):
        dropped = dropped | {"content-length"}
    return [
        (name, value)
        for name, value in fields
        if name.lower() not in dropped and not _CONTROL.search(name) and not _CONTROL.search(value)
    ]


def _hyphenated(name: str) -> str:
    """Some servers take `_` for `-`, as in CGI variables, and some `.`."""
    return name.lower().replace("_", "-").replace(".", "-")


def is_credential(name: str) -> bool:
    """Whether a field of this name is dropped from requests to a host of an allowlist."""
    return _judge_name(name) if len(name) <= _MAX_CACHED_CHARACTERS else _judge_name.__wrapped__(name)


# The same few names come again and again; long ones must not fill the caches.
@lru_cache(maxsize=1024)
def _refusal_of(name: str) -> str | None:
    name = _hyphenated(name)
    return next((refused.why for refused in KUBERNETES_REFUSED if refused.include(name)), None)


@lru_cache(maxsize=1024)
def _judge_name(name: str) -> bool:
    name = _hyphenated(name)
    if name in NO_CREDENTIALS:
        return False
    if name in CREDENTIAL_NAMES or name.startswith(CREDENTIAL_PREFIXES):
        return True
    words = name.split("-", _MAX_WORDS)
    return any(word in CREDENTIAL_WORDS or word.endswith(CREDENTIAL_ENDINGS) for word in words) or any(
        word == "key" and before in WORDS_BEFORE_KEY for before, word in pairwise(words)
    )
