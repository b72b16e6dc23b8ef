"""What --ssh needs of the instance and its files, and what it tells."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asyncssh
import pytest

from cli_mcp.api.instance import CliMcpInstance
from local_runtime.ssh import HOST_KEY_FILE, LocalSsh, SshProblem
from local_runtime.state import StateDirectory
from tests.e2e_local.harness import instance

ROUTES: list[dict[str, Any]] = [
    {"usernamePattern": "^agent-[0-9]+$", "authorizedKeysSecret": "agents"},
    {"username": "bob", "authorizedKeysSecret": "bobs"},
]


@pytest.fixture
def state(tmp_path: Path) -> Iterator[StateDirectory]:
    opened = StateDirectory.open(tmp_path / "state")
    yield opened
    opened.close()


@pytest.fixture
def secrets(tmp_path: Path) -> Path:
    for name in ("agents", "bobs"):
        (tmp_path / "secrets" / name).mkdir(parents=True)
        (tmp_path / "secrets" / name / "authorized_keys").write_text("")
    return tmp_path / "secrets"


def asked_for(**ssh: Any) -> CliMcpInstance:
    document = instance()
    if ssh:
        document["spec"]["ssh"] = ssh
    return CliMcpInstance.model_validate(document)


def test_clients_learn_the_way_in_from_a_file(state: StateDirectory, secrets: Path) -> None:
    ssh = LocalSsh(asked_for(routes=ROUTES), secrets, state)
    assert ssh.publish("0.0.0.0", 2222).host == "127.0.0.1"
    published = json.loads((state.path / "ssh.json").read_text())
    assert published["port"] == 2222
    assert published["username"] == "bob"
    assert published["fingerprint"] == ssh.host_key.fingerprint


def test_the_host_key_is_that_of_the_state_or_of_the_secret(state: StateDirectory, secrets: Path) -> None:
    made = LocalSsh(asked_for(routes=ROUTES), secrets, state).host_key
    assert LocalSsh(asked_for(routes=ROUTES), secrets, state).host_key.public_key == made.public_key
    given = asyncssh.generate_private_key("ssh-ed25519")
    (secrets / "host").mkdir()
    (secrets / "host" / HOST_KEY_FILE).write_bytes(given.export_private_key())
    with_secret = LocalSsh(asked_for(routes=ROUTES, hostKeySecret="host"), secrets, state)
    assert with_secret.host_key.fingerprint == given.get_fingerprint()


@pytest.mark.parametrize(
    ("ssh", "lost", "message"),
    [
        ({}, "", "spec.ssh.routes"),
        ({"routes": ROUTES}, "secrets", "--secrets-dir DIR"),
        ({"routes": ROUTES}, "bobs/authorized_keys", "bobs/authorized_keys"),
        ({"routes": ROUTES, "hostKeySecret": "host"}, "", "host/ssh_host_ed25519_key"),
    ],
)
def test_what_is_missing_is_named(
    state: StateDirectory, secrets: Path, ssh: dict[str, Any], lost: str, message: str
) -> None:
    if lost.endswith("authorized_keys"):
        (secrets / lost).unlink()
    with pytest.raises(SshProblem, match=message):
        LocalSsh(asked_for(**ssh), None if lost == "secrets" else secrets, state)
