"""Every way in which the proxy answers by itself instead of the origin: one table, and how it is written."""

import json
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple


class Reason(StrEnum):
    """Why; also the value in the audit line and the label of the metrics, hence a short fixed list."""

    # On the connection to the proxy, before TLS
    BAD_CONNECT = "bad-connect"
    NOT_CONNECT = "not-connect"
    DOMAIN_NOT_ALLOWED = "domain-not-allowed"
    HEAD_TOO_LARGE = "head-too-large"
    CONNECT_TIMEOUT = "connect-timeout"
    TOO_MANY_CONNECTIONS = "too-many-connections"
    TLS_FAILED = "tls-failed"
    # On a request inside it
    BAD_REQUEST = "bad-request"
    HTTP_VERSION = "http-version"
    METHOD_NOT_ALLOWED = "method-not-allowed"
    HOST_MISMATCH = "host-mismatch"
    TRANSFER_CODING = "transfer-coding"
    BODY_STALLED = "body-stalled"
    EXPECTATION = "expectation"
    MALFORMED_PATH = "malformed-path"
    PATH_OUTSIDE_SERVER = "path-outside-server"
    PATH_NOT_ALLOWED = "path-not-allowed"
    WITHHELD = "withheld"
    FIELD_NOT_ALLOWED = "field-not-allowed"
    UPGRADE_NOT_ALLOWED = "upgrade-not-allowed"
    # On the way to the origin
    UNRESOLVED = "upstream-unresolved"
    UNREACHABLE = "upstream-unreachable"
    UNTRUSTED = "upstream-untrusted"
    UPSTREAM_TIMEOUT = "upstream-timeout"
    UPSTREAM_BROKEN = "upstream-broken"
    UPSTREAM_PROXY = "upstream-proxy"
    # After the answer began, or without one
    CUT_OFF = "cut-off"
    CLIENT_GONE = "client-gone"
    INTERNAL = "internal"


class Answer(NamedTuple):
    """`phrase` stands in the status line, where most clients show it; `kubernetes` is a StatusReason of
    k8s.io/apimachinery meta/v1."""

    status: int
    phrase: str
    kubernetes: str


ANSWERS = {
    Reason.BAD_CONNECT: Answer(400, "malformed CONNECT", "BadRequest"),
    Reason.NOT_CONNECT: Answer(405, "only https through CONNECT", "MethodNotAllowed"),
    Reason.DOMAIN_NOT_ALLOWED: Answer(403, "domain not allowed", "Forbidden"),
    Reason.HEAD_TOO_LARGE: Answer(431, "request head too large", "BadRequest"),
    Reason.CONNECT_TIMEOUT: Answer(408, "no CONNECT in time", "Timeout"),
    Reason.TOO_MANY_CONNECTIONS: Answer(429, "too many connections", "TooManyRequests"),
    Reason.BAD_REQUEST: Answer(400, "malformed request", "BadRequest"),
    Reason.HTTP_VERSION: Answer(505, "only HTTP/1.1 and HTTP/1.0", "BadRequest"),
    Reason.METHOD_NOT_ALLOWED: Answer(405, "method not allowed", "MethodNotAllowed"),
    # RFC 9110, 15.5.20: the connection is not one for this host.
    Reason.HOST_MISMATCH: Answer(421, "host differs from CONNECT", "BadRequest"),
    Reason.TRANSFER_CODING: Answer(501, "transfer coding not supported", "BadRequest"),
    Reason.BODY_STALLED: Answer(408, "request body stalled", "Timeout"),
    Reason.EXPECTATION: Answer(417, "expectation not supported", "BadRequest"),
    Reason.MALFORMED_PATH: Answer(400, "malformed path", "BadRequest"),
    Reason.PATH_OUTSIDE_SERVER: Answer(403, "path not allowed", "Forbidden"),
    Reason.PATH_NOT_ALLOWED: Answer(403, "path not allowed", "Forbidden"),
    Reason.WITHHELD: Answer(403, "Secrets not allowed", "Forbidden"),
    Reason.FIELD_NOT_ALLOWED: Answer(403, "header field not allowed", "Forbidden"),
    Reason.UPGRADE_NOT_ALLOWED: Answer(403, "upgrade not allowed", "Forbidden"),
    Reason.UNRESOLVED: Answer(502, "upstream name does not resolve", "ServiceUnavailable"),
    Reason.UNREACHABLE: Answer(502, "upstream not reachable", "ServiceUnavailable"),
    Reason.UNTRUSTED: Answer(502, "upstream certificate not trusted", "ServiceUnavailable"),
    Reason.UPSTREAM_TIMEOUT: Answer(504, "upstream timed out", "Timeout"),
    Reason.UPSTREAM_BROKEN: Answer(502, "upstream broke the connection", "ServiceUnavailable"),
    Reason.UPSTREAM_PROXY: Answer(502, "upstream proxy refused", "ServiceUnavailable"),
    Reason.INTERNAL: Answer(500, "proxy error", "InternalError"),
}


_FORBIDDEN, _SERVER_ERROR, _BAD_GATEWAY = 403, 500, 502
_MAX_PHRASE_CHARACTERS = 300
_TEXT_IS_SHOWN = frozenset({_FORBIDDEN, _SERVER_ERROR, _BAD_GATEWAY})


class Written(NamedTuple):
    """A refusal in one of its forms."""

    status: int
    content_type: str
    text: str


@dataclass(frozen=True, slots=True)
class Refusal:
    """`detail` is for whoever reads the answer: what was refused and what to do instead."""

    reason: Reason
    detail: str

    @property
    def answer(self) -> Answer:
        return ANSWERS[self.reason]

    @property
    def text(self) -> str:
        return f"{self.answer.phrase}: {self.detail}\n"

    @property
    def as_text(self) -> "Written":
        return Written(self.answer.status, "text/plain", self.text)

    @property
    def as_status_object(self) -> "Written":
        """A Kubernetes Status, which clients show to their user where they expect an object."""
        text = json.dumps(
            {
                "kind": "Status",
                "apiVersion": "v1",
                "metadata": {},
                "status": "Failure",
                "message": f"{self.answer.phrase}: {self.detail}",
                "reason": self.answer.kubernetes,
                "code": self.answer.status,
            }
        )
        return Written(self.answer.status, "application/json", text)

    @property
    def as_text_for_discovery(self) -> "Written":
        """Where clients expect anything else of an API server: discovery, /version, OpenAPI.

        client-go looks for no Status there. It shows a text, and only with some statuses; for the others it
        has words of its own (NewGenericServerResponse in k8s.io/apimachinery/pkg/api/errors).
        """
        status = self.answer.status
        if status not in _TEXT_IS_SHOWN:
            status = _FORBIDDEN if status < _SERVER_ERROR else _BAD_GATEWAY
        return Written(status, "text/plain", self.text)

    def before_tls(self) -> bytes:
        """The whole response to a CONNECT; the connection ends with it.

        Clients in Go and Python show the phrase of such a response and nothing else of it.
        """
        body = self.text.encode("ascii", "replace")
        phrase = "".join(filter(str.isprintable, self.text))[:_MAX_PHRASE_CHARACTERS]
        head = (
            f"HTTP/1.1 {self.answer.status} {phrase}\r\n"
            "Content-Type: text/plain; charset=utf-8\r\n"
            f"Content-Length: {len(body)}\r\n"
            "Connection: close\r\n\r\n"
        )
        return head.encode("ascii", "replace") + body
