"""The kinds of text that fields hold: names of objects, durations, quantities, endpoints, PEM, user names."""

import re
import ssl
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, WithJsonSchema

from cli_mcp.api import duration, endpoint, quantity
from cli_mcp.api.model import Check, matching
from cli_mcp.execution import (
    LARGEST_STREAM_LIMIT_BYTES,
    LEAST_STREAM_LIMIT_BYTES,
    LONGEST_TIMEOUT_SECONDS,
)

# RFC 1123, as Kubernetes applies it to the names of objects.
_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"

ObjectName = Annotated[
    str,
    Field(min_length=1, max_length=253),
    matching(
        rf"^{_LABEL}(\.{_LABEL})*$",
        "must be the name of a Kubernetes object: lower-case letters, digits, '-' and '.'",
    ),
]
"""A DNS-1123 subdomain."""

LabelName = Annotated[
    str,
    Field(min_length=1, max_length=63),
    matching(rf"^{_LABEL}$", "must be a DNS label: lower-case letters, digits and '-'"),
]
"""A DNS-1123 label."""

# ConfigMap and Secret keys: https://kubernetes.io/docs/concepts/configuration/secret/
DataKey = Annotated[
    str,
    Field(min_length=1, max_length=253),
    matching(r"^[-._a-zA-Z0-9]+$", "must be a key of the object's data: letters, digits, '-', '_' and '.'"),
]

EnvName = Annotated[
    str,
    Field(min_length=1, max_length=253),
    matching(
        r"^[-._a-zA-Z][-._a-zA-Z0-9]*$",
        "must be the name of an environment variable: letters, digits, '-', '_' and '.', no digit first",
    ),
]

# The kernel's limit for one argument or variable is 128 KiB (MAX_ARG_STRLEN, execve(2)).
EnvValue = Annotated[
    str,
    Field(max_length=65_536),
    Check(
        r"!self.contains('\u0000')",
        lambda text: "\0" not in text,
        "must not contain NUL, which no environment variable can hold",
    ),
]

ImageReference = Annotated[
    str,
    Field(max_length=1024),
    matching(r"^\S*$", "must be an image reference without spaces, such as registry.example.com/sandbox:1"),
]


def _is_duration(text: str) -> bool:
    try:
        duration.parse_seconds(text)
    except duration.InvalidDuration:
        return False
    return True


def _is_positive_duration(text: str) -> bool:
    return _is_duration(text) and duration.parse_seconds(text) > 0


_DURATION_REMEDY = "must be a duration with units, such as 90s, 30m or 1h30m"

GoDuration = Annotated[str, Check(None, _is_duration, _DURATION_REMEDY)]
"""Any Go duration. The API server takes any text here, as it does for the Go operator's users."""

# Only what the pattern lets through reaches duration(), which fails for what it cannot read.
PositiveDuration = Annotated[
    str,
    Field(min_length=1, max_length=duration.MAX_LENGTH_CHARACTERS),
    Check(
        r"self.matches(r'^[+]?(([0-9]+[.]?[0-9]*|[.][0-9]+)(ns|us|µs|μs|ms|s|m|h))+$') "
        r"&& duration(self) > duration('0s')",
        _is_positive_duration,
        f"{_DURATION_REMEDY}, longer than zero",
    ),
]


def _seconds_as_duration(value: Any) -> Any:
    return f"{value}s" if type(value) is int else value


def _is_command_time(text: str) -> bool:
    return _is_duration(text) and 1 <= duration.parse_seconds(text) <= LONGEST_TIMEOUT_SECONDS


CommandTime = Annotated[
    str,
    BeforeValidator(_seconds_as_duration),
    Check(
        None, _is_command_time, "must be a number of seconds, or a duration such as 90s or 5m, from 1s to 1h"
    ),
    WithJsonSchema(
        {
            "x-kubernetes-int-or-string": True,
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "pattern": r"^[+]?(([0-9]+[.]?[0-9]*|[.][0-9]+)(ns|us|µs|μs|ms|s|m|h))+$",
            "maxLength": duration.MAX_LENGTH_CHARACTERS,
            "minimum": 1,
            "maximum": int(LONGEST_TIMEOUT_SECONDS),
        }
    ),
]
"""How long a command may run; a number in the file is one of seconds."""


def _integer_as_text(value: Any) -> Any:
    return str(value) if type(value) is int else value


def _is_quantity(text: str) -> bool:
    try:
        quantity.parse(text)
    except quantity.InvalidQuantity:
        return False
    return True


