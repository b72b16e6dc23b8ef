"""What is wrong with an instance, for a person: the path of a field, what is wrong there and what to do."""

import difflib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from cli_mcp.api.model import BROKEN_RULES, Rule

Path = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Problem:
    """`path` leads to the field, empty for the whole document; `text` says what is wrong and what to do."""

    path: Path
    text: str

    def __str__(self) -> str:
        return f"{format_path(self.path)}: {self.text}" if self.path else self.text


class InvalidInstance(ValueError):
    """A document that is no valid CliMcpInstance; `problems` has at least one entry."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(map(str, self.problems)))


def format_path(path: Path) -> str:
    """As Kubernetes writes it: `spec.proxy.targets[0].domains[1]`; names that are no words in brackets."""
    text = "".join(f".{part}" if str(part).isidentifier() else f"[{part!r}]" for part in path)
    return text.removeprefix(".")


# By pydantic's error type, filled in with the error's context. The project's own checks bring their text.
_TEXTS = {
    "missing": "is required; add it",
    "string_type": "must be text; put the value in quotes",
    "int_type": "must be a whole number without quotes",
    "bool_type": "must be true or false without quotes",
    "dict_type": "must be a mapping of names to values",
    "model_type": "must be a mapping of fields to values",
    "tuple_type": "must be a list; begin each entry with '- '",
    "literal_error": "must be {expected}",
    "greater_than_equal": "must be at least {ge}",
    "less_than_equal": "must be at most {le}",
    "string_too_short": "must not be empty; give a value or remove the field",
    "string_too_long": "must be at most {max_length} characters long; shorten it",
    "too_short": "must have at least one entry; add one or remove the field",
    "too_long": "must have at most {max_length} entries; remove some",
}


def problems_of(error: ValidationError, model: type[BaseModel]) -> list[Problem]:
    """The problems in `error`, which was raised by `model`."""
    found: list[Problem] = []
    details = error.errors(include_url=False)
    for detail in details:
        path, kind, context = detail["loc"], detail["type"], detail.get("ctx", {})
        if kind == BROKEN_RULES:
            found += [_broken(rule, path) for rule in context["rules"]]
        elif kind == "extra_forbidden":
            found.append(Problem(path, _unknown_field(str(path[-1]), _model_at(model, path[:-1]))))
        elif kind == "too_short" and any(_lies_below(other["loc"], path) for other in details):
            continue  # a list counts as empty when none of its entries is valid
        else:
            text = _TEXTS[kind].format(**context) if kind in _TEXTS else detail["msg"]
            found.append(Problem(path, text))
    return found


def _broken(rule: Rule, path: Path) -> Problem:
    return Problem(path if rule.field is None else (*path, rule.field), rule.message)


def _lies_below(path: Path, above: Path) -> bool:
    return len(path) > len(above) and path[: len(above)] == above


def _unknown_field(name: str, model: type[BaseModel]) -> str:
    fields = [field.alias or key for key, field in model.model_fields.items()]
    lower = {field.lower(): field for field in fields}
    close = difflib.get_close_matches(name.lower(), lower, n=1)
    if close:
        return f"is not a field; did you mean {lower[close[0]]}?"
    return f"is not a field; remove it, or use one of: {', '.join(sorted(fields))}"


def _model_at(model: type[BaseModel], path: Path) -> type[BaseModel]:
    for part in path:
        if isinstance(part, int):
            continue
        field = next(field for key, field in model.model_fields.items() if (field.alias or key) == part)
        model = next(_models_in(field.annotation))
    return model


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _models_in(argument)
