"""Reading the head of a CONNECT request: pure, strict, and without any opinion about where it may go.

RFC 9110 section 9.3.6 and RFC 9112 sections 2, 3.2.3 and 5. Everything that two parsers might read
differently is refused.
"""

import re

from cli_mcp.api import endpoint
from cli_mcp.api.endpoint import Endpoint, InvalidEndpoint
from cli_mcp.names import REFUSED_PATH
from cred_proxy.refusal import Reason, Refusal
from cred_proxy.routes import RouteTable

MAX_HEAD_BYTES = 16 * 1024
HEAD_END = b"\r\n\r\n"
ESTABLISHED = b"HTTP/1.1 200 Connection established\r\n\r\n"

# The start of an endless answer, a line for each refusal.
REFUSALS = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\n"

_MAX_METHOD_CHARACTERS = 20
_MAX_TARGET_CHARACTERS = endpoint.MAX_LENGTH_CHARACTERS + len(":65535")
_REQUEST_LINE = re.compile(rb"([A-Z]+) ([\x21-\x7e]+) HTTP/1\.[01]")
_AUTHORITY = re.compile(r"(?:[a-z]+://)?(?:[^/?#]*@)?([^/?#]*)")
_FIELD_LINE = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([\t\x20-\x7e\x80-\xff]*)")
_EXPLICIT_PORT = re.compile(r"[^:]+:[0-9]+|\[[^\]]*\]:[0-9]+")


def parse_connect(head: bytes) -> Endpoint | Refusal:
    """Where a CONNECT goes. `head` is the request without its final empty line."""
    request_line, *field_lines = head.split(b"\r\n")
    match = _REQUEST_LINE.fullmatch(request_line)
    if match is None:
        return Refusal(Reason.BAD_CONNECT, "the first line is not a CONNECT request of HTTP/1.1")
    method, target = match[1].decode(), match[2].decode()
    if method != "CONNECT":
        return Refusal(Reason.NOT_CONNECT, "use an https URL; plain http does not leave the sandbox")
    for line in field_lines:
        field = _FIELD_LINE.fullmatch(line)
        if field is None:
            return Refusal(Reason.BAD_CONNECT, "a header line is malformed")
        # A CONNECT has no body; whoever says otherwise hopes that its end is seen in two places.
        name, value = field[1].lower(), field[2].strip()
        if name == b"transfer-encoding" or (name == b"content-length" and value != b"0"):
            return Refusal(Reason.BAD_CONNECT, "a CONNECT has no body")
    if not _EXPLICIT_PORT.fullmatch(target):
        return Refusal(Reason.BAD_CONNECT, "the target must be host:port")
    try:
        return endpoint.parse(target)
    except InvalidEndpoint:
        # A well-formed name of something else, for example with a final dot or a user, is simply not listed.
        return Refusal(Reason.DOMAIN_NOT_ALLOWED, "the target is not one literal host and port")


def requested_target(head: bytes) -> str:
    """What a request that is refused asked for, for the audit record: printable ASCII, no longer than a name
    and a port can be, and `-` when it cannot be told.

    Of a URL only host and port, and never what stands before an `@`: both may hold a credential.
    """
    match = _REQUEST_LINE.fullmatch(head.partition(b"\r\n")[0])
    if match is None:
        return "-"
    authority = _AUTHORITY.match(match[2].decode())
    assert authority is not None  # it may be empty
    return authority[1][:_MAX_TARGET_CHARACTERS] or "-"


def requested_method(head: bytes) -> str:
    """The method of a request that is refused, for the audit record; `-` when it cannot be told."""
    match = _REQUEST_LINE.fullmatch(head.partition(b"\r\n")[0])
    return match[1].decode()[:_MAX_METHOD_CHARACTERS] if match else "-"


def asks_for_refusals(head: bytes) -> bool:
    """Whether it is no CONNECT, but asks the proxy itself what it refuses to this client."""
    return head.partition(b"\r\n")[0] == f"GET {REFUSED_PATH} HTTP/1.1".encode()


def judge_connect(head: bytes, routes: RouteTable) -> Endpoint | Refusal:
    """The endpoint, when it is a route's."""
    target = parse_connect(head)
    if isinstance(target, Refusal) or target in routes:
        return target
    reachable = ", ".join(map(str, routes)) or "nothing"
    return Refusal(Reason.DOMAIN_NOT_ALLOWED, f"{target}; this sandbox reaches {reachable}")
