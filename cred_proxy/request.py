"""The verdict on one request inside a tunnel: what goes to the origin, or why nothing does. Pure.

The parser in front has already refused what is no HTTP at all; everything that the safety of the credential
rests on is decided here again.
"""

import re
from dataclasses import dataclass, field
from urllib.parse import unquote

from cli_mcp.api.endpoint import DEFAULT_PORT, Endpoint
from cred_proxy.headers import Fields, refused_fields, request_fields, tokens, values_of
from cred_proxy.kubernetes_path import judge_path
from cred_proxy.own_secrets import judge_secrets
from cred_proxy.refusal import Reason, Refusal
from cred_proxy.routes import KubernetesRoute, Route

# RFC 9110 section 9.3.8: TRACE sends the request back, with the credential in it.
_NEVER = frozenset({"TRACE", "CONNECT"})
_KUBERNETES_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_ORIGIN_FORM = re.compile(r"/[\x21\x22\x24-\x7e]*")  # printable ASCII without `#`
_CONTENT_LENGTH = re.compile(r"[0-9]{1,18}")
_WEBSOCKET = ["websocket"]
# Each member is looked for among all fields.
_MAX_CONNECTION_CHARACTERS = 1024


@dataclass(frozen=True, slots=True)
class RequestHead:
    """`target` is the request target exactly as it was sent."""

    method: str
    target: str
    version: tuple[int, int]
    fields: Fields = field(repr=False)


@dataclass(frozen=True, slots=True)
class Forward:
    """What to send. `fields` has the credential, hence no repr."""

    method: str
    path: str
    query: str
    fields: Fields = field(repr=False)
    expects_continue: bool = False
    upgrade: bool = False


def host_field(endpoint: Endpoint) -> str:
    """The Host that clients send for an https URL: without the port when it is the default."""
    text = str(endpoint)
    return text.removesuffix(f":{DEFAULT_PORT}") if endpoint.port == DEFAULT_PORT else text


def judge_request(head: RequestHead, route: Route) -> Forward | Refusal:
    """Forward or refuse `head`, which came through a tunnel to `route`."""
    for check in (_check_line, _check_host, _check_framing):
        refusal = check(head, route)
        if refusal is not None:
            return refusal
    upgrade = _judge_upgrade(head, route)
    if isinstance(upgrade, Refusal):
        return upgrade
    path, mark, query = head.target.partition("?")
    if isinstance(route, KubernetesRoute):
        judged = judge_path(path, route.server.path)
        if isinstance(judged, Refusal):
            return judged
        path = judged
        if route.own_secrets is not None:
            inside = unquote(path).removeprefix(route.server.path)
            kept = judge_secrets(head.method, inside, query, route.own_secrets)
            if kept is not None:
                return kept
    refused = refused_fields(head.fields, route)
    if refused is not None:
        return refused
    sent: Fields = [("Host", host_field(route.endpoint)), *request_fields(head.fields, route)]
    length = values_of(head.fields, "content-length")
    if length:
        sent.append(("Content-Length", length[0]))
    if upgrade:
        sent += [("Connection", "Upgrade"), ("Upgrade", _WEBSOCKET[0])]
    expects_continue = head.version >= (1, 1) and bool(values_of(head.fields, "expect"))
    return Forward(head.method, path, query if mark else "", sent, expects_continue, upgrade)


def _check_line(head: RequestHead, route: Route) -> Refusal | None:
    if head.version not in ((1, 0), (1, 1)):
        return Refusal(Reason.HTTP_VERSION, "this connection speaks HTTP/1.1")
    if head.method in _NEVER or (
        isinstance(route, KubernetesRoute) and head.method not in _KUBERNETES_METHODS
    ):
        return Refusal(Reason.METHOD_NOT_ALLOWED, f"{head.method} is not passed on")
    if not _ORIGIN_FORM.fullmatch(head.target):
        return Refusal(Reason.BAD_REQUEST, "the request target must be a path that begins with /")
    return None


def _check_host(head: RequestHead, route: Route) -> Refusal | None:
    hosts = values_of(head.fields, "host")
    if len(hosts) != 1:
        return Refusal(Reason.BAD_REQUEST, "a request has exactly one Host")
    if hosts[0].lower() not in (host_field(route.endpoint), str(route.endpoint)):
        return Refusal(Reason.HOST_MISMATCH, f"this connection is for {route.endpoint} alone")
    return None


def _check_framing(head: RequestHead, route: Route) -> Refusal | None:
    codings = values_of(head.fields, "transfer-encoding")
    lengths = values_of(head.fields, "content-length")
    if len(lengths) + len(codings) > 1 or not all(map(_CONTENT_LENGTH.fullmatch, lengths)):
        return Refusal(Reason.BAD_REQUEST, "the length of the body must be given once and plainly")
    if codings and (codings[0].lower() != "chunked" or head.version < (1, 1)):
        return Refusal(Reason.TRANSFER_CODING, "the only transfer coding is chunked, in HTTP/1.1")
    expectations = values_of(head.fields, "expect")
    if expectations and [value.lower() for value in expectations] != ["100-continue"]:
        return Refusal(Reason.EXPECTATION, "the only expectation is 100-continue")
    if sum(map(len, values_of(head.fields, "connection"))) > _MAX_CONNECTION_CHARACTERS:
        return Refusal(Reason.BAD_REQUEST, f"Connection has at most {_MAX_CONNECTION_CHARACTERS} characters")
    if any(not value.isascii() and not _is_utf8(value) for _, value in head.fields):
        return Refusal(Reason.BAD_REQUEST, "header values must be UTF-8")
    return None


def _judge_upgrade(head: RequestHead, route: Route) -> bool | Refusal:
    """Whether the request asks to leave HTTP, and may."""
    wanted = tokens(values_of(head.fields, "upgrade"))
    if not wanted and "upgrade" not in tokens(values_of(head.fields, "connection")):
        return False
    if isinstance(route, KubernetesRoute):
        return Refusal(
            Reason.UPGRADE_NOT_ALLOWED,
            "exec, attach, port-forward and the like are not available from a sandbox",
        )
    if not route.allow_upgrades:
        return Refusal(
            Reason.UPGRADE_NOT_ALLOWED, f"the target with {route.endpoint} does not set allowUpgrades"
        )
    framed = values_of(head.fields, "content-length") or values_of(head.fields, "transfer-encoding")
    if wanted != _WEBSOCKET or head.method != "GET" or framed or head.version < (1, 1):
        return Refusal(Reason.UPGRADE_NOT_ALLOWED, "the only upgrade is websocket, by a GET without a body")
    return True


def _is_utf8(value: str) -> bool:
    # Bytes that are not UTF-8 arrive as lone surrogates (PEP 383).
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
