"""What all API models share: names as Kubernetes writes them, strict types, rules in two languages.

A rule stands once, beside the fields that it is about: as a Python predicate for files that are read here,
and as a CEL expression that the API server applies (https://kubernetes.io/docs/reference/using-api/cel/).
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Self, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    model_validator,
)
from pydantic.alias_generators import to_camel
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

VALIDATIONS = "x-kubernetes-validations"
BROKEN_RULES = "broken_rules"
Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule about one object. `message` says what is wrong and what to do; `field` is the one to look at."""

    cel: str
    holds: Callable[[Any], bool]
    message: str
    field: str | None = None

    def as_validation(self) -> dict[str, str]:
        path = {} if self.field is None else {"fieldPath": f".{self.field}"}
        return {"rule": self.cel, "message": self.message, **path}


@dataclass(frozen=True, slots=True)
class Check:
    """A rule about one value, an annotation of a field's type."""

    cel: str | None
    holds: Callable[[Any], bool]
    message: str

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self._checked, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        described = handler(schema)
        if self.cel is not None:
            validation = {"rule": self.cel, "message": self.message}
            described[VALIDATIONS] = [*described.get(VALIDATIONS, []), validation]
        return described

    def _checked(self, value: Any) -> Any:
        if not self.holds(value):
            raise PydanticCustomError("check", "{message}", {"message": self.message})
        return value


def matching(pattern: str, message: str) -> Check:
    """The whole text matches `pattern`, written so that Python and RE2 read it alike."""
    compiled = re.compile(pattern, re.ASCII)
    return Check(f"self.matches(r'{pattern}')", lambda text: compiled.fullmatch(text) is not None, message)


# What the API server ensures by the type of a list: https://kubernetes.io/docs/reference/using-api/server-side-apply/
MAP_BY_NAME = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}
SET = {"x-kubernetes-list-type": "set"}
ATOMIC_LIST = {"x-kubernetes-list-type": "atomic"}

unique_names = Check(
    None,
    lambda items: len({item.name for item in items}) == len(items),
    "has two entries of the same name; keep one",
)
unique_items = Check(
    None, lambda items: len(set(items)) == len(items), "has the same entry twice; remove one"
)

# Strict models take a tuple for a tuple only; YAML and JSON have lists.
Items = Annotated[tuple[Item, ...], Field(strict=False)]


class ApiModel(BaseModel):
    """A part of the resource: immutable, camelCase outside, no unknown fields, no conversion of types."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        alias_generator=to_camel,
        use_attribute_docstrings=True,
    )
    rules: ClassVar[tuple[Rule, ...]] = ()

    @model_validator(mode="before")
    @classmethod
    def _null_is_absent(cls, value: Any) -> Any:
        # The API server drops nulls of fields that are not nullable before it applies defaults.
        if not isinstance(value, dict):
            return value
        return {key: item for key, item in value.items() if item is not None}

    @model_validator(mode="after")
    def _follows_the_rules(self) -> Self:
        broken = [rule for rule in self.rules if not rule.holds(self)]
        if broken:
            text = "; ".join(rule.message for rule in broken)
            raise PydanticCustomError(BROKEN_RULES, "{text}", {"text": text, "rules": broken})
        return self

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        described = handler(schema)
        if cls.rules:
            handler.resolve_ref_schema(described)[VALIDATIONS] = [rule.as_validation() for rule in cls.rules]
        return described
