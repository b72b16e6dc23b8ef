"""The arguments of `cli-mcp local`, and what it says when it cannot start."""

from pathlib import Path

import pytest
import yaml

from cli_mcp.api.document import load_instance
from local_runtime import main as local
from local_runtime.cgroups import Limits
from tests.e2e_local.harness import instance


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:8080", ("127.0.0.1", 8080)),
        ("localhost:1", ("127.0.0.1", 1)),
        (":0", ("127.0.0.1", 0)),
        ("[::1]:80", ("::1", 80)),
        ("127.1.2.3:80", ("127.1.2.3", 80)),
    ],
)
def test_loopback_addresses_are_accepted(text: str, address: tuple[str, int]) -> None:
    arguments = local.parse_arguments(["file", "--listen", text])
    assert (arguments.host, arguments.port) == address


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("0.0.0.0:8080", "from other machines"),
        ("[::]:8080", "from other machines"),
        ("192.168.1.1:8080", "SSH tunnel"),
        ("example.com:8080", "no IP address"),
        ("127.0.0.1", "no HOST:PORT"),
        ("127.0.0.1:99999", "no HOST:PORT"),
        ("127.0.0.1:http", "no HOST:PORT"),
    ],
)
def test_other_addresses_are_refused_with_the_reason(
    capsys: pytest.CaptureFixture[str], text: str, reason: str
) -> None:
    with pytest.raises(SystemExit) as exit_:
        local.parse_arguments(["file", "--listen", text])
    assert exit_.value.code == 2
    assert reason in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:2222", ("127.0.0.1", 2222)),
        (":2222", ("127.0.0.1", 2222)),
        ("[::]:22", ("::", 22)),
        ("0.0.0.0:22", ("0.0.0.0", 22)),
    ],
)
def test_ssh_may_listen_anywhere_since_it_is_made_for_networks(text: str, address: tuple[str, int]) -> None:
    assert local.parse_arguments(["file", "--ssh", text]).ssh == address


def test_without_the_option_there_is_no_ssh(capsys: pytest.CaptureFixture[str]) -> None:
    assert local.parse_arguments(["file"]).ssh is None
    with pytest.raises(SystemExit):
        local.parse_arguments(["file", "--ssh", "2222"])
    assert "no HOST:PORT" in capsys.readouterr().err


def test_a_token_and_no_token_exclude_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        local.parse_arguments(["file", "--no-auth", "--token-file", "token"])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "No such file"),
        ("kind: [", "line"),
        ("kind: Pod\n", "CliMcpInstance"),
        (yaml.safe_dump(instance(warmPoolSize=-1)), "warmPoolSize"),
    ],
)
def test_a_file_that_cannot_be_used_is_named_with_the_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str | None, said: str
) -> None:
    file = tmp_path / "instance.yaml"
    if text is not None:
        file.write_text(text)
    assert local.main([str(file), "--state-dir", str(tmp_path)]) == 1
    shown = capsys.readouterr().err
    assert str(file) in shown and said in shown


@pytest.mark.parametrize("content", ["", "two words", "ümlaut", "line\nline"])
def test_a_token_file_must_hold_one_word(
    state_root: Path, capsys: pytest.CaptureFixture[str], content: str
) -> None:
    file = state_root / "instance.yaml"
    file.write_text(yaml.safe_dump(instance()))
    token = state_root / "secret"
    token.write_text(content)
    listen = ["--listen", "127.0.0.1:0"]
    assert local.main([str(file), "--state-dir", str(state_root), "--token-file", str(token), *listen]) == 1
    assert "one word" in capsys.readouterr().err


def test_a_state_directory_that_cannot_be_made_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "instance.yaml"
    file.write_text(yaml.safe_dump(instance()))
    assert local.main([str(file), "--state-dir", "/proc/nonexistent"]) == 1
    assert "--state-dir" in capsys.readouterr().err


def test_limits_come_from_the_instance() -> None:
    limits = {"limits": {"memory": "1Gi", "cpu": "2"}, "requests": {"cpu": "500m"}}
    parsed = load_instance(yaml.safe_dump(instance(resources=limits)))
    assert local.resource_limits(parsed) == Limits(1 << 30, local.PROCESSES_PER_SESSION, 512, 2000)
    unsaid = load_instance(yaml.safe_dump(instance()))
    assert local.resource_limits(unsaid).cpu_millicores is None, "a pod's default is not for one machine"


def test_session_limits_come_from_the_instance() -> None:
    parsed = load_instance(
        yaml.safe_dump(instance(idleTimeout="90s", maxLifetime="2h", maxSessions=5, maxSessionsPerOwner=2))
    )
    found = local.session_limits(parsed)
    assert (found.idle_seconds, found.lifetime_seconds) == (90, 7200)
    assert (found.sessions, found.sessions_per_owner) == (5, 2)


@pytest.mark.parametrize("option", ["--ssh=:0", "--token-file=x", "--no-auth", "--print-config"])
def test_stdio_goes_without_what_it_has_no_use_for(option: str) -> None:
    with pytest.raises(SystemExit) as ended:
        local.parse_arguments(["--stdio", option])
    assert ended.value.code == 2


def test_without_a_file_there_is_a_sample() -> None:
    assert local.read_instance(local.parse_arguments([]).file).metadata.name == "local"


def test_the_configuration_of_a_running_server_is_printed_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--state-dir", str(tmp_path), "--print-config"]
    assert local.main(arguments) == 1
    assert f"no server runs in {tmp_path}/local" in capsys.readouterr().err
    (tmp_path / "local").mkdir()
    (tmp_path / "local" / "url").write_text("http://127.0.0.1:9/mcp\n")
    (tmp_path / "local" / "token").write_text("sesame\n")
    assert local.main(arguments) == 0
    printed = capsys.readouterr().out
    assert "http://127.0.0.1:9/mcp" in printed
    assert "Bearer sesame" in printed
