"""The CEL rules of the CliMcpInstance CRD, evaluated by their Python twins in `cli_mcp.api`.

`api.rules["CliMcpInstance"] = cel_twin(definition)` makes the store refuse what the CRD's rules refuse. A
rule of the models that has no CEL expression is not applied. Limit: where a single value breaks a rule that
only the models have, rules about the object around it are not looked at.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cli_mcp.api.document import parse_instance
from cli_mcp.api.problems import InvalidInstance, format_path

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.kube.api import Rule
    from tests.kube.objects import Object
    from tests.kube.schema import Cause

VALIDATIONS = "x-kubernetes-validations"


def cel_twin(definition: Object) -> Rule:
    """A rule for `Api.rules`, from the CustomResourceDefinition that is installed there."""
    messages = frozenset(_messages(definition["spec"]["versions"]))

    def check(new: Object, old: Object | None) -> list[Cause]:
        try:
            parse_instance(new)
        except InvalidInstance as invalid:
            found = [(format_path(problem.path), problem.text) for problem in invalid.problems]
            # A rule about metadata stands at the root of the schema, so its message names the field.
            return [(path, text) for path, text in found if {text, f"{path} {text}"} & messages]
        return []

    return check


def _messages(schema: Any) -> Iterator[str]:
    if isinstance(schema, list):
        for item in schema:
            yield from _messages(item)
    if isinstance(schema, dict):
        yield from (rule["message"] for rule in schema.get(VALIDATIONS, ()))
        for item in schema.values():
            yield from _messages(item)
