"""authorized_keys as in sshd(8), read strictly: an option is honoured, or its line lets nobody in.

Pure: text in, keys out. What sshd would ignore or not understand makes a line unusable here, and it says why,
since a restriction that is skipped would be a way in.
"""

import base64
import binascii
import fnmatch
import hashlib
import ipaddress
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.serialization import load_ssh_public_key

KEY_TYPES = (
    "ssh-ed25519",
    "ecdsa-sha2-nistp256",
    "ecdsa-sha2-nistp384",
    "ecdsa-sha2-nistp521",
    "ssh-rsa",
)
MIN_RSA_BITS = 3072

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
_Network = ipaddress.IPv4Network | ipaddress.IPv6Network

# No login has any of this, so that forbidding it is honoured.
_FORBID_WHAT_NOBODY_GETS = frozenset(
    {
        "restrict",
        "no-agent-forwarding",
        "no-port-forwarding",
        "no-pty",
        "no-user-rc",
        "no-x11-forwarding",
        "permitlisten",
        "permitopen",
    }
)
_GRANT = "grants what no login gets here; remove it"
_CERTIFICATE = "is for certificates, which are not accepted; list the keys themselves"
_HARDWARE = "is for hardware keys, which are not accepted"
_REFUSED_OPTIONS = {
    "agent-forwarding": _GRANT,
    "port-forwarding": _GRANT,
    "pty": _GRANT,
    "user-rc": _GRANT,
    "x11-forwarding": _GRANT,
    "tunnel": _GRANT,
    "command": "cannot be honoured: every login gets the MCP server; remove it",
    "environment": "cannot be honoured: a login has no environment; remove it",
    "cert-authority": _CERTIFICATE,
    "principals": _CERTIFICATE,
    "no-touch-required": _HARDWARE,
    "verify-required": _HARDWARE,
}

_OPTION = re.compile(r'(?P<name>[A-Za-z0-9-]+)(="(?P<value>(\\"|[^"])*)")?(,|(?=[ \t]|$))')
# sshd(8): YYYYMMDD[Z] or YYYYMMDDHHMM[SS][Z]
_EXPIRY = re.compile(r"([0-9]{8})(?:([0-9]{4})([0-9]{2})?)?(Z?)")
_ADDRESS_PATTERN = re.compile(r"[0-9a-fA-F:.*?]+")


@dataclass(frozen=True, slots=True)
class SourcePattern:
    """One pattern of `from=`: a network, or an address with the wildcards * and ?."""

    pattern: str | _Network
    negated: bool

    def matches(self, address: Address) -> bool:
        if isinstance(self.pattern, str):
            return fnmatch.fnmatchcase(str(address), self.pattern)
        return address in self.pattern


@dataclass(frozen=True, slots=True)
class Sources:
    """The addresses that one `from=` lets in: some pattern matches and no negated one does."""

    patterns: tuple[SourcePattern, ...]

    def admit(self, address: Address) -> bool:
        matching = [pattern for pattern in self.patterns if pattern.matches(address)]
        return bool(matching) and not any(pattern.negated for pattern in matching)


@dataclass(frozen=True, slots=True)
class AuthorizedKey:
    """A line with a key. `blob` is the key as it comes over the wire (RFC 4253 section 6.6).

    `problem` says why the line lets nobody in, whatever else it has.
    """

    line: int
    blob: bytes
    sources: Sources | None = None
    expires: datetime | None = None
    problem: str | None = None

    def refusal(self, address: Address, now: datetime) -> str | None:
        """Why the key does not let somebody at `address` in now; None when it does."""
        if self.problem is not None:
            return f"authorized_keys line {self.line}: {self.problem}"
        if self.expires is not None and now >= self.expires:
            return f"authorized_keys line {self.line}: the key has expired"
        if self.sources is not None and not self.sources.admit(address):
            return f"authorized_keys line {self.line}: from= does not admit this address"
        return None


@dataclass(frozen=True, slots=True)
class AuthorizedKeys:
    keys: tuple[AuthorizedKey, ...]
    unreadable: tuple[tuple[int, str], ...] = ()
    """Lines without a key that can be told, and what is wrong with them."""

    def find(self, blob: bytes) -> tuple[AuthorizedKey, ...]:
        return tuple(key for key in self.keys if key.blob == blob)

    def problems(self) -> list[str]:
        """A sentence for each line that lets nobody in."""
        of_keys = [(key.line, key.problem) for key in self.keys if key.problem is not None]
        return [f"line {line}: {problem}" for line, problem in sorted([*of_keys, *self.unreadable])]


class _Unusable(Exception):
    """What is wrong with a line."""


def fingerprint(blob: bytes) -> str:
    """As ssh shows it: `SHA256:` and base64 without padding."""
    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")