Quantity = Annotated[
    str,
    BeforeValidator(_integer_as_text),
    Check(None, _is_quantity, "must be a quantity such as 500m, 2, 512Mi or 10Gi, not negative"),
    WithJsonSchema(
        {
            "x-kubernetes-int-or-string": True,
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "pattern": quantity.PATTERN,
            "maxLength": quantity.MAX_LENGTH_CHARACTERS,
            "minimum": 0,
        }
    ),
]
"""A Kubernetes quantity; a number in the file becomes its text."""


def _is_output_limit(text: str) -> bool:
    return LEAST_STREAM_LIMIT_BYTES <= quantity.parse_bytes(text) <= LARGEST_STREAM_LIMIT_BYTES


OutputLimit = Annotated[
    Quantity,
    Check(
        None,
        _is_output_limit,
        f"must be a number of bytes such as 20k or 32Ki, from {LEAST_STREAM_LIMIT_BYTES} to "
        f"{LARGEST_STREAM_LIMIT_BYTES}",
    ),
]


def _is_endpoint(text: str) -> bool:
    try:
        endpoint.parse(text)
    except endpoint.InvalidEndpoint:
        return False
    return True


Domain = Annotated[
    str,
    Field(min_length=1, max_length=endpoint.MAX_LENGTH_CHARACTERS),
    Check(f"self.matches(r'{endpoint.PATTERN}')", _is_endpoint, endpoint.MEANING),
]
"""A host, or host:port, of an allowlist."""

HttpProxyUrl = Annotated[
    str,
    Field(min_length=1, max_length=endpoint.MAX_LENGTH_CHARACTERS + len("http://")),
    matching(
        rf"^http://{endpoint.HOST_PATTERN}:{endpoint.PORT_PATTERN}/?$",
        "must be http://host:port without user, password or path; an instance holds no credentials",
    ),
]
"""An HTTP proxy; the port is not optional, since no two products agree on a default."""


def _is_certificate_bundle(text: str) -> bool:
    if "-----BEGIN CERTIFICATE-----" not in text or "PRIVATE KEY" in text:
        return False
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=text)
    except (ssl.SSLError, ValueError):  # ValueError: not ASCII
        return False
    return True


CertificateBundle = Annotated[
    str,
    Field(max_length=262_144),
    Check(
        "self.contains('-----BEGIN CERTIFICATE-----') && !self.contains('PRIVATE KEY')",
        _is_certificate_bundle,
        "must be one or more PEM certificates (-----BEGIN CERTIFICATE-----) and no private key",
    ),
]
"""CA certificates, PEM, inline."""

MAX_USERNAME_CHARACTERS = 63
Username = Annotated[
    str,
    Field(min_length=1, max_length=MAX_USERNAME_CHARACTERS),
    matching(
        r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$",
        "must be a user name of letters, digits, '_', '.' and '-', not starting with '.' or '-'",
    ),
]

# Literals, dots and simple classes, at most three of them repeated: whatever the user name, Python's
# backtracking ends after some 63^3 / 6 steps.
_CLASS = r"\[(a-z|A-Z|0-9|a-f|A-F|[A-Za-z0-9_.])+-?\]"
_ATOM = rf"([A-Za-z0-9_-]|\\\.|\.|{_CLASS})"
_REPEAT = r"([*+?]|\{[0-9]{1,2},([0-9]{1,2})?\})"
_FIXED = rf"({_ATOM}(\{{[0-9]{{1,2}}\}})?)"
_USERNAME_PATTERN = rf"^\^{_FIXED}*({_ATOM}{_REPEAT}{_FIXED}*){{0,3}}\$$"


def _is_username_pattern(text: str) -> bool:
    if not re.fullmatch(_USERNAME_PATTERN, text, re.ASCII):
        return False
    try:
        re.compile(text)
    except re.error:  # such as {5,2}
        return False
    return True


UsernamePattern = Annotated[
    str,
    Field(min_length=3, max_length=128),
    Check(
        f"self.matches(r'{_USERNAME_PATTERN}')",
        _is_username_pattern,
        "must be a simple regular expression from ^ to $ such as ^agent-[a-z0-9]+$: literals, '.', classes "
        "of a-z, A-Z, 0-9, a-f, A-F and single characters, at most three repeats, no groups; "
        "for alternatives add another route",
    ),
]
"""A regular expression for whole user names."""
