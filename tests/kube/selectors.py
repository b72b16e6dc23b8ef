"""Label and field selectors, as query strings and as objects.

Grammar: k8s.io/apimachinery/pkg/labels and pkg/fields. An empty selector matches everything.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tests.kube import errors
from tests.kube.objects import labels_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tests.kube.objects import Object


@dataclass(frozen=True)
class Requirement:
    """`key operator values`; a missing key satisfies `!=` and `notin`."""

    key: str
    operator: str
    values: frozenset[str] = frozenset()

    def matches(self, value: str | None) -> bool:
        return _OPERATORS[self.operator](value, self.values)


_OPERATORS: dict[str, Callable[[str | None, frozenset[str]], bool]] = {
    "In": lambda value, values: value in values,
    "NotIn": lambda value, values: value not in values,
    "Exists": lambda value, _: value is not None,
    "DoesNotExist": lambda value, _: value is None,
}

_EQUALITY = {"=": "In", "==": "In", "!=": "NotIn"}
_KEY = r"[A-Za-z0-9](?:[-A-Za-z0-9_./]*[A-Za-z0-9])?"
_VALUE = r"[A-Za-z0-9]?[-A-Za-z0-9_.]*"
_SET_BASED = re.compile(rf"\s*({_KEY})\s+(in|notin)\s*\(([^()]*)\)\s*")
_EQUALITY_BASED = re.compile(rf"\s*({_KEY})\s*(==|!=|=)\s*({_VALUE})\s*")
_EXISTENCE = re.compile(rf"\s*(!?)\s*({_KEY})\s*")
_FIELD = re.compile(r"([^=!]+)(==|!=|=)(.*)")


def parse_labels(text: str) -> tuple[Requirement, ...]:
    """`a=b,c!=d,e in (f,g),!h`.

    Raises:
        ApiError: 400, when it does not parse.
    """
    requirements: list[Requirement] = []
    rest = text
    while rest.strip():
        requirement, rest = _first_requirement(rest, text)
        requirements.append(requirement)
        if rest and not rest.startswith(","):
            raise errors.bad_request(f"unable to parse requirement: {text!r}")
        rest = rest[1:]
    return tuple(requirements)


def _first_requirement(rest: str, text: str) -> tuple[Requirement, str]:
    if match := _SET_BASED.match(rest):
        values = frozenset(value.strip() for value in match[3].split(","))
        return Requirement(match[1], "In" if match[2] == "in" else "NotIn", values), rest[match.end() :]
    if match := _EQUALITY_BASED.match(rest):
        return Requirement(match[1], _EQUALITY[match[2]], frozenset((match[3],))), rest[match.end() :]
    if match := _EXISTENCE.match(rest):
        return Requirement(match[2], "DoesNotExist" if match[1] else "Exists"), rest[match.end() :]
    raise errors.bad_request(f"unable to parse requirement: {text!r}")


def from_object(selector: Object | None) -> tuple[Requirement, ...]:
    """A metav1.LabelSelector: `{matchLabels, matchExpressions}`."""
    selector = selector or {}
    equal = [
        Requirement(key, "In", frozenset((value,)))
        for key, value in (selector.get("matchLabels") or {}).items()
    ]
    expressions = [
        Requirement(item["key"], item["operator"], frozenset(item.get("values") or ()))
        for item in selector.get("matchExpressions") or ()
    ]
    return (*equal, *expressions)


def match_labels(requirements: tuple[Requirement, ...], labels: Mapping[str, str]) -> bool:
    return all(requirement.matches(labels.get(requirement.key)) for requirement in requirements)


def parse_fields(text: str) -> tuple[Requirement, ...]:
    """`status.phase=Running,metadata.name!=x`; every dotted path is allowed here, unlike on a real server."""
    requirements = []
    for part in filter(None, text.split(",")):
        match = _FIELD.fullmatch(part)
        if match is None:
            raise errors.bad_request(f"invalid field selector {text!r}: can't understand {part!r}")
        requirements.append(Requirement(match[1].strip(), _EQUALITY[match[2]], frozenset((match[3],))))
    return tuple(requirements)


def match_fields(requirements: tuple[Requirement, ...], obj: Object) -> bool:
    """A field that is not set has the value `""`."""
    return all(requirement.matches(_field(obj, requirement.key)) for requirement in requirements)


def _field(obj: Object, path: str) -> str:
    value: Any = obj
    for key in path.split("."):
        value = value.get(key) if isinstance(value, dict) else None
    return "" if value is None else str(value)


@dataclass(frozen=True)
class Selection:
    """What a list or watch asks for."""

    labels: tuple[Requirement, ...] = ()
    fields: tuple[Requirement, ...] = ()

    def matches(self, obj: Object) -> bool:
        if self.labels and not match_labels(self.labels, labels_of(obj)):
            return False
        return not self.fields or match_fields(self.fields, obj)

    @property
    def name(self) -> str:
        """The one object that is asked for, which is what an authorizer sees; "" for any
        (k8s.io/apiserver/pkg/endpoints/request/requestinfo.go)."""
        exact = [it.values for it in self.fields if it.key == "metadata.name" and it.operator == "In"]
        return next(iter(exact[0])) if exact else ""


EVERYTHING = Selection()
