"""Variables of an instance, and files in place of Secrets."""

import os
from pathlib import Path
from typing import Any

import pytest

from cli_mcp.api.pod import EnvVar
from local_runtime.environment import (
    MAX_VALUE_BYTES,
    EnvironmentProblem,
    SecretFiles,
    expand,
    instance_environment,
    overridden_names,
)


def variable(name: str, value: str = "", **source: Any) -> EnvVar:
    given: dict[str, Any] = {"name": name}
    given |= {"valueFrom": source} if source else {"value": value}
    return EnvVar.model_validate(given)


def reference(name: str, key: str, **more: Any) -> dict[str, Any]:
    return {"secretKeyRef": {"name": name, "key": key, **more}}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain", "plain"),
        ("$(A)-$(B)", "1-2"),
        ("$(UNKNOWN)", "$(UNKNOWN)"),
        ("$$(A)", "$(A)"),
        ("$$$(A)", "$1"),
        ("$A ${A}", "$A ${A}"),
        ("$(A", "$(A"),
        ("$(A$(B)", "$(A$(B)"),
    ],
)
def test_references_are_expanded_as_in_a_pod(text: str, expected: str) -> None:
    assert expand(text, {"A": "1", "B": "2"}) == expected


def test_a_value_may_refer_to_earlier_ones_only() -> None:
    variables = [variable("A", "$(B)"), variable("B", "2"), variable("C", "$(B)")]
    assert instance_environment(variables, SecretFiles(None)) == {"A": "$(B)", "B": "2", "C": "2"}


def test_names_of_the_operator_are_left_out() -> None:
    variables = [variable("HOME", "/x"), variable("HTTPS_PROXY", "http://x"), variable("A", "1")]
    assert instance_environment(variables, SecretFiles(None)) == {"A": "1"}
    assert overridden_names(variables) == ["HOME", "HTTPS_PROXY"]


@pytest.mark.parametrize(
    ("content", "value"),
    [(b"value", "value"), (b"value\n", "value"), (b"a\nb\n\n", "a\nb\n"), (b"", ""), (b"\xff", "\udcff")],
)
def test_a_value_is_the_files_content_without_its_final_newline(
    tmp_path: Path, content: bytes, value: str
) -> None:
    (tmp_path / "name").mkdir()
    (tmp_path / "name" / "key").write_bytes(content)
    variables = [variable("A", **reference("name", "key"))]
    assert instance_environment(variables, SecretFiles(tmp_path)) == {"A": value}


def test_a_config_map_is_read_likewise(tmp_path: Path) -> None:
    (tmp_path / "name").mkdir()
    (tmp_path / "name" / "key").write_text("value")
    variables = [variable("A", configMapKeyRef={"name": "name", "key": "key"})]
    assert instance_environment(variables, SecretFiles(tmp_path)) == {"A": "value"}


@pytest.mark.parametrize("directory", [True, False])
def test_a_missing_value_is_an_error_that_names_the_file_unless_it_is_optional(
    tmp_path: Path, directory: bool
) -> None:
    files = SecretFiles(tmp_path if directory else None)
    optional = [variable("A", **reference("name", "key", optional=True))]
    assert instance_environment(optional, files) == {}
    with pytest.raises(EnvironmentProblem, match=r"A: .*name/key"):
        instance_environment([variable("A", **reference("name", "key"))], files)


def test_only_regular_files_inside_of_the_directory_are_read(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("not yours")
    secrets = tmp_path / "secrets"
    (secrets / "name").mkdir(parents=True)
    (secrets / "name" / "link").symlink_to(outside)
    (secrets / "name" / "directory").mkdir()
    os.mkfifo(secrets / "name" / "fifo")
    (secrets / "linked").symlink_to(tmp_path)
    (secrets / "name" / "large").write_bytes(b"x" * (MAX_VALUE_BYTES + 1))
    (secrets / "name" / "nul").write_bytes(b"a\0b")
    for name, key in (
        ("name", "link"),
        ("name", "directory"),
        ("name", "fifo"),
        ("linked", "outside"),
        ("name", "large"),
        ("name", "nul"),
    ):
        with pytest.raises(EnvironmentProblem):
            instance_environment([variable("A", **reference(name, key))], SecretFiles(secrets))


def test_fields_of_a_pod_are_refused() -> None:
    variables = [variable("A", fieldRef={"fieldPath": "metadata.name"})]
    with pytest.raises(EnvironmentProblem, match="local mode has none"):
        instance_environment(variables, SecretFiles(None))
