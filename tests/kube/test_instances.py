"""The store in memory says of every instance what a real API server with the CRD says."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from cli_mcp.crd import custom_resource_definition
from cli_mcp.names import API_VERSION, KIND
from tests.kube.api import Api
from tests.kube.errors import ApiError
from tests.kube.instances import cel_twin

ROOT = Path(__file__).parents[2]
TABLE: list[dict[str, Any]] = yaml.safe_load((ROOT / "tests/data/instances/verdicts.yaml").read_text())
# Unknown fields are refused only where a client asks for strict validation; otherwise they are pruned.
PRUNED = {"a field that does not exist", "a misspelt field deep inside", "a misspelt command time"}
# The Python twin of these rules looks closer than the CEL expression can.
STRICTER = {
    "brackets around what is no IPv6 address",
    "an address twice in two spellings",
    "a certificate that is cut off",
    "a repeat that ends before it begins",
}
CASES = [case for case in TABLE if case["name"] not in PRUNED | STRICTER]


@pytest.fixture(scope="module")
def api() -> Api:
    api = Api()
    definition = api.create(custom_resource_definition())
    api.rules[KIND] = cel_twin(definition)
    return api


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_the_store_says_what_the_table_says(case: dict[str, Any], api: Api) -> None:
    defaults: dict[str, Any] = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": "shell"}}
    obj = defaults | {key: case[key] for key in (*defaults, "spec") if key in case}
    obj["metadata"] = {"namespace": "default", **obj["metadata"]}
    verdict = case.get("crd", "refuses" if "error" in case else "accepts")
    if verdict == "accepts":
        api.create(obj, dry_run=True)
        return
    with pytest.raises(ApiError) as refused:
        api.create(obj, dry_run=True)
    assert refused.value.code in (400, 404, 422)
