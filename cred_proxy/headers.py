"""Which header fields cross the proxy, in either direction: tables and the functions that apply them."""

import re
from collections.abc import Iterable

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

# Who a client claims to be. X-Remote-* is what the API server believes of its front proxy.
_CREDENTIALS = re.compile(r"(proxy-)?authorization|x-api-key|impersonate-.*|x-remote-.*")
# Kubernetes also takes a bearer token as a websocket subprotocol, and what may stand before it takes cookies
# and believes what a proxy says about the client.
_KUBERNETES_CREDENTIALS = re.compile(
    rf"{_CREDENTIALS.pattern}|cookie|sec-websocket-.*|x-forwarded-.*|forwarded"
)

_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f\ud800-\udfff]")


def tokens(values: Iterable[str]) -> list[str]:
    """The members of a comma-separated field that may occur several times, in lower case."""
    return [member for value in values for token in value.split(",") if (member := token.strip().lower())]


def values_of(fields: Iterable[tuple[str, str]], name: str) -> list[str]:
    """All values of a field, `name` in lower case."""
    return [value for key, value in fields if key.lower() == name]


def request_fields(fields: Fields, route: Route) -> Fields:
    """What the origin gets of a client's header, with the route's credential and without the client's."""
    kubernetes = isinstance(route, KubernetesRoute)
    stripped = _KUBERNETES_CREDENTIALS if kubernetes else _CREDENTIALS
    dropped = _REQUEST_DROPPED.union(tokens(values_of(fields, "connection")))
    kept = [
        (name, value)
        for name, value in fields
        # Some servers take `_` for `-`, as in CGI variables.
        if (key := name.lower()) not in dropped and not stripped.fullmatch(key.replace("_", "-"))
    ]
    if isinstance(route, KubernetesRoute):
        kept.append(("Authorization", f"Bearer {route.server.token}"))
    return kept


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
