"""What every API model does: strict types, nulls as Kubernetes has them, one rule in two languages."""

from typing import Annotated, Any

import pytest
from pydantic import Field, ValidationError

from cli_mcp.api.model import VALIDATIONS, ApiModel, Check, Items, Rule, matching

EVEN = Check("self % 2 == 0", lambda number: number % 2 == 0, "must be even; add one")


class Part(ApiModel):
    rules = (
        Rule(
            "self.low <= self.highEnd",
            lambda part: part.low <= part.high_end,
            "low is above highEnd",
            field="low",
        ),
    )

    low: Annotated[int, EVEN] = 0
    """Where it begins."""
    high_end: int = 10
    names: Annotated[Items[Annotated[str, matching("^[a-z]+$", "must be letters")]], Field(max_length=3)] = ()


def test_null_is_absent_in_an_object_and_an_error_in_a_list() -> None:
    assert Part.model_validate({"low": None, "names": None}) == Part()
    with pytest.raises(ValidationError):
        Part.model_validate({"names": [None]})


@pytest.mark.parametrize(
    "data",
    [
        {"low": "2"},
        {"low": 2.0},
        {"low": True},
        {"low": 3},
        {"low": 12},
        {"names": "abc"},
        {"names": ["a", 1]},
        {"names": ["a\n"]},
        {"names": ["a"] * 4},
        {"high_end": 5},
        {"more": 1},
        [],
    ],
)
def test_nothing_is_converted_or_overlooked(data: Any) -> None:
    with pytest.raises(ValidationError):
        Part.model_validate(data)


def test_rules_and_checks_stand_in_the_schema_with_the_same_words() -> None:
    schema = Part.model_json_schema()
    assert schema[VALIDATIONS] == [
        {"rule": "self.low <= self.highEnd", "message": "low is above highEnd", "fieldPath": ".low"}
    ]
    assert schema["properties"]["low"][VALIDATIONS] == [{"rule": EVEN.cel, "message": EVEN.message}]
    assert schema["properties"]["low"]["description"] == "Where it begins."
    assert schema["properties"]["names"]["items"][VALIDATIONS] == [
        {"rule": "self.matches(r'^[a-z]+$')", "message": "must be letters"}
    ]
