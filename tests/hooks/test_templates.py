"""Templates: strict, and no value can become structure."""

import re

import jinja2
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from cli_mcp import names
from hooks import templates
from hooks.templates import render, template_names, yaml_literal

TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
VALUES = st.recursive(
    st.booleans() | st.integers() | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)
OWNER = {"instance": "demo", "namespace": "default", "uid": "u"}


@given(VALUES)
def test_a_value_reads_back_as_it_was_and_stays_on_its_line(value: object) -> None:
    literal = yaml_literal(value)
    assert literal.isprintable()
    assert yaml.safe_load(f"a: {literal}\nb: 1") == {"a": value, "b": 1}


@pytest.mark.parametrize(
    "hostile",
    [
        'x"\nspec: {hostNetwork: true}',
        "{{ 1 }}",
        "{% raw %}",
        "&a *a",
        "!!python/object/apply:os.system [id]",
        "yes",
        "\x85\u2028\x7f",
        "# not a comment",
    ],
)
def test_a_hostile_value_stays_a_text(hostile: str) -> None:
    values = OWNER | {
        "name": hostile,
        "component": "proxy",
        "rotated_for": hostile,
        "data": {hostile: hostile},
    }
    secret = render("generated-secret", values)
    assert secret["metadata"]["name"] == hostile
    assert secret["metadata"]["annotations"] == {names.ANNOTATION_ROTATED_FOR: hostile}
    assert secret["data"] == {hostile: hostile}
    assert sorted(secret) == ["apiVersion", "data", "kind", "metadata", "type"]


@pytest.mark.parametrize("value", [None, 1.5, object()])
def test_a_value_that_no_manifest_may_contain_is_refused(value: object) -> None:
    with pytest.raises(TypeError):
        yaml_literal(value)


def test_a_name_that_is_missing_is_an_error() -> None:
    with pytest.raises(jinja2.UndefinedError):
        render("disruption-budget", OWNER | {"name": "a"})


def test_a_rendered_manifest_is_the_callers_own() -> None:
    values = OWNER | {"name": "a", "component": "server"}
    render("disruption-budget", values)["spec"]["maxUnavailable"] = 9
    assert render("disruption-budget", values)["spec"]["maxUnavailable"] == 1


@pytest.mark.parametrize("name", template_names())
def test_every_template_says_in_its_first_line_what_it_is_for(name: str) -> None:
    text = (templates._DIRECTORY / name).read_text()
    assert re.match(r"# [A-Z].+", text)
    assert len(max(text.splitlines(), key=len)) <= 120


@pytest.mark.parametrize(
    "owned", ["LABEL_STATE", "LABEL_SESSION_ID", "ANNOTATION_LAST_ACTIVITY", "ANNOTATION_CLAIMED_AT"]
)
def test_no_template_has_what_belongs_to_the_server(owned: str) -> None:
    for name in template_names():
        assert getattr(names, owned) not in (templates._DIRECTORY / name).read_text()
