"""Kubernetes quantities, none of them negative: `500m`, `0.5`, `128Mi`, `10G`, `1e3`.

https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/
"""

import math
import re
from fractions import Fraction

_SUFFIXES = {
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 10**3),
    "": Fraction(1),
    **{suffix: Fraction(1000**power) for power, suffix in enumerate("kMGTPE", start=1)},
    **{suffix + "i": Fraction(1024**power) for power, suffix in enumerate("KMGTPE", start=1)},
}
# Two digits of exponent: Kubernetes takes more and then caps the value at 2^63.
PATTERN = r"^[+]?([0-9]+\.?[0-9]*|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]{1,2})?$"
MAX_LENGTH_CHARACTERS = 32
_QUANTITY = re.compile(PATTERN, re.ASCII)


class InvalidQuantity(ValueError):
    """The text is no Kubernetes quantity, or a negative one."""


def parse(text: str) -> Fraction:
    """The exact value in the resource's base unit: bytes, or CPU cores. Raises InvalidQuantity."""
    if len(text) > MAX_LENGTH_CHARACTERS or not _QUANTITY.fullmatch(text):
        raise InvalidQuantity(text)
    number = text.rstrip("numkKMGTPEi")
    if number != text:
        return Fraction(number.rstrip(".")) * _SUFFIXES[text[len(number) :]]
    mantissa, _, exponent = text.lower().partition("e")
    return Fraction(mantissa.rstrip(".")) * Fraction(10) ** int(exponent or 0)


def parse_bytes(text: str) -> int:
    """Whole bytes, a fraction rounded up as Kubernetes does. Raises InvalidQuantity."""
    return math.ceil(parse(text))


def parse_millicores(text: str) -> int:
    """Thousandths of a CPU core, rounded up. Raises InvalidQuantity."""
    return math.ceil(parse(text) * 1000)
