"""What a hostile sender may write is refused by its own kind of error, and never quoted."""

import json
import re
import time
from collections.abc import Callable
from enum import StrEnum
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cli_mcp import strict_json
from cli_mcp.strict_json import STRUCTURE_LIMIT_BYTES, MalformedMessage, is_overstructured, parse


class Kind(StrEnum):
    ONE = "one"


CHECKS: dict[str, strict_json.Check] = {
    "boolean": strict_json.boolean,
    "text": strict_json.text(3),
    "text-or-none": strict_json.text_or_none(3),
    "matching": strict_json.matching(re.compile("[ab]+")),
    "one-of": strict_json.one_of(Kind),
    "integer": strict_json.integer(0, 255),
    "number": strict_json.number(0.5, 300),
    "list": strict_json.list_of(strict_json.integer(1, 9), 2),
    "base64": strict_json.base64_bytes(4),
    "mapping": strict_json.mapping,
}


@pytest.mark.parametrize(
    ("check", "value", "meaning"),
    [
        ("boolean", True, True),
        ("text", "abc", "abc"),
        ("text-or-none", None, None),
        ("text-or-none", "x", "x"),
        ("matching", "abba", "abba"),
        ("one-of", "one", Kind.ONE),
        ("integer", 255, 255),
        ("number", 1, 1.0),
        ("number", 0.5, 0.5),
        ("list", [1, 2], (1, 2)),
        ("list", [], ()),
        ("base64", "YWJj", b"abc"),
        ("mapping", {"a": 1}, {"a": 1}),
    ],
)
def test_a_check_returns_what_the_value_stands_for(check: str, value: Any, meaning: Any) -> None:
    assert CHECKS[check](value) == meaning


@pytest.mark.parametrize(
    ("check", "value"),
    [
        ("boolean", 1),
        ("boolean", "true"),
        ("text", "abcd"),
        ("text", 1),
        ("text", None),
        ("text-or-none", "abcd"),
        ("matching", "abc"),
        ("matching", "ab\n"),
        ("one-of", "two"),
        ("one-of", 1),
        ("one-of", []),
        ("integer", 256),
        ("integer", -1),
        ("integer", True),
        ("integer", 1.0),
        ("integer", "1"),
        ("number", 0.4),
        ("number", 301),
        ("number", True),
        ("number", "1"),
        ("list", [1, 2, 3]),
        ("list", [0]),
        ("list", "12"),
        ("base64", "YWJjZGU="),
        ("base64", "YWJj\n"),
        ("base64", "YW-_"),
        ("base64", "YWJ"),
        ("base64", "é"),
        ("base64", 1),
        ("mapping", []),
    ],
)
def test_a_check_takes_nothing_else(check: str, value: Any) -> None:
    with pytest.raises(MalformedMessage):
        CHECKS[check](value)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b'{"a":1,"a":2}',
        b'{"a":{"b":1,"b":1}}',
        b"NaN",
        b"[-Infinity]",
        b"1e999",
        b"[" * 200_000,
        b'{"a":' * 200_000,
        b"1" * 10_000,
        b'"\xff"',
        b"\xef\xbb\xbf{}",
        '"x"'.encode("utf-16"),
        b'"\\ud800"',
        b'{"\\uDfff":1}',
        b'"\x01"',
        b"{} {}",
    ],
)
def test_what_is_no_strict_json_is_refused(data: bytes) -> None:
    with pytest.raises(MalformedMessage):
        parse(data)


def test_lone_surrogates_are_taken_where_they_are_asked_for() -> None:
    assert parse(b'"\\ud800"', lone_surrogates=True) == "\ud800"
    assert parse(b'"\\ud83d\\ude00"') == "\U0001f600"


def test_an_object_has_exactly_the_members_that_are_named() -> None:
    assert strict_json.members({"b": 1, "a": True}, a=strict_json.boolean, b=strict_json.integer(0, 1)) == [
        True,
        1,
    ]
    others: list[Any] = [{"a": True}, {"a": True, "b": 1, "c": 1}, {}, [], None]
    for wrong in others:
        with pytest.raises(MalformedMessage):
            strict_json.members(wrong, a=strict_json.boolean, b=strict_json.integer(0, 1))


