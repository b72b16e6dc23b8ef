"""What an allowlist names: one host and one port, written `host`, `host:port` or `[ipv6]:port`."""

import ipaddress
import re
from typing import NamedTuple

DEFAULT_PORT = 443
_LABEL = r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
PORT_PATTERN = r"([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])"
# No wildcard, leading or trailing dot, scheme, path or user: an allowlist says exactly what it allows.
HOST_PATTERN = rf"(\[[0-9A-Fa-f:.]+\]|{_LABEL}(\.{_LABEL})*)"
PATTERN = rf"^{HOST_PATTERN}(:{PORT_PATTERN})?$"
MEANING = (
    "must be one literal host, host:port or [ipv6]:port; "
    "write neither wildcards nor a scheme or path, and name every host by itself"
)
MAX_LENGTH_CHARACTERS = 253
_ENDPOINT = re.compile(PATTERN, re.ASCII)


class Endpoint(NamedTuple):
    """A host, lower case and without brackets (IPv6 in its shortest form), and a port."""

    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        """Whether it is a different place for each that connects: its own machine or pod."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class InvalidEndpoint(ValueError):
    """The text names no single host and port."""


def parse(text: str) -> Endpoint:
    """Raises InvalidEndpoint. A missing port is 443."""
    if len(text) > MAX_LENGTH_CHARACTERS or not _ENDPOINT.fullmatch(text):
        raise InvalidEndpoint(text)
    if not text.startswith("["):
        host, _, port = text.lower().partition(":")
        return Endpoint(host, int(port or DEFAULT_PORT))
    address, _, port = text[1:].partition("]")
    try:
        host = ipaddress.IPv6Address(address).compressed
    except ValueError as error:
        raise InvalidEndpoint(text) from error
    return Endpoint(host, int(port[1:] or DEFAULT_PORT))
