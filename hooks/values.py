"""Values that no child and no status may contain: Metacontroller would write them again at every sync."""

from collections.abc import Iterable
from typing import Any


def flapping_value(values: Iterable[Any]) -> str | None:
    """The first null, or float that is a whole number, in JSON-like `values`; None when there is none.

    The API server stores neither, so that neither is ever equal to what is stored.
    """
    # Most of a large sync is here, so the commonest types come first and cost one comparison.
    pending = [values]
    while pending:
        for value in pending.pop():
            kind = type(value)
            if kind is str:
                continue
            if kind is dict:
                pending.append(value.values())
            elif kind is list:
                pending.append(value)
            elif value is None:
                return "null"
            elif kind is float and value.is_integer():
                return str(value)
    return None
