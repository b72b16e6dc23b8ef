"""Structural schemas of custom resources: pruning, defaults and validation, as the API server does them.

Order (apiextensions-apiserver): prune unknown fields, drop nulls that may not be, fill defaults, validate.
CEL rules (x-kubernetes-validations) are not evaluated here: `Api.rules` takes a function for them.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from tests.kube.objects import copy_json, same_json

if TYPE_CHECKING:
    from tests.kube.objects import Object

Cause = tuple[str, str]

_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
}


def prune_and_default(value: Any, schema: Object) -> Any:
    """The value without fields that the schema does not know, and with defaults where fields are missing."""
    if isinstance(value, list):
        return [prune_and_default(item, schema.get("items", {})) for item in value]
    if not isinstance(value, dict):
        return value
    properties: Object = schema.get("properties", {})
    extra = schema.get("additionalProperties")
    keeps_unknown = schema.get("x-kubernetes-preserve-unknown-fields", False)
    pruned: Object = {}
    for key, item in value.items():
        if key in properties:
            if item is None and not properties[key].get("nullable", False):
                continue
            pruned[key] = prune_and_default(item, properties[key])
        elif isinstance(extra, dict):
            pruned[key] = prune_and_default(item, extra)
        elif keeps_unknown or extra is True:
            pruned[key] = copy_json(item)
    for key, subschema in properties.items():
        if key not in pruned and "default" in subschema:
            pruned[key] = prune_and_default(copy_json(subschema["default"]), subschema)
    return pruned


def validate(value: Any, schema: Object, path: str = "") -> list[Cause]:
    """What is wrong, as pairs of field path and text; empty when nothing is."""
    if value is None and schema.get("nullable"):
        return []
    if schema.get("x-kubernetes-int-or-string") and (
        isinstance(value, bool) or not isinstance(value, int | str)
    ):
        return [(path, "Invalid value: must be an integer or a string")]
    kind = schema.get("type")
    if kind and (not isinstance(value, _TYPES[kind]) or (isinstance(value, bool) and kind != "boolean")):
        found = "null" if value is None else type(value).__name__
        return [(path, f'Invalid value: "{found}": {path} in body must be of type {kind}: "{found}"')]
    causes: list[Cause] = []
    if "enum" in schema and not any(same_json(value, option) for option in schema["enum"]):
        options = ", ".join(f'"{option}"' for option in schema["enum"])
        causes.append((path, f'Unsupported value: "{value}": supported values: {options}'))
    if isinstance(value, dict):
        causes += _validate_object(value, schema, path)
    elif isinstance(value, list):
        causes += _validate_list(value, schema, path)
    elif isinstance(value, str):
        causes += _validate_string(value, schema, path)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        causes += _validate_number(value, schema, path)
    return causes


def _validate_object(value: Object, schema: Object, path: str) -> list[Cause]:
    causes = [(_join(path, key), "Required value") for key in schema.get("required", ()) if key not in value]
    properties: Object = schema.get("properties", {})
    extra = schema.get("additionalProperties")
    for key, item in value.items():
        subschema = properties.get(key, extra if isinstance(extra, dict) else None)
        if subschema is not None:
            causes += validate(item, subschema, _join(path, key))
    if len(value) > schema.get("maxProperties", len(value)):
        causes.append((path, f"Too many: {len(value)}: must have at most {schema['maxProperties']} items"))
    return causes


def _validate_list(value: list[Any], schema: Object, path: str) -> list[Cause]:
    causes: list[Cause] = []
    if len(value) > schema.get("maxItems", len(value)):
        causes.append((path, f"Too many: {len(value)}: must have at most {schema['maxItems']} items"))
    if len(value) < schema.get("minItems", 0):
        causes.append(
            (
                path,
                f"Invalid value: {len(value)}: should have at least {schema['minItems']} items",
            )
        )
    for index, item in enumerate(value):
        causes += validate(item, schema.get("items", {}), f"{path}[{index}]")
    return causes + _duplicates(value, schema, path)


def _duplicates(value: list[Any], schema: Object, path: str) -> list[Cause]:
    """x-kubernetes-list-type: a map has unique keys, a set unique items."""
    keys: list[str] = schema.get("x-kubernetes-list-map-keys", [])
    identities: list[Any]
    match schema.get("x-kubernetes-list-type"):
        case "map":
            identities = [[item.get(key) for key in keys] for item in value if isinstance(item, dict)]
        case "set":
            identities = list(value)
        case _:
            return []
    return [
        (f"{path}[{index}]", f"Duplicate value: {identity}")
        for index, identity in enumerate(identities)
        if any(same_json(identity, earlier) for earlier in identities[:index])
    ]


def _validate_string(value: str, schema: Object, path: str) -> list[Cause]:
    causes: list[Cause] = []
    if len(value) > schema.get("maxLength", len(value)):
        causes.append((path, f"Too long: may not be more than {schema['maxLength']} bytes"))
    if len(value) < schema.get("minLength", 0):
        causes.append(
            (path, f"Invalid value: {value!r}: should be at least {schema['minLength']} chars long")
        )
    if "pattern" in schema and re.search(schema["pattern"], value) is None:
        causes.append((path, f"Invalid value: {value!r}: {path} in body should match '{schema['pattern']}'"))
    return causes


def _validate_number(value: float, schema: Object, path: str) -> list[Cause]:
    causes: list[Cause] = []
    if value < schema.get("minimum", value):
        causes.append(
            (
                path,
                f"Invalid value: {value}: should be greater than or equal to {schema['minimum']}",
            )
        )
    if value > schema.get("maximum", value):
        causes.append(
            (
                path,
                f"Invalid value: {value}: should be less than or equal to {schema['maximum']}",
            )
        )
    return causes


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key
