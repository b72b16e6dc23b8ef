"""The first screen."""

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from cli_mcp.api.document import load_instance
from local_runtime import screen
from local_runtime.screen import Access
from ssh_gateway.access import Access as SshAccess
from tests.e2e_local.harness import instance

URL = "http://127.0.0.1:8080/mcp"
TOKEN = Access(URL, "sesame", Path("/state/with space/token"))
OPEN = Access(URL)
STDIO = ["/opt/cli mcp", "local", "/my/in stance.yaml", "--stdio"]
AGAIN = "cli-mcp local my.yaml --print-config"


def shown(access: Access, *, reach: tuple[str, ...] = (), unused: tuple[str, ...] = ()) -> str:
    audit_file = Path("/state/audit.jsonl")
    return screen.first_screen(
        access, stdio=STDIO, again=AGAIN, reach=reach, audit_file=audit_file, unused=unused
    )


def configurations(text: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in text.splitlines() if line.startswith("  {")]


def test_every_json_configuration_has_url_token_and_session() -> None:
    found = configurations(screen.configuration(TOKEN, STDIO))
    assert len(found) == 6
    for configuration in found[3:]:
        (servers,) = configuration.values()
        assert isinstance(servers, dict)
        server = servers["cli-mcp"]
        assert server["url"] == URL
        assert server["headers"]["Authorization"] == "Bearer sesame"
        assert server["headers"]["X-Session-ID"]


def test_a_client_that_starts_the_program_itself_comes_first_and_gets_the_whole_command() -> None:
    for text in (shown(TOKEN), screen.configuration(TOKEN, STDIO)):
        for configuration in configurations(text)[:3]:
            (servers,) = configuration.values()
            assert isinstance(servers, dict)
            server = servers["cli-mcp"]
            assert [server["command"], *server["args"]] == STDIO
        first = next(line for line in text.splitlines() if line.startswith("  claude"))
        assert shlex.split(first)[3:] == ["cli-mcp", "--", *STDIO]


def test_the_token_is_on_the_first_screen_once_with_what_prints_it_again() -> None:
    assert shown(TOKEN).count("sesame") == 1
    assert AGAIN in shown(TOKEN)


def test_the_claude_command_is_one_for_a_shell() -> None:
    words = shlex.split(screen.claude_code(TOKEN))
    assert words[:6] == ["claude", "mcp", "add", "--transport", "http", "cli-mcp"]
    assert "Authorization: Bearer sesame" in words and "X-Session-ID: claude" in words


def test_the_curl_line_takes_the_token_from_its_file() -> None:
    line = screen.curl(TOKEN)
    assert "sesame" not in line
    assert "$(cat '/state/with space/token')" in line


@pytest.mark.parametrize("text", [shown(OPEN), screen.curl(OPEN), screen.call(OPEN)])
def test_without_authentication_there_is_no_token_anywhere(text: str) -> None:
    assert "Authorization" not in text and "--token-file" not in text


def test_what_can_be_reached_is_listed_and_nothing_is_said_to_be_nothing() -> None:
    assert "pypi.org:443" in shown(TOKEN, reach=("pypi.org:443", "example.com:443"))
    assert screen.NO_REACH in shown(TOKEN)


@pytest.mark.parametrize(
    ("sandbox", "expected"),
    [
        ({}, []),
        ({"image": "x:1", "hostUsers": False}, ["spec.sandbox.image", "spec.sandbox.hostUsers"]),
        ({"isolationTest": False}, ["spec.sandbox.isolationTest"]),
        ({"warmPoolSize": 3, "idleTimeout": "5m"}, []),
    ],
)
def test_fields_for_clusters_only_are_named(sandbox: dict[str, Any], expected: list[str]) -> None:
    document = instance(**sandbox)
    document["spec"]["tools"] = ["bash", "files", "processes"]  # which this machine offers, too
    assert screen.unused_fields(load_instance(yaml.safe_dump(document))) == expected


@pytest.mark.parametrize(
    ("limits", "cpu_limited", "expected"),
    [
        ({"cpu": "500m"}, False, ["spec.sandbox.resources.limits.cpu"]),
        ({"cpu": "2", "memory": "1Gi"}, False, ["spec.sandbox.resources.limits.cpu"]),
        ({"cpu": "500m"}, True, []),
        ({"memory": "1Gi"}, False, []),
    ],
)
def test_a_cpu_limit_that_nothing_enforces_is_named(
    limits: dict[str, str], cpu_limited: bool, expected: list[str]
) -> None:
    parsed = load_instance(yaml.safe_dump(instance(resources={"limits": limits})))
    assert screen.unused_fields(parsed, cpu_limited=cpu_limited) == expected


def test_ssh_is_named_when_it_is_served_and_as_unused_when_it_is_not() -> None:
    document = instance()
    document["spec"]["ssh"] = {"routes": [{"username": "alice", "authorizedKeysSecret": "keys"}]}
    parsed = load_instance(yaml.safe_dump(document))
    assert screen.unused_fields(parsed) == ["spec.ssh"]
    assert screen.unused_fields(parsed, ssh_served=True) == []
    ssh = SshAccess("demo", "127.0.0.1", 2222, "ssh-ed25519 AAAA", "SHA256:abc", "alice")
    text = screen.first_screen(
        OPEN, stdio=STDIO, again=AGAIN, reach=(), audit_file=Path("/a"), unused=(), ssh=ssh
    )
    assert "127.0.0.1 port 2222, host key SHA256:abc" in text
    assert "cli-mcp ssh-config demo" in text
    assert "SSH" not in shown(OPEN)
    elsewhere = screen.first_screen(
        OPEN,
        stdio=STDIO,
        again=AGAIN,
        state_dir=Path("/my state"),
        reach=(),
        audit_file=Path("/a"),
        unused=(),
        ssh=ssh,
    )
    assert "cli-mcp ssh-config --state-dir '/my state' demo" in elsewhere


def test_the_call_line_runs_the_program_as_it_was_called() -> None:
    access = Access(URL, program=".venv/bin/cli-mcp")
    assert screen.call(access) == f".venv/bin/cli-mcp call {URL} --session demo 'echo hello'"
