"""YAML as plain data: what is read, what is refused, and where it stood."""

import pytest

from cli_mcp.api.document import MAX_TEXT_BYTES, UnreadableYaml, load_documents, load_instance
from cli_mcp.api.problems import InvalidInstance

INSTANCE = """\
apiVersion: cli-mcp.redhat.com/v1alpha1
kind: CliMcpInstance
metadata:
  name: shell
"""
SECRET = "apiVersion: v1\nkind: Secret\nmetadata: {name: s}\nstringData: {a: b}\n"


def test_an_instance_is_found_among_other_documents() -> None:
    text = f"# nothing\n---\n{SECRET}---\n{INSTANCE}---\n"
    assert load_instance(text).metadata.name == "shell"


@pytest.mark.parametrize("text", ["", "# only a comment\n", "---\n---\n", SECRET, "just text", "- a list"])
def test_a_file_without_instance_is_no_instance(text: str) -> None:
    with pytest.raises(InvalidInstance, match="no CliMcpInstance here"):
        load_instance(text)


def test_two_instances_are_refused_by_line() -> None:
    with pytest.raises(InvalidInstance, match=r"more than one .*lines 1, 6"):
        load_instance(f"{INSTANCE}---\n{INSTANCE}")


def test_every_path_has_its_line() -> None:
    (document,) = load_documents("a:\n  b:\n    - c\n    - d: e\n\nf: g\n")
    assert document.line_of(()) == 1
    assert document.line_of(("a", "b")) == 2
    assert document.line_of(("a", "b", 1, "d")) == 4
    assert document.line_of(("f",)) == 6
    assert document.line_of(("a", "b", 7, "missing")) == 2


def test_dates_stay_text_as_in_json() -> None:
    (document,) = load_documents("a: 2026-01-01\nb: 2026-01-01T00:00:00Z\n")
    assert document.data == {"a": "2026-01-01", "b": "2026-01-01T00:00:00Z"}


def test_aliases_are_followed() -> None:
    (document,) = load_documents("a: &x [1, 2]\nb: *x\n")
    assert document.data == {"a": [1, 2], "b": [1, 2]}


ALIAS_BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 12)
)


@pytest.mark.parametrize(
    ("text", "message", "line"),
    [
        ("a: 1\nb: 2\na: 3\n", "'a' stands here twice", 3),
        ("a:\n  b: 1\n  b: 2\n", "'b' stands here twice", 3),
        ("a: 1\n\tb: 2\n", "check indentation", 2),
        ("a: [1\n", "check indentation", 2),
        ("a: 1\nb: *nowhere\n", "undefined alias", 2),
        ("a: &x {b: 1}\nc: {<<: *x}\n", "merge keys", 2),
        ("1: a\n", "must be text", 1),
        ("? [a, b]\n: c\n", "must be text", 1),
        ("a: !!python/object/apply:os.system [id]\n", "is not supported", 1),
        ("a: !!python/name:os.system x\n", "is not supported", 1),
        ("a: !!set {b}\n", "is not supported", 1),
        ("a: !!binary aGk=\n", "is not supported", 1),
        ("a: !local x\n", "is not supported", 1),
        ("a: !!int x\n", "does not fit its tag", 1),
        ("a: &x [*x]\n", "far more than an instance can hold", 1),
        (ALIAS_BOMB, "far more than an instance can hold", None),
        ("[" * 5000, "nested too deeply", None),
        ("a: \x07\n", "not allowed", None),
        ("a" * (MAX_TEXT_BYTES + 1), "bytes", None),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_what_a_cluster_would_not_read_alike_is_refused(text: str, message: str, line: int | None) -> None:
    with pytest.raises(UnreadableYaml, match=message) as caught:
        load_documents(text)
    if line is not None:
        assert caught.value.line == line
