"""Durations as Go writes them, the form of every duration in Kubernetes: `90s`, `1h30m`, `1.5h`, `-2m`."""

import re
from fractions import Fraction

# https://pkg.go.dev/time#ParseDuration
_NANOSECONDS = {
    "ns": 1,
    "us": 1_000,
    "µs": 1_000,  # U+00B5, micro sign
    "μs": 1_000,  # U+03BC, Greek letter mu
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "m": 60_000_000_000,
    "h": 3_600_000_000_000,
}
_TERM = re.compile(r"([0-9]+\.?[0-9]*|\.[0-9]+)(" + "|".join(sorted(_NANOSECONDS, reverse=True)) + ")")
_INT64_MAX = 2**63 - 1
MAX_LENGTH_CHARACTERS = 64


class InvalidDuration(ValueError):
    """The text is no duration that Go would accept."""


def parse_seconds(text: str) -> float:
    """The duration in seconds, negative or zero as it stands there. Parts below a nanosecond are dropped.

    Raises InvalidDuration, also for what does not fit Go's 64 bits of nanoseconds (292 years).
    """
    sign, magnitude = (-1, text[1:]) if text.startswith("-") else (1, text.removeprefix("+"))
    if magnitude == "0":
        return 0.0
    if not magnitude or len(text) > MAX_LENGTH_CHARACTERS:
        raise InvalidDuration(text)
    nanoseconds = 0
    position = 0
    while position < len(magnitude):
        term = _TERM.match(magnitude, position)
        if term is None:
            raise InvalidDuration(text)
        number, unit = term.groups()
        nanoseconds += int(Fraction(number.rstrip(".")) * _NANOSECONDS[unit])
        position = term.end()
    if nanoseconds > _INT64_MAX:
        raise InvalidDuration(text)
    return sign * nanoseconds / 1e9
