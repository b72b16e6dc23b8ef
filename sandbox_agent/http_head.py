"""Reads the head of an HTTP/1.1 request (RFC 9112), and takes nothing that could be read in two ways.

Stricter than the RFC allows: no field twice, no transfer coding, no line folding, no bare line feed, nothing
but printable ASCII.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from cli_mcp.agent_api import RefusalKind
from sandbox_agent.refused import Refused

FIELDS_LIMIT = 64
_REQUEST_LINE = re.compile(rb"([A-Z]{1,16}) (/[!-~]{0,1023}) HTTP/1\.1")
# RFC 9110 sections 5.1 and 5.5: no space before the colon, and around the value it does not count.
_FIELD = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):([\t -~]*)")
_LENGTH = re.compile(r"0|[1-9][0-9]{0,15}")


@dataclass(frozen=True, slots=True)
class RequestHead:
    """`fields` by their names in lower case; `body_bytes` is the length of the body that follows."""

    method: str
    path: str
    fields: Mapping[str, str]
    body_bytes: int
    keep_alive: bool


def parse_head(head: bytes) -> RequestHead:
    """Read a head, from its first byte to its empty line inclusive.

    Raises Refused: MALFORMED, HEAD_TOO_LARGE, LENGTH_REQUIRED.
    """
    request_line, *lines = head.removesuffix(b"\r\n\r\n").split(b"\r\n")
    request = _REQUEST_LINE.fullmatch(request_line)
    if request is None:
        raise _malformed("not a request of HTTP/1.1")
    if len(lines) > FIELDS_LIMIT:
        raise Refused(RefusalKind.HEAD_TOO_LARGE, f"more than {FIELDS_LIMIT} header fields")
    method = request[1].decode()
    fields = _fields(lines)
    if "host" not in fields:
        raise _malformed("no Host")
    if "expect" in fields:
        raise _malformed("Expect is not supported")
    return RequestHead(
        method,
        request[2].decode(),
        fields,
        _body_bytes(method, fields),
        keep_alive=fields.get("connection", "keep-alive").lower() == "keep-alive",
    )


def _fields(lines: list[bytes]) -> dict[str, str]:
    fields = {}
    for line in lines:
        field = _FIELD.fullmatch(line)
        if field is None:
            raise _malformed("not a header field")
        fields[field[1].decode().lower()] = field[2].strip(b" \t").decode()
    if len(fields) != len(lines):
        raise _malformed("a header field stands twice")
    return fields


def _body_bytes(method: str, fields: Mapping[str, str]) -> int:
    if "transfer-encoding" in fields:
        if "content-length" in fields:
            raise _malformed("both Transfer-Encoding and Content-Length")
        raise Refused(RefusalKind.LENGTH_REQUIRED, "Content-Length instead of Transfer-Encoding, please")
    length = fields.get("content-length")
    if length is None:
        if method == "POST":
            raise Refused(RefusalKind.LENGTH_REQUIRED, "no Content-Length")
        return 0
    if not _LENGTH.fullmatch(length):
        raise _malformed("Content-Length is no number")
    return int(length)


def _malformed(message: str) -> Refused:
    return Refused(RefusalKind.MALFORMED, message)
