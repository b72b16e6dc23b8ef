"""The tools' schemas, as strict clients read them: plain JSON Schema, and what all of them know of it."""

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from mcp_server.catalogue import ALL_GROUPS, catalogue

TOOLS = catalogue(ALL_GROUPS, "No network.")
# Keyword, and the types that it says something of; of none of them: of all. Ajv's strict mode throws at any
# other keyword, and at one that cannot apply (https://ajv.js.org/strict-mode.html).
EVERY_TYPE = frozenset[str]()
KEYWORDS: Mapping[str, frozenset[str]] = {
    **dict.fromkeys(("type", "description", "default", "enum", "anyOf", "$ref", "$defs"), EVERY_TYPE),
    **dict.fromkeys(("properties", "required"), frozenset({"object"})),
    **dict.fromkeys(("items", "minItems", "maxItems"), frozenset({"array"})),
    **dict.fromkeys(("minLength", "maxLength", "pattern"), frozenset({"string"})),
    **dict.fromkeys(("minimum", "maximum"), frozenset({"number", "integer"})),
}
# What a function declaration of Gemini may hold (https://ai.google.dev/api/caching#Schema), of the above.
GEMINI = KEYWORDS.keys() - {"$ref", "$defs"}


def parts(schema: Mapping[str, Any], where: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Each schema in `schema`, and where it stands."""
    yield where, schema
    for name in ("properties", "$defs"):
        for key, value in schema.get(name, {}).items():
            yield from parts(value, f"{where}/{name}/{key}")
    for number, value in enumerate(schema.get("anyOf", [])):
        yield from parts(value, f"{where}/anyOf/{number}")
    if "items" in schema:
        yield from parts(schema["items"], f"{where}/items")


def schemas() -> list[Any]:
    return [
        pytest.param(getattr(tool.definition, kind), kind, id=f"{name} {kind}")
        for name, tool in TOOLS.items()
        for kind in ("input_schema", "output_schema")
    ]


@pytest.mark.parametrize(("schema", "kind"), schemas())
def test_a_schema_has_what_every_strict_reader_knows(schema: Mapping[str, Any], kind: str) -> None:
    known = GEMINI if kind == "input_schema" else KEYWORDS.keys()
    assert schema["type"] == "object"
    for where, part in parts(schema):
        assert part.keys() <= known, where
        assert isinstance(part.get("type", ""), str), where  # no list of types
        assert ("type" in part) + ("anyOf" in part) + ("$ref" in part) == 1, where
        for keyword in part:
            applies_to = KEYWORDS[keyword]
            assert not applies_to or part.get("type") in applies_to, f"{where}: {keyword}"
        assert set(part.get("required", ())) <= part.get("properties", {}).keys(), where
        if part.get("type") == "array":
            assert "items" in part, where
        if "enum" in part:
            assert part["type"] == "string" and all(isinstance(value, str) for value in part["enum"]), where


@pytest.mark.parametrize(
    ("tool", "arguments", "minimum"),
    [
        ("bash", "timeout", 0),
        ("shell_exec", "timeout", 0),
        ("read_file", "limit", 1),
        ("read_file", "head", 1),
        ("tail_log", "offset", 0),
        ("tail_log", "follow", 0),
    ],
)
def test_the_least_value_of_a_number_is_told(tool: str, arguments: str, minimum: int) -> None:
    assert TOOLS[tool].definition.input_schema["properties"][arguments]["minimum"] == minimum


@pytest.mark.parametrize(
    "keyword", ["exclusiveMinimum", "ge", "le", "title", "additionalProperties", "const"]
)
def test_a_keyword_that_some_reader_does_not_know_would_be_noticed(keyword: str) -> None:
    assert keyword not in KEYWORDS
