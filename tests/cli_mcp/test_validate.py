"""`cli-mcp validate` as a person meets it: output, exit status, and never a traceback."""

import io
import subprocess
import sys
from pathlib import Path
from textwrap import indent

import pytest

from cli_mcp.api import endpoint
from cli_mcp.validate import main

ROOT = Path(__file__).parents[2]
GOOD = """\
apiVersion: cli-mcp.redhat.com/v1alpha1
kind: CliMcpInstance
metadata:
  name: shell
spec:
  proxy:
    targets:
      - type: allowlist
        domains: [example.com]
"""
BAD = GOOD.replace("[example.com]", '["*.example.com"]').replace("spec:", "spec:\n  sandbx: {}")


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, list[str], str]:
    status = main(list(arguments))
    output = capsys.readouterr()
    return status, output.out.splitlines(), output.err


def written(directory: Path, text: str, name: str = "instance.yaml") -> str:
    path = directory / name
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize("sample", sorted((ROOT / "config" / "samples").glob("*.yaml")), ids=lambda p: p.name)
def test_the_samples_are_valid_and_free_of_warnings(sample: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, str(sample)) == (0, [f"{sample}: valid"], "")


def test_every_problem_is_a_line_with_file_line_and_field(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = written(tmp_path, BAD)
    status, lines, _ = run(capsys, file)
    assert status == 1
    assert lines == [
        f"{file}:6: spec.sandbx: is not a field; did you mean sandbox?",
        f"{file}:10: spec.proxy.targets[0].domains[0]: {endpoint.MEANING}",
    ]


def test_what_kubectl_prints_of_several_instances_is_checked_one_by_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    items = "".join("- " + indent(text, "  ").lstrip() for text in (GOOD, BAD, "kind: Secret\n"))
    file = written(tmp_path, f"apiVersion: v1\nkind: List\nitems:\n{items}")
    status, lines, _ = run(capsys, file)
    assert (status, [line.partition(": ")[0] for line in lines]) == (1, [f"{file}:18", f"{file}:22"])
    file = written(tmp_path, f"apiVersion: v1\nkind: List\nitems:\n- {indent(GOOD, '  ').lstrip()}")
    assert run(capsys, file) == (0, [f"{file}: valid"], "")
    status, lines, _ = run(capsys, written(tmp_path, "apiVersion: v1\nkind: List\nitems: []\n"))
    assert status == 1 and "empty" in lines[0]
    status, lines, _ = run(capsys, written(tmp_path, "apiVersion: v1\nkind: List\nitems: 1\n"))
    assert status == 1


def test_all_files_and_documents_are_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    two = written(tmp_path, f"{GOOD}---\n{BAD}", "two.yaml")
    good = written(tmp_path, GOOD, "good.yaml")
    missing = str(tmp_path / "missing.yaml")
    status, lines, errors = run(capsys, two, missing, good)
    assert status == 2
    assert errors == f"{missing}: cannot be read: No such file or directory\n"
    places = [line.removeprefix(str(tmp_path)).partition(": ")[0] for line in lines]
    assert places == ["/two.yaml:16", "/two.yaml:20", "/good.yaml"]


def test_a_warning_does_not_make_a_file_invalid(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = written(tmp_path, GOOD + "  sandbox:\n    env:\n      - name: HOME\n        value: /tmp\n")
    status, lines, _ = run(capsys, file)
    assert status == 0
    text = "HOME is set by the operator, which ignores this entry; remove it"
    assert lines == [f"{file}:12: warning: spec.sandbox.env[0].name: {text}", f"{file}: valid"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "empty; begin with apiVersion: cli-mcp.redhat.com/v1alpha1 and kind: CliMcpInstance"),
        ("# a comment\n", "empty; begin with"),
        ("a: [\n", "not readable as YAML"),
        ("a: 1\na: 2\n", "'a' stands here twice; remove one"),
        ("just text", "not a Kubernetes object; begin with"),
        ("spec: {}\n", "not a Kubernetes object; begin with"),
        ("- kind: CliMcpInstance\n", "not a Kubernetes object; begin with"),
        ("kind: Secret\napiVersion: v1\n", "no CliMcpInstance here"),
        (GOOD.replace("kind: CliMcpInstance", "kind: climcpinstance"), "kind: must be CliMcpInstance"),
        (GOOD.replace("CliMcpInstance", "[CliMcpInstance]"), "no CliMcpInstance here"),
        (GOOD.replace("v1alpha1", "v1"), "apiVersion: must be 'cli-mcp.redhat.com/v1alpha1'"),
        ("kind: CliMcpInstance\n", "apiVersion: is required; add it"),
        ("kind: CliMcpInstance\nmetadata: x\n", "metadata: must be a mapping"),
        (GOOD + "\x00", "not readable as YAML"),
        (GOOD + "  '\\x1b[2Jx': 1\n", "spec['"),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_hopeless_files_are_met_with_what_to_do(
    text: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, lines, _ = run(capsys, written(tmp_path, text))
    assert status == 1
    assert any(says in line for line in lines), lines
    assert not any("\x1b" in line for line in lines)


def test_a_name_in_the_file_cannot_drive_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, lines, _ = run(capsys, written(tmp_path, GOOD + '  "\\e[2Jx": 1\n'))
    assert lines[0].endswith(r"spec['\x1b[2Jx']: is not a field; remove it, or use one of: "
                             "defaultSession, proxy, replicas, sandbox, serverContainer, "
                             "ssh, tools")  # fmt: skip


def test_a_file_in_another_encoding_is_said_to_be_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "latin1.yaml").write_bytes("a: ä\n".encode("latin-1"))
    status, _, errors = run(capsys, str(tmp_path / "latin1.yaml"))
    assert status == 2
    assert errors.endswith("is not UTF-8 (byte 3); save it as UTF-8\n")


def test_a_directory_is_no_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, str(tmp_path)) == (2, [], f"{tmp_path}: cannot be read: Is a directory\n")


def test_a_dash_is_the_standard_input(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(GOOD.encode())))
    assert run(capsys, "-") == (0, ["stdin: valid"], "")


def test_no_file_at_all_is_one_line_that_says_what_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main([])
    assert caught.value.code == 2
    assert "FILE. See cli-mcp validate --help\n" in capsys.readouterr().err


def test_importing_the_package_loads_no_library() -> None:
    code = (
        "import sys, cli_mcp\nprint([m for m in ('pydantic', 'yaml', 'cryptography') if m in sys.modules])\n"
        "import cli_mcp.api.instance\nprint('yaml' in sys.modules)"
    )
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert output == "[]\nFalse\n"
