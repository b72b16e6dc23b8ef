from pathlib import Path

from cli_mcp.mounted import fingerprint


def test_a_fingerprint_changes_with_content_links_and_existence(tmp_path: Path) -> None:
    for version in ("1", "2"):
        (tmp_path / version).mkdir()
        (tmp_path / version / "file").write_text("same")
    link = tmp_path / "data"
    file = link / "file"
    seen = {fingerprint([file])}
    for version in ("1", "2"):
        link.unlink(missing_ok=True)
        link.symlink_to(version)
        assert fingerprint([file]) == fingerprint([file])
        seen.add(fingerprint([file]))
    file.write_text("longer content")
    seen.add(fingerprint([file]))
    assert len(seen) == 4
