"""Three instances and everything that they bring into a cluster, to be read as documentation.

When a change is meant: `cli-mcp render tests/hooks/golden/NAME.yaml > tests/hooks/golden/NAME.children.yaml`.
"""

from pathlib import Path

import pytest

from hooks import render_command

GOLDEN = Path(__file__).parent / "golden"
SAMPLES = sorted(path.stem for path in GOLDEN.glob("*.yaml") if "." not in path.stem)


@pytest.mark.parametrize("sample", SAMPLES)
def test_an_instance_becomes_what_its_golden_file_shows(
    sample: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("CLI_MCP_IMAGE", "CLI_MCP_SANDBOX_IMAGE", "CLI_MCP_PLATFORM"):
        monkeypatch.delenv(variable, raising=False)
    assert render_command.main([str(GOLDEN / f"{sample}.yaml")]) == 0
    assert capsys.readouterr().out == (GOLDEN / f"{sample}.children.yaml").read_text()


def test_the_samples_cover_both_kinds_of_target_alone_and_together() -> None:
    assert SAMPLES == ["allowlist", "both", "kubernetes"]