@lru_cache(maxsize=64)
def parse(text: str) -> AuthorizedKeys:
    """The keys of a file. Nothing in it is an error: a line that cannot be used carries its reason."""
    keys: list[AuthorizedKey] = []
    unreadable: list[tuple[int, str]] = []
    for number, line in enumerate(text.splitlines(), start=1):
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        try:
            keys.append(_parse_line(number, stripped))
        except _Unusable as error:
            unreadable.append((number, str(error)))
    return AuthorizedKeys(tuple(keys), tuple(unreadable))


def _parse_line(number: int, line: str) -> AuthorizedKey:
    """Raises _Unusable when no key can be told; then there is nobody to refuse it to."""
    options, rest = ("", line) if _is_key_type(line.split()[0]) else _split_options(line)
    key_type, blob = _parse_key(rest)
    try:
        _check_key(key_type, blob)
        sources, expires = _parse_options(options)
    except _Unusable as error:
        return AuthorizedKey(number, blob, problem=str(error))
    return AuthorizedKey(number, blob, sources, expires)


def _is_key_type(word: str) -> bool:
    return word.startswith(("ssh-", "ecdsa-", "sk-"))


def _split_options(line: str) -> tuple[str, str]:
    """The options and what follows them; blanks within double quotes belong to an option."""
    end = 0
    while match := _OPTION.match(line, end):
        end = match.end()
        if not match.group(0).endswith(","):
            return line[:end], line[end:].strip()
    raise _Unusable("its options cannot be read")


def _parse_key(text: str) -> tuple[str, bytes]:
    fields = text.split(maxsplit=2)
    if len(fields) < 2 or not _is_key_type(fields[0]):
        raise _Unusable("there is no public key in it")
    try:
        return fields[0], base64.b64decode(fields[1], validate=True)
    except binascii.Error:
        raise _Unusable("its key is not base64") from None


def _check_key(key_type: str, blob: bytes) -> None:
    if key_type not in KEY_TYPES:
        raise _Unusable(f"keys of type {key_type[:60]} are not accepted; use ssh-ed25519")
    try:
        key = load_ssh_public_key(f"{key_type} {base64.b64encode(blob).decode()}".encode())
    except (ValueError, UnsupportedAlgorithm):
        raise _Unusable(f"its key is no {key_type} key") from None
    if isinstance(key, RSAPublicKey) and key.key_size < MIN_RSA_BITS:
        raise _Unusable(
            f"its RSA key has {key.key_size} bits, at least {MIN_RSA_BITS} are needed; use ssh-ed25519"
        )


def _parse_options(text: str) -> tuple[Sources | None, datetime | None]:
    sources: Sources | None = None
    expires: datetime | None = None
    for name, value in _options(text):
        match name:
            case "from" if sources is None:
                sources = _parse_sources(_needed(name, value))
            case "expiry-time" if expires is None:
                expires = _parse_expiry(_needed(name, value))
            case "from" | "expiry-time":
                raise _Unusable(f"the option {name} is given twice")
            case _ if name in _REFUSED_OPTIONS:
                raise _Unusable(f"the option {name} {_REFUSED_OPTIONS[name]}")
            case _ if name not in _FORBID_WHAT_NOBODY_GETS:
                raise _Unusable(f"the option {name[:40]} is not known")
    return sources, expires


def _options(text: str) -> Iterator[tuple[str, str | None]]:
    for match in _OPTION.finditer(text):
        value = match["value"]
        yield match["name"].lower(), None if value is None else value.replace('\\"', '"')


def _needed(name: str, value: str | None) -> str:
    if not value:
        raise _Unusable(f'the option {name} needs a value: {name}="..."')
    return value


def _parse_sources(value: str) -> Sources:
    return Sources(tuple(_parse_source(pattern.strip()) for pattern in value.split(",")))


def _parse_source(text: str) -> SourcePattern:
    pattern = text.removeprefix("!")
    negated = pattern != text
    if "/" in pattern:
        try:
            return SourcePattern(ipaddress.ip_network(pattern), negated)
        except ValueError:
            raise _Unusable(f"from= has {pattern[:60]!r}, which is no network") from None
    if _ADDRESS_PATTERN.fullmatch(pattern) is None:
        raise _Unusable(
            f"from= has {pattern[:60]!r}; host names are not looked up here, give addresses or networks"
        )
    return SourcePattern(pattern.lower(), negated)


def _parse_expiry(value: str) -> datetime:
    """Without Z it is local time, as in sshd(8)."""
    match = _EXPIRY.fullmatch(value)
    if match is None:
        raise _Unusable("expiry-time is YYYYMMDD[Z] or YYYYMMDDHHMM[SS][Z]")
    day, minute, second, utc = match.groups()
    try:
        expires = datetime.strptime(f"{day}{minute or '0000'}{second or '00'}", "%Y%m%d%H%M%S")
    except ValueError:
        raise _Unusable("expiry-time is no date") from None
    return expires.replace(tzinfo=UTC) if utc else expires.astimezone()
