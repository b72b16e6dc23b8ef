"""`cli-mcp ssh-config`: from local mode's state directory, or from a cluster's objects."""

from pathlib import Path
from typing import Any

import pytest

from ssh_gateway.access import ACCESS_FILE, to_json
from ssh_gateway.config_command import NotFound, check_has_gateway, from_objects, main
from tests.ssh_gateway.test_access import ACCESS

INSTANCE: dict[str, Any] = {
    "metadata": {"name": "demo"},
    "spec": {"ssh": {"routes": [{"usernamePattern": "^a$"}, {"username": "bob"}]}},
    "status": {
        "ssh": {
            "hostKeyFingerprint": ACCESS.fingerprint,
            "knownHosts": f"cli-mcp-demo-ssh.team.svc {ACCESS.public_key}",
        }
    },
}


def service(type_: str, **status: Any) -> dict[str, Any]:
    return {"spec": {"type": type_, "ports": [{"port": 22, "nodePort": 30022}]}, "status": status}


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo" / ACCESS_FILE).write_text(to_json(ACCESS))
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "printed"),
    [
        (["--format", "known-hosts"], f"[gateway.example.com]:2222 {ACCESS.public_key}"),
        (["--format", "known-hosts", "--host", "other", "--port", "22"], f"other {ACCESS.public_key}"),
        (["--format", "ssh-config", "--user", "carol"], "    User carol"),
        (["--format", "ssh-config", "--identity", "/keys/mine"], "    IdentityFile /keys/mine"),
        (["--format", "mcp-json"], '"args": ["cli-mcp-demo"]'),
        ([], f"known_hosts, host key {ACCESS.fingerprint}"),
    ],
)
def test_local_mode_is_read_from_its_state_directory(
    state: Path, arguments: list[str], printed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["demo", "--state-dir", str(state), *arguments]) == 0
    assert printed in capsys.readouterr().out


def test_without_either_it_says_where_it_has_looked(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["another", "--state-dir", str(state)]) == 1
    error = capsys.readouterr().err
    assert f"{state}/another/ssh.json" in error
    assert "cluster" in error


def test_a_broken_file_is_named(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (state / "demo" / ACCESS_FILE).write_text("{}")
    assert main(["demo", "--state-dir", str(state)]) == 1
    assert "ssh.json cannot be read" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("found", "host", "way_in"),
    [
        (service("ClusterIP"), None, ("cli-mcp-demo-ssh.team.svc", 22)),
        (service("ClusterIP"), "forwarded", ("forwarded", 22)),
        (service("NodePort"), "node-1", ("node-1", 30022)),
        (service("LoadBalancer", loadBalancer={"ingress": [{"ip": "192.0.2.1"}]}), None, ("192.0.2.1", 22)),
        (service("LoadBalancer", loadBalancer={"ingress": [{"hostname": "lb"}]}), None, ("lb", 22)),
        (service("LoadBalancer"), "by-hand", ("by-hand", 22)),
    ],
)
def test_the_way_in_is_that_of_the_service(found: Any, host: str | None, way_in: tuple[str, int]) -> None:
    access = from_objects(INSTANCE, found, host=host)
    assert (access.host, access.port) == way_in
    assert access.public_key == ACCESS.public_key
    assert access.username == "bob"


def test_an_instance_without_a_gateway_is_told_from_one_that_is_not_ready() -> None:
    check_has_gateway(INSTANCE)
    with pytest.raises(NotFound, match=r"demo has no SSH gateway; add spec\.ssh"):
        check_has_gateway({**INSTANCE, "spec": {}})


@pytest.mark.parametrize(
    ("instance", "found", "message"),
    [
        ({**INSTANCE, "status": {}}, service("ClusterIP"), "status.ssh"),
        (INSTANCE, service("NodePort"), "--host"),
        (INSTANCE, service("LoadBalancer"), "no address yet"),
    ],
)
def test_what_is_missing_in_the_cluster_is_named(instance: Any, found: Any, message: str) -> None:
    with pytest.raises(NotFound, match=message):
        from_objects(instance, found, host=None)
