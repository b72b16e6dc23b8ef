"""Values in the one form in which the API server stores them.

Metacontroller compares what we return with what is stored, as decoded JSON; `1000m` against a stored `1`
would be written again at every sync.
"""

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction

from cli_mcp.api import quantity

_NANO = Fraction(1, 10**9)
_DECIMAL = {-9: "n", -6: "u", -3: "m", 0: "", 3: "k", 6: "M", 9: "G", 12: "T", 15: "P", 18: "E"}
_BINARY = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"]
# DefaultTolerationSeconds, an admission plugin that is on by default, appends these two unless something
# tolerates the same taints already.
_DEFAULT_TOLERATION_SECONDS = 300
_NODE_TAINTS = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")


def canonical_quantity(text: str) -> str:
    """A Kubernetes quantity as the API server prints it: `1000m` is `1`, `0.5` is `500m`, `1024Mi` is `1Gi`.

    Follows Quantity.CanonicalizeBytes of k8s.io/apimachinery. Raises quantity.InvalidQuantity.
    """
    value = _rounded_up_to_nano(quantity.parse(text))
    if value == 0:
        return "0"
    if text.endswith("i") and abs(value) >= 1024 and value.denominator == 1:
        return _scaled(value, 1024, dict(enumerate(_BINARY)))
    if "e" in text.lower() and not text.endswith("E"):
        return _scaled(value, 10, {power: f"e{power}" if power else "" for power in _DECIMAL})
    return _scaled(value, 10, _DECIMAL)


def _rounded_up_to_nano(value: Fraction) -> Fraction:
    return math.ceil(value / _NANO) * _NANO


def _scaled(value: Fraction, base: int, suffixes: Mapping[int, str]) -> str:
    """The value as an integer with the largest suffix that leaves one."""
    for power in sorted(suffixes, reverse=True):
        scaled = value / Fraction(base) ** power
        if scaled.denominator == 1:
            return f"{scaled.numerator}{suffixes[power]}"
    raise AssertionError("a value in whole nanos has a suffix")


def canonical_resources(resources: Mapping[str, Mapping[str, str]]) -> dict[str, dict[str, str]]:
    """`requests` and `limits` of a container, those that are empty left out."""
    return {
        kind: {name: canonical_quantity(amount) for name, amount in sorted(amounts.items())}
        for kind, amounts in sorted(resources.items())
        if amounts
    }


def canonical_tolerations(tolerations: Sequence[Mapping[str, object]]) -> list[dict[str, object]]:
    """Tolerations with the two that admission would append; empty when none are given, since then the whole
    list is the API server's. A list without merge keys must be exactly what is stored."""
    if not tolerations:
        return []
    given = [
        {key: value for key, value in toleration.items() if value not in (None, "")}
        for toleration in tolerations
    ]
    return given + [
        {
            "effect": "NoExecute",
            "key": taint,
            "operator": "Exists",
            "tolerationSeconds": _DEFAULT_TOLERATION_SECONDS,
        }
        for taint in _NODE_TAINTS
        if not any(_tolerates(toleration, taint) for toleration in given)
    ]


def _tolerates(toleration: Mapping[str, object], taint: str) -> bool:
    # https://pkg.go.dev/k8s.io/kubernetes/plugin/pkg/admission/defaulttolerationseconds
    return toleration.get("key", taint) == taint and toleration.get("effect", "NoExecute") == "NoExecute"
