"""The CustomResourceDefinition of CliMcpInstance, made from its models: `python -m cli_mcp.crd` prints it."""

import sys
from typing import Any

import yaml

from cli_mcp.api.instance import NAME_MESSAGE, NAME_PATTERN, CliMcpInstance, InstanceSpec
from cli_mcp.api.model import VALIDATIONS, ApiModel
from cli_mcp.api.status import InstanceStatus
from cli_mcp.names import GROUP, KIND, PLURAL, VERSION

SINGULAR = "climcpinstance"

_COLUMNS = [
    ("Ready", "string", '.status.conditions[?(@.type=="Ready")].status', 0),
    ("Reason", "string", '.status.conditions[?(@.type=="Ready")].reason', 0),
    ("Warm", "integer", ".status.warmPoolReady", 0),
    ("Desired", "integer", ".status.warmPoolDesired", 0),
    ("Image", "string", ".status.resolvedSandboxImage", 1),
    ("Age", "date", ".metadata.creationTimestamp", 0),
]
# What JSON Schema says beyond a structural schema: unknown fields are pruned, titles are noise.
# https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definitions/
_DROPPED = ("$defs", "title", "additionalProperties", "default", "anyOf")


def custom_resource_definition() -> dict[str, Any]:
    """The object that `kubectl apply` takes."""
    version = {
        "name": VERSION,
        "served": True,
        "storage": True,
        "subresources": {"status": {}},
        "additionalPrinterColumns": [
            {"name": name, "type": kind, "jsonPath": path} | ({"priority": priority} if priority else {})
            for name, kind, path, priority in _COLUMNS
        ],
        "schema": {"openAPIV3Schema": _object_schema()},
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{PLURAL}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "names": {
                "kind": KIND,
                "listKind": f"{KIND}List",
                "plural": PLURAL,
                "singular": SINGULAR,
                "shortNames": ["cmi"],
            },
            "scope": "Namespaced",
            "versions": [version],
        },
    }


def _object_schema() -> dict[str, Any]:
    spec, status = structural_schema(InstanceSpec), structural_schema(InstanceStatus)
    return {
        "type": "object",
        "description": CliMcpInstance.__doc__,
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": spec | {"default": {}},
            "status": status,
        },
        VALIDATIONS: [
            {
                "rule": f"self.metadata.name.matches(r'{NAME_PATTERN}')",
                "message": f"metadata.name {NAME_MESSAGE}",
            }
        ],
    }


def structural_schema(model: type[ApiModel]) -> dict[str, Any]:
    """The model as a structural schema: references resolved, no null, defaults where they say something."""
    schema = model.model_json_schema()
    return _structural(schema, schema.get("$defs", {}))


def _structural(schema: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    if "$ref" in schema:
        referred = definitions[schema["$ref"].rpartition("/")[2]]
        return _structural(referred | _without(schema, "$ref"), definitions)
    if {"type": "null"} in schema.get("anyOf", []):
        (present,) = (option for option in schema["anyOf"] if option != {"type": "null"})
        return _structural(present | _without(schema, "anyOf", "default"), definitions)
    structural = _without(schema, *_DROPPED)
    if "description" in schema:
        structural["description"] = " ".join(schema["description"].split())
    if "x-kubernetes-int-or-string" in schema:
        structural["anyOf"] = schema["anyOf"]
    if "properties" in schema:
        structural["properties"] = {
            name: _structural(field, definitions) for name, field in sorted(schema["properties"].items())
        }
    if "items" in schema:
        structural["items"] = _structural(schema["items"], definitions)
    if isinstance(schema.get("additionalProperties"), dict):
        structural["additionalProperties"] = _structural(schema["additionalProperties"], definitions)
    return structural | _default(schema, structural)


def _without(schema: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in schema.items() if key not in keys}


def _default(schema: dict[str, Any], structural: dict[str, Any]) -> dict[str, Any]:
    """A default that tells a reader something. An object's is empty, so that those of its fields apply."""
    default = schema.get("default")
    if isinstance(default, dict):
        fields = structural.get("properties", {}).values()
        return {"default": {}} if any("default" in field for field in fields) else {}
    return {} if default in (None, "", []) or default is False else {"default": default}


def main() -> int:
    print("# Made from the models in cli_mcp/api by `make crd`; change those.")
    yaml.safe_dump(custom_resource_definition(), sys.stdout, sort_keys=False, width=110, allow_unicode=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
