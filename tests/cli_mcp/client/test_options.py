from pathlib import Path

import pytest

from cli_mcp.client.connection import ClientError
from cli_mcp.client.options import read_token


def test_the_token_of_the_local_server_is_found_by_itself(tmp_path: Path) -> None:
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo" / "token").write_text("abc\n")
    assert read_token(None, tmp_path) == "abc"


def test_a_token_file_that_is_named_wins(tmp_path: Path) -> None:
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo" / "token").write_text("abc\n")
    (tmp_path / "mine").write_text("  xyz \n")
    assert read_token(tmp_path / "mine", tmp_path) == "xyz"


def test_no_token_is_fine_for_a_server_without_authentication(tmp_path: Path) -> None:
    assert read_token(None, tmp_path) is None


@pytest.mark.parametrize("content", [None, b"\xff\xfe"])
def test_a_token_file_that_cannot_be_read_is_named(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "token"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ClientError, match="token"):
        read_token(file, tmp_path)
