"""The CRD: current, structural, and complete."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from cli_mcp.crd import custom_resource_definition, main

CRD_FILE = Path(__file__).parents[2] / "config" / "crd" / "climcpinstances.yaml"
DEFINITION = custom_resource_definition()
VERSION = DEFINITION["spec"]["versions"][0]
SCHEMA = VERSION["schema"]["openAPIV3Schema"]


def schemas(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, schema
    for name, field in schema.get("properties", {}).items():
        yield from schemas(field, f"{path}.{name}")
    for inner in ("items", "additionalProperties"):
        if inner in schema:
            yield from schemas(schema[inner], f"{path}[]")


def test_the_file_is_what_the_models_give(capsys: Any) -> None:
    assert main() == 0
    assert CRD_FILE.read_text() == capsys.readouterr().out, "out of date; run `make crd`"
    assert yaml.safe_load(CRD_FILE.read_text()) == DEFINITION


def test_the_names_are_those_of_the_go_operator() -> None:
    assert DEFINITION["metadata"]["name"] == "climcpinstances.cli-mcp.redhat.com"
    assert DEFINITION["spec"]["scope"] == "Namespaced"
    assert DEFINITION["spec"]["names"]["kind"] == "CliMcpInstance"
    assert (VERSION["name"], VERSION["served"], VERSION["storage"]) == ("v1alpha1", True, True)


def test_the_schema_is_structural() -> None:
    for path, schema in schemas(SCHEMA):
        if schema.get("x-kubernetes-int-or-string"):
            continue
        assert "type" in schema, path
        assert not {"$ref", "$defs", "anyOf", "oneOf", "title", "const"} & set(schema), path
        assert schema.get("additionalProperties") is not False, path


def test_everything_that_a_rule_runs_over_is_bounded() -> None:
    bounds = {"string": "maxLength", "array": "maxItems"}
    for path, schema in schemas(SCHEMA["properties"]["spec"], ".spec"):
        if "x-kubernetes-validations" in schema and schema["type"] in bounds:
            assert bounds[schema["type"]] in schema, path
        if schema.get("type") == "array":
            assert "maxItems" in schema, path
            assert "x-kubernetes-list-type" in schema, path


def test_every_field_of_the_spec_and_status_is_explained() -> None:
    for part in ("spec", "status"):
        for path, schema in schemas(SCHEMA["properties"][part], f".{part}"):
            if not path.endswith("[]"):
                assert schema.get("description"), path


def test_defaults_stand_in_the_schema() -> None:
    spec = SCHEMA["properties"]["spec"]["properties"]
    sandbox = spec["sandbox"]["properties"]
    assert SCHEMA["properties"]["spec"]["default"] == spec["sandbox"]["default"] == {}
    assert (spec["replicas"]["default"], spec["tools"]["default"]) == (1, ["bash"])
    assert {name: field["default"] for name, field in sandbox.items() if "default" in field} == {
        "dns": "none",
        "idleTimeout": "30m",
        "isolationTest": True,
        "warmPoolSize": 0,
    }
    assert "default" not in spec["proxy"]


def test_the_status_has_what_the_operator_writes() -> None:
    status = SCHEMA["properties"]["status"]["properties"]
    assert set(status) == {
        "clientServiceAccount",
        "conditions",
        "observedGeneration",
        "resolvedAgentImage",
        "resolvedSandboxImage",
        "ssh",
        "warmPoolDesired",
        "warmPoolReady",
    }
    assert status["conditions"]["x-kubernetes-list-map-keys"] == ["type"]
    assert VERSION["subresources"] == {"status": {}}
    columns = [column["name"] for column in VERSION["additionalPrinterColumns"]]
    assert columns == ["Ready", "Reason", "Warm", "Desired", "Image", "Age"]
