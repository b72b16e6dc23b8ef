"""Parsers for JSON whose sender may be hostile: exactly the keys, types, ranges and sizes that are named.

Duplicate keys, numbers that are not finite, lone surrogates and what is nested too deeply are refused.
Messages say what is wrong where; they never quote what was sent.
"""

import base64
import binascii
import json
import math
import re
from collections.abc import Callable, Collection
from enum import StrEnum
from typing import Any, Never

Check = Callable[[Any], Any]
"""Returns what a parsed JSON value stands for, or raises MalformedMessage."""

STRUCTURE_LIMIT_BYTES = 64 << 10
"""Of a message, outside of its strings: numbers, brackets, commas and colons, without white space.
The largest honest message, a directory of 1,000 entries, has 40 KB of it."""
_SPACE = b" \t\r\n"

_LONE_SURROGATE_POSSIBLE = re.compile(r"\\u[dD][89a-fA-F]")


class MalformedMessage(Exception):
    """Bytes that are not the message they should be."""


def parse(data: bytes, *, lone_surrogates: bool = False) -> Any:
    """The JSON value in `data`, which is UTF-8. Strings with `lone_surrogates` are Python strings that cannot
    be encoded again, which is why they are refused unless asked for."""
    if is_overstructured(data):
        raise MalformedMessage(f"more than {STRUCTURE_LIMIT_BYTES} bytes outside of strings")
    try:
        text = data.decode()
        value = _DECODER.decode(text)
        if not lone_surrogates and _LONE_SURROGATE_POSSIBLE.search(text):
            json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        raise MalformedMessage("not strict JSON in UTF-8") from None
    return value


def is_overstructured(data: bytes) -> bool:
    """Whether JSON has more than STRUCTURE_LIMIT_BYTES outside of its strings.

    A parser makes an object of each value and key: 4 MiB of numbers cost it a hundred times what a string of
    that length costs. This looks without making any, at about the price of copying `data`. What is no JSON is
    judged rightly up to where a parser would stop: there is no backslash outside of strings.
    """
    if len(data) <= STRUCTURE_LIMIT_BYTES:
        return False
    if b"\\" in data:
        data = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    # Each string but the last is followed by one byte at least, a comma or a colon.
    if data.count(b'"') > 2 * STRUCTURE_LIMIT_BYTES:
        return True
    outside = b"".join(data.split(b'"')[::2])
    return len(outside.translate(None, _SPACE)) > STRUCTURE_LIMIT_BYTES


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise ValueError("a key stands twice")
    return value


def _finite(literal: str) -> float:
    value = float(literal)
    if not math.isfinite(value):
        raise ValueError("beyond the range of a double")
    return value


def _no_constant(name: str) -> Never:
    raise ValueError(f"{name} is no JSON")


_DECODER = json.JSONDecoder(object_pairs_hook=_distinct, parse_float=_finite, parse_constant=_no_constant)


def members(value: Any, **checks: Check) -> list[Any]:
    """What the values of an object stand for, in the order of `checks`, which names exactly its keys."""
    found = mapping(value)
    if found.keys() != checks.keys():
        raise MalformedMessage(f"other keys than {', '.join(checks)}")
    return [_member(name, check, found[name]) for name, check in checks.items()]


def _member(name: str, check: Check, value: Any) -> Any:
    try:
        return check(value)
    except MalformedMessage as error:
        raise MalformedMessage(f"{name}: {error}") from None


def only_member(value: Any, names: Collection[str]) -> tuple[str, Any]:
    """Key and value of an object with one key, which is in `names`."""
    found = mapping(value)
    if len(found) != 1 or (name := next(iter(found))) not in names:
        raise MalformedMessage(f"not exactly one of {', '.join(names)}")
    return name, found[name]


def mapping(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise MalformedMessage("not an object")
    return value


def boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise MalformedMessage("neither true nor false")
    return value


def text(limit: int) -> Check:
    """A string of at most `limit` characters."""

    def check(value: Any) -> str:
        if not isinstance(value, str) or len(value) > limit:
            raise MalformedMessage(f"not a string of at most {limit} characters")
        return value

    return check


def text_or_none(limit: int) -> Check:
    check = text(limit)
    return lambda value: None if value is None else check(value)


def matching(pattern: re.Pattern[str]) -> Check:
    """A string that `pattern` matches from end to end."""

    def check(value: Any) -> str:
        if not isinstance(value, str) or not pattern.fullmatch(value):
            raise MalformedMessage(f"not a string like {pattern.pattern}")
        return value

    return check


def one_of(kinds: type[StrEnum]) -> Check:
    values = frozenset(kinds)

    def check(value: Any) -> StrEnum:
        if not isinstance(value, str) or value not in values:
            raise MalformedMessage(f"not one of {', '.join(kinds)}")
        return kinds(value)

    return check


def integer(least: int, most: int) -> Check:
    """A number without fraction or exponent in that range; no boolean."""

    def check(value: Any) -> int:
        if type(value) is not int or not least <= value <= most:
            raise MalformedMessage(f"not an integer from {least} to {most}")
        return value

    return check


def number(least: float, most: float) -> Check:
    def check(value: Any) -> float:
        if type(value) not in (int, float) or not least <= value <= most:
            raise MalformedMessage(f"not a number from {least:g} to {most:g}")
        return float(value)

    return check


def list_of(item: Check, limit: int) -> Check:
    """At most `limit` items, as a tuple."""

    def check(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list) or len(value) > limit:
            raise MalformedMessage(f"not a list of at most {limit} items")
        return tuple(map(item, value))

    return check


def base64_bytes(limit_bytes: int) -> Check:
    """Bytes in the standard alphabet with padding, RFC 4648 section 4."""

    def check(value: Any) -> bytes:
        try:
            data = base64.b64decode(value, validate=True) if isinstance(value, str) else None
        except (binascii.Error, ValueError):
            data = None
        if data is None or len(data) > limit_bytes:
            raise MalformedMessage(f"not Base64 of at most {limit_bytes} bytes")
        return data

    return check