@pytest.mark.parametrize("wrong", [{}, {"a": 1, "b": 1}, {"c": 1}, []])
def test_one_member_of_several_is_one_and_known(wrong: Any) -> None:
    assert strict_json.only_member({"a": 1}, ("a", "b")) == ("a", 1)
    with pytest.raises(MalformedMessage):
        strict_json.only_member(wrong, ("a", "b"))


def test_an_error_names_the_member_and_does_not_quote_the_value() -> None:
    with pytest.raises(MalformedMessage, match=r"^name: not a string") as caught:
        strict_json.members({"name": "secret" * 100}, name=strict_json.text(5))
    assert "secret" not in str(caught.value)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_value_or_that_error(data: bytes) -> None:
    try:
        parse(data)
    except MalformedMessage:
        pass


_LONG = STRUCTURE_LIMIT_BYTES + 2
# 4 MiB that a parser would be busy with for long, and some that look like it.
_STRUCTURE = {
    "integers": b"[" + b"1," * _LONG + b"1]",
    "keys": b"{" + b",".join(b'"%x":1' % number for number in range(_LONG)) + b"}",
    "strings": b"[" + b'"",' * _LONG + b'""]',
    "strings without anything between": b'""' * _LONG,
    "lists": b"[" + b"[]," * _LONG + b"[]]",
    "depth": b"[" * _LONG,
    "one number": b"1" * _LONG,
    "after a string with escaped quotes": b'["' + b'\\"' * 9 + b'",' + b"1," * _LONG + b"1]",
    "after a string that ends with backslashes": b'["' + b"\\\\" * 9 + b'",' + b"1," * _LONG + b"1]",
    "after a backslash outside": b"[" + b"1," * _LONG + b'\\"1]',
}
_TEXT = {
    "one string": b'["' + b"x" * (4 << 20) + b'"]',
    "quotes": b'["' + b'\\"' * (2 << 20) + b'"]',
    "backslashes": b'["' + b"\\\\" * (2 << 20) + b'"]',
    "code": b'["' + b'{\\"a\\": [1, 2, \\"\\\\\\"\\"]},\\n' * (1 << 16) + b'"]',
    "white space": b"[" + b" \t\r\n" * (1 << 20) + b"1]",
    "commas": b'["' + b"1,[{:" * (1 << 19) + b'"]',
}


@pytest.mark.parametrize("name", _STRUCTURE)
def test_much_structure_is_refused_before_it_is_parsed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any) -> None:
        raise AssertionError("it was parsed")

    monkeypatch.setattr(strict_json, "_DECODER", never)
    assert is_overstructured(_STRUCTURE[name])
    with pytest.raises(MalformedMessage, match="outside of strings"):
        parse(_STRUCTURE[name])


@pytest.mark.parametrize("name", _TEXT)
def test_a_long_string_is_no_structure(name: str) -> None:
    assert not is_overstructured(_TEXT[name])
    assert len(parse(_TEXT[name])) == 1


@pytest.mark.parametrize("data", [*_STRUCTURE.values(), *_TEXT.values()], ids=[*_STRUCTURE, *_TEXT])
def test_the_look_costs_about_as_much_as_copying(data: bytes) -> None:
    def seconds(work: Callable[[], object]) -> float:
        begun = time.process_time()
        for _ in range(3):
            work()
        return time.process_time() - begun

    # A byte is copied by the pair of passes that an escape needs, and looked at in one more.
    assert seconds(lambda: is_overstructured(data)) <= 60 * max(seconds(lambda: bytearray(data)), 0.002)


_VALUES = st.recursive(
    st.none() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
)
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"')


@settings(deadline=None, max_examples=50)
@given(_VALUES)
def test_structure_is_what_stands_outside_of_strings(value: Any) -> None:
    data = json.dumps(value, separators=(",", ":")).encode()
    most = b"0" * (STRUCTURE_LIMIT_BYTES - len(_STRING.sub(b"", data)))
    string = b'"' + b"x" * STRUCTURE_LIMIT_BYTES + b'"'
    assert not is_overstructured(data + b" \n" + most + string)
    assert is_overstructured(data + b" \n" + most + b"0" + string)
