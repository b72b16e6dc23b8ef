"""The YAML templates of the children, one file each under hooks/manifests, rendered strictly.

A value enters a template as one quoted YAML literal and in no other way, so that no value can add a field. An
undefined name is an error. Results are kept, since most syncs render what the last one rendered.
"""

import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import jinja2
import orjson
import yaml

from hooks.wire import Manifest

_DIRECTORY = Path(__file__).parent / "manifests"
_PLAIN = re.compile(r"[^ !#-\[\]-~]")
# One for each child of some hundred instances.
_CACHED_RESULTS = 4096


def render(template: str, values: Mapping[str, Any]) -> Manifest:
    """The manifest of `template` (a file name without `.yaml`); a new object at every call.

    `values` is JSON-like data. Raises jinja2.UndefinedError for a name that it lacks.
    """
    manifest: Manifest = orjson.loads(_rendered(template, orjson.dumps(values, option=orjson.OPT_SORT_KEYS)))
    return manifest


def template_names() -> list[str]:
    return sorted(_environment().list_templates())


@lru_cache(maxsize=_CACHED_RESULTS)
def _rendered(template: str, values: bytes) -> bytes:
    text = _environment().get_template(f"{template}.yaml").render(orjson.loads(values))
    return orjson.dumps(yaml.load(text, Loader=yaml.CSafeLoader))


@lru_cache(maxsize=1)
def _environment() -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(_DIRECTORY),
        undefined=jinja2.StrictUndefined,
        finalize=yaml_literal,
        autoescape=False,  # noqa: S701 - this is YAML; yaml_literal quotes every value
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )


def yaml_literal(value: Any) -> str:
    """`value` as YAML that reads back as the same value, on one line and whatever it contains."""
    if isinstance(value, jinja2.Undefined):
        return str(value)  # raises UndefinedError
    if isinstance(value, str):
        return '"' + _PLAIN.sub(lambda character: f"\\U{ord(character[0]):08x}", value) + '"'
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, Mapping):
        return (
            "{" + ", ".join(f"{yaml_literal(key)}: {yaml_literal(item)}" for key, item in value.items()) + "}"
        )
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(yaml_literal, value)) + "]"
    raise TypeError(f"a template got {value!r}, which no manifest may contain")
