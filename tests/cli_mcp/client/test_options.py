from pathlib import Path

import pytest

from cli_mcp.client.connection import ClientError
from cli_mcp.client.options import WrongUse, only_url, read_token, url_and_command

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


@pytest.mark.parametrize("content", ["", "\n", "two words", "a\nb", "caf\u00e9"])
def test_a_token_that_cannot_be_one_is_refused_with_its_file(tmp_path: Path, content: str) -> None:
    (tmp_path / "mine").write_text(content)
    with pytest.raises(ClientError, match=str(tmp_path / "mine")):
        read_token(tmp_path / "mine", LOCAL, tmp_path)


DEFAULT = "http://127.0.0.1:8080"


@pytest.mark.parametrize(
    ("words", "meaning"),
    [
        (["ls -l"], (DEFAULT, "ls -l")),
        (["ls"], (DEFAULT, "ls")),
        (["127.0.0.1:8081", "ls"], ("127.0.0.1:8081", "ls")),
        (["localhost", "ls"], ("localhost", "ls")),
        (["mcp.example:443/mcp", "ls"], ("mcp.example:443/mcp", "ls")),
        (["[::1]:8080", "ls"], ("[::1]:8080", "ls")),
        (["https://mcp.example", "curl https://x"], ("https://mcp.example", "curl https://x")),
    ],
)
def test_a_server_and_a_command_are_told_apart(words: list[str], meaning: tuple[str, str]) -> None:
    assert url_and_command(words) == meaning


@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        ([], "cli-mcp call http://127"),
        (["https://mcp.example"], "cli-mcp call https://mcp.example 'ls -l'"),
        (["localhost:8080"], "cli-mcp call localhost:8080 'ls -l'"),
        (["echo", "hi"], "cli-mcp call 'echo hi'"),
        (["python3.11", "x.py"], "cli-mcp call 'python3.11 x.py'"),
        (["https://mcp.example", "echo", "hi", "you"], "cli-mcp call https://mcp.example 'echo hi you'"),
    ],
)
def test_words_without_meaning_are_refused_with_what_to_type(words: list[str], remedy: str) -> None:
    with pytest.raises(WrongUse) as refused:
        url_and_command(words)
    assert remedy in str(refused.value)


@pytest.mark.parametrize("words", [["ls"], ["localhost", "ls"], ["https://a", "https://b"]])
def test_where_there_is_no_command_a_word_too_many_is_refused(words: list[str]) -> None:
    with pytest.raises(WrongUse, match=words[-1]):
        only_url(words)
