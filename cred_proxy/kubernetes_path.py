"""Which paths of an API server a sandbox may ask for, read with the API server's own grammar.

The grammar is that of RequestInfoFactory.NewRequestInfo in k8s.io/apiserver/pkg/endpoints/request:

    /(api | apis/GROUP)/VERSION/[watch | proxy]/[namespaces/NS]/RESOURCE/NAME/SUBRESOURCE/...

Only its position makes a word a subresource: a namespace called `proxy` is none, and everything after
`/nodes/n/proxy/` belongs to one.
"""

import re
from typing import NamedTuple
from urllib.parse import quote, unquote

from cred_proxy.refusal import Reason, Refusal

# Each of these opens a channel through the API server, past the rules and the audit of the proxy.
_TUNNELS = frozenset({"exec", "attach", "portforward", "proxy"})
# What the grammar takes as a subresource of the namespace itself rather than a resource in it.
_NAMESPACE_SUBRESOURCES = frozenset({"status", "finalize"})
_SPECIAL_VERBS = frozenset({"watch", "proxy"})
_DECODED = re.compile(r"/[\x21-\x7e]*")
_VERSIONED = re.compile(r"/(api|apis/[^/]+)/[^/]")
_AMBIGUOUS = re.compile(r"[%\\;#?]|//|/\.{1,2}(/|$)")
# Printable and without a meaning of its own inside a path, RFC 3986 section 3.3.
_UNQUOTED = "/:@!$&'()*+,="


def judge_path(raw: str, server_path: str) -> str | Refusal:
    """The path to send, or why not. `raw` is the request's path without its query.

    What is sent is written anew from what was judged, so that the origin cannot read it differently.
    """
    path = unquote(raw, encoding="latin-1")
    if not _DECODED.fullmatch(path) or _AMBIGUOUS.search(path):
        return Refusal(
            Reason.MALFORMED_PATH,
            "an API path is ASCII without empty or relative parts, double encoding and any of % \\ ; # ?",
        )
    inside = path.removeprefix(server_path)
    if not path.startswith(server_path) or not inside.startswith("/"):
        return Refusal(Reason.PATH_OUTSIDE_SERVER, f"this server's API is below {server_path}/")
    tunnel = _denied_subresource(inside)
    if tunnel is not None:
        return Refusal(Reason.PATH_NOT_ALLOWED, f"{tunnel} is not available from a sandbox")
    return quote(path, safe=_UNQUOTED)


class ObjectPath(NamedTuple):
    """A path below /api or /apis as the API server reads it, in lower case. What is missing of one that ends
    early is empty. `verb` is `watch` or `proxy`, with which paths of the older form begin."""

    group: str
    verb: str = ""
    namespace: str = ""
    resource: str = ""
    name: str = ""
    subresource: str = ""


def read_object_path(path: str) -> ObjectPath | None:
    """None for what is no object's, such as /version. `path` is decoded and without the server's own.

    Case is ignored: the API server does not know `EXEC`, and what stands in front of it may not be as strict.
    """
    parts = path.casefold().strip("/").split("/")
    if parts[0] == "api":
        group, parts = "", parts[2:]
    elif parts[0] == "apis":
        group, parts = "".join(parts[1:2]), parts[3:]
    else:
        return None
    verb = namespace = ""
    if parts and parts[0] in _SPECIAL_VERBS:
        verb, parts = parts[0], parts[1:]
    if len(parts) > 2 and parts[0] == "namespaces" and parts[2] not in _NAMESPACE_SUBRESOURCES:
        namespace, parts = parts[1], parts[2:]
    return ObjectPath(group, verb, namespace, *parts[:3])


def is_answered_with_objects(raw: str, server_path: str) -> bool:
    """Whether a client takes a Status for an answer to this path, not yet judged: all of /api/VERSION and
    /apis/GROUP/VERSION, and nothing of /api, /apis, /version, /openapi."""
    path = unquote(raw.partition("?")[0], encoding="latin-1").removeprefix(server_path)
    return _VERSIONED.match(path) is not None


def resource_of(path: str) -> str | None:
    """The kind of object that a path is about, as `apps/deployments/scale`; None when it is about none."""
    read = read_object_path(path)
    return "/".join((read.group, read.resource, read.subresource)) if read and read.resource else None


def _denied_subresource(path: str) -> str | None:
    """What the path would open, when that is denied."""
    read = read_object_path(path)
    if read is None:
        return None
    if read.verb == "proxy":
        return "proxy"
    if read.subresource in _TUNNELS:
        return read.subresource
    return "token" if (read.resource, read.subresource) == ("serviceaccounts", "token") else None
