"""Kubernetes quantities in canonical form: `1000m` is stored as `1`, `1024Mi` as `1Gi`, `0.5` as `500m`.

The largest suffix without a fraction; the family of the suffix (binary, decimal or exponent) stays. Rules:
k8s.io/apimachinery/pkg/api/resource, Quantity.CanonicalizeBytes.
"""

from __future__ import annotations

import re
from decimal import ROUND_UP, Decimal

_BINARY = {"Ki": 1, "Mi": 2, "Gi": 3, "Ti": 4, "Pi": 5, "Ei": 6}
_DECIMAL = {"n": -3, "u": -2, "m": -1, "": 0, "k": 1, "M": 2, "G": 3, "T": 4, "P": 5, "E": 6}
_EXPONENTS = {f"e{3 * power}" if power else "": power for power in _DECIMAL.values()}
_FORM = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+))(?:([eE][+-]?\d+)|([KMGTPE]i|[numkMGTPE]))?")


def canonical(value: str | float) -> str:
    """The text that the API server stores for a quantity.

    Raises:
        ValueError: when it is not a quantity.
    """
    match = _FORM.fullmatch(str(value).strip())
    if match is None:
        raise ValueError(f"{value!r} is not a quantity")
    number, exponent, suffix = Decimal(match[1]), match[2], match[3] or ""
    if suffix in _BINARY:
        amount = number * 1024 ** _BINARY[suffix]
        if abs(amount) >= 1024 and amount == amount.to_integral_value():
            return _binary(int(amount))
        return _decimal(amount)
    if exponent:
        return _decimal(number.scaleb(int(exponent[1:])), _EXPONENTS)
    return _decimal(number * Decimal(1000) ** _DECIMAL[suffix])


def _binary(amount: int) -> str:
    for suffix, power in reversed(_BINARY.items()):
        if amount % 1024**power == 0:
            return f"{amount // 1024**power}{suffix}"
    return str(amount)


def _decimal(amount: Decimal, suffixes: dict[str, int] = _DECIMAL) -> str:
    nanos = amount.scaleb(9).to_integral_value(rounding=ROUND_UP)  # nothing is kept below one nano-unit
    if nanos == 0:
        return "0"
    for suffix, power in reversed(suffixes.items()):
        unit = Decimal(1000) ** power * 10**9
        if nanos % unit == 0:
            return f"{int(nanos // unit)}{suffix}"
    raise AssertionError("a whole number of nano-units always has a suffix")
