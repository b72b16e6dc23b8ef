"""The instance's spec as it is stored, which may be from a time with other rules."""

import re

from pydantic import ValidationError

from cli_mcp.api.instance import NAME_MESSAGE, NAME_PATTERN, InstanceSpec
from cli_mcp.api.problems import Problem as FieldProblem
from cli_mcp.api.problems import problems_of
from hooks.wire import Parent


class InvalidSpec(ValueError):
    """The stored spec breaks today's rules; the text names paths and remedies."""


def read_spec(parent: Parent) -> InstanceSpec:
    """Raises InvalidSpec."""
    if not re.fullmatch(NAME_PATTERN, parent.name, re.ASCII):
        raise InvalidSpec(f"metadata.name: {NAME_MESSAGE}")
    try:
        return InstanceSpec.model_validate(parent.manifest.get("spec") or {})
    except ValidationError as error:
        found = [
            FieldProblem(("spec", *problem.path), problem.text)
            for problem in problems_of(error, InstanceSpec)
        ]
        raise InvalidSpec("; ".join(map(str, found))) from error
