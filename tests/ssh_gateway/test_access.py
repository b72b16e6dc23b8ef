"""What clients are told: known_hosts, ssh_config and configuration of MCP clients."""

import json

import asyncssh
import pytest

from ssh_gateway.access import (
    Access,
    MalformedAccess,
    described,
    example_username,
    from_json,
    known_hosts,
    mcp_clients,
    ssh_config,
    to_json,
)
from tests.ssh_gateway.harness import KEY

ACCESS = Access(
    instance="demo",
    host="gateway.example.com",
    port=2222,
    public_key=" ".join(KEY.export_public_key().decode().split()[:2]),
    fingerprint=KEY.get_fingerprint(),
    username="alice",
)


@pytest.mark.parametrize("port", [22, 2222])
def test_a_client_finds_the_host_key_in_the_line(port: int) -> None:
    access = Access(**{**{name: getattr(ACCESS, name) for name in Access.__slots__}, "port": port})
    known = asyncssh.import_known_hosts(known_hosts(access))
    trusted, *_ = known.match("gateway.example.com", "192.0.2.1", port)
    assert [key.public_data for key in trusted] == [KEY.public_data]
    assert not known.match("gateway.example.com", "192.0.2.1", port + 1)[0] or port == 22


def test_the_block_uses_this_key_and_trusts_this_host_only() -> None:
    lines = [line.split() for line in ssh_config(ACCESS, "~/.ssh/agent").splitlines()]
    assert lines[0] == ["Host", "cli-mcp-demo"]
    options = dict(lines[1:])
    assert options["HostName"] == "gateway.example.com"
    assert options["Port"] == "2222"
    assert options["IdentityFile"] == "~/.ssh/agent"
    assert options["IdentitiesOnly"] == options["StrictHostKeyChecking"] == options["BatchMode"] == "yes"
    assert options["RequestTTY"] == options["ForwardAgent"] == "no"


def test_clients_start_ssh_with_the_name_of_the_block() -> None:
    clients = mcp_clients(ACCESS)
    assert clients["Claude Code"].endswith("-- ssh cli-mcp-demo")
    for name, text in clients.items():
        if name == "Claude Code":
            continue
        (servers,) = json.loads(text).values()
        assert servers["cli-mcp"]["command"] == "ssh"
        assert servers["cli-mcp"]["args"] == ["cli-mcp-demo"]
        assert text in described(ACCESS, "key")


def test_local_mode_writes_what_the_command_reads() -> None:
    assert from_json(to_json(ACCESS)) == ACCESS
    for text in ("", "{}", '{"version":2}', to_json(ACCESS).replace("2222", '"2222"')):
        with pytest.raises(MalformedAccess):
            from_json(text)


def test_the_example_is_a_user_that_can_log_in() -> None:
    assert example_username([None, "bob"]) == "bob"
    assert example_username([None]) == "USERNAME"
