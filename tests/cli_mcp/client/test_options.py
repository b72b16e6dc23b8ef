from pathlib import Path

import pytest

from cli_mcp.client.connection import ClientError
from cli_mcp.client.options import read_token

LOCAL = "http://127.0.0.1:8080/mcp"


@pytest.mark.parametrize(
    ("url", "token"),
    [
        (LOCAL, "abc"),
        ("http://localhost:8080/mcp", "abc"),
        ("http://[::1]/mcp", "abc"),
        ("https://mcp.example/mcp", None),
        ("https://localhost:8443/mcp", None),
        ("http://localhost.example/mcp", None),
        ("http://localhost@mcp.example/mcp", None),
        ("http://10.0.0.1/mcp", None),
    ],
)
def test_the_token_of_the_local_server_is_found_by_itself_and_goes_nowhere_else(
    tmp_path: Path, url: str, token: str | None
) -> None:
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo" / "token").write_text("abc\n")
    assert read_token(None, url, tmp_path) == token


@pytest.mark.parametrize("url", [LOCAL, "https://mcp.example/mcp"])
def test_a_token_file_that_is_named_wins(tmp_path: Path, url: str) -> None:
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo" / "token").write_text("abc\n")
    (tmp_path / "mine").write_text("  xyz \n")
    assert read_token(tmp_path / "mine", url, tmp_path) == "xyz"


def test_no_token_is_fine_for_a_server_without_authentication(tmp_path: Path) -> None:
    assert read_token(None, LOCAL, tmp_path) is None


@pytest.mark.parametrize("content", [None, b"\xff\xfe"])
def test_a_token_file_that_cannot_be_read_is_named(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "token"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ClientError, match="token"):
        read_token(file, LOCAL, tmp_path)
