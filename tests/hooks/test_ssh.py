"""SSH access: the gateway's objects, and its host key for clients."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from cli_mcp.api.instance import Ssh
from hooks.children import fixed_children
from hooks.keys import RandomKeys
from hooks.ssh import authorized_keys_secrets, read_host_key, routes_json
from hooks.wire import Manifest
from tests.hooks.test_children import PARENT, inputs
from tests.hooks.world import ALLOWLIST, World

ROUTES = [
    {"username": "ann", "authorizedKeysSecret": "keys.of.ann"},
    {"usernamePattern": "^agent-[a-z]+$", "authorizedKeysSecret": "agents"},
    {"username": "bob", "authorizedKeysSecret": "agents"},
]


def children(**ssh: Any) -> dict[str, Manifest]:
    found = fixed_children(inputs({"ssh": {"routes": ROUTES, **ssh}}))
    return {child["kind"]: child for child in found if child["metadata"]["name"] == "cli-mcp-demo-ssh"}


def test_routes_keep_their_order_since_the_first_that_fits_counts() -> None:
    assert json.loads(routes_json(Ssh.model_validate({"routes": ROUTES}))) == {"version": 1, "routes": ROUTES}


def test_each_secret_is_mounted_once_under_its_name() -> None:
    mounted = authorized_keys_secrets(Ssh.model_validate({"routes": ROUTES}))
    assert [it["path"].rpartition("/")[2] for it in mounted] == ["agents", "keys.of.ann"]
    pod = children()["Deployment"]["spec"]["template"]["spec"]
    volumes = {it["name"]: it for it in pod["volumes"]}
    for it in mounted:
        assert volumes[it["volume"]]["secret"]["secretName"] == it["name"]
        assert "." not in it["volume"]


def test_the_gateway_has_the_servers_rights_and_no_others() -> None:
    binding = children()["RoleBinding"]
    assert binding["roleRef"]["name"] == "cli-mcp-demo"
    assert [subject["name"] for subject in binding["subjects"]] == ["cli-mcp-demo-ssh"]


@pytest.mark.parametrize(
    ("service", "kind", "node_port"),
    [
        ({}, "ClusterIP", None),
        ({"type": "LoadBalancer"}, "LoadBalancer", None),
        ({"type": "NodePort", "nodePort": 30022}, "NodePort", 30022),
    ],
)
def test_the_service_is_of_the_type_that_was_asked_for(
    service: dict[str, Any], kind: str, node_port: int | None
) -> None:
    spec = children(service=service)["Service"]["spec"]
    assert spec["type"] == kind
    (port,) = spec["ports"]
    assert (port["port"], port["targetPort"], port.get("nodePort")) == (22, 2222, node_port)


def test_the_host_key_is_the_generated_one_unless_the_admin_has_one() -> None:
    for ssh, secret in (({}, "cli-mcp-demo-ssh-host-key"), ({"hostKeySecret": "mine"}, "mine")):
        volumes = children(**ssh)["Deployment"]["spec"]["template"]["spec"]["volumes"]
        assert next(it for it in volumes if it["name"] == "host-key")["secret"]["secretName"] == secret


def test_without_ssh_there_is_nothing_of_it() -> None:
    text = json.dumps(fixed_children(inputs()))
    assert "cli-mcp-demo-ssh" not in text
    assert '"ssh"' not in text


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="needs ssh-keygen to compare with")
def test_a_host_key_is_described_as_ssh_keygen_does(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text(RandomKeys().ssh_host_key())
    file.chmod(0o600)
    key = read_host_key(file.read_text())
    assert key is not None
    listed = subprocess.run(["ssh-keygen", "-lf", str(file)], capture_output=True, text=True, check=True)
    assert key.fingerprint in listed.stdout
    public = subprocess.run(["ssh-keygen", "-yf", str(file)], capture_output=True, text=True, check=True)
    assert key.public_key == " ".join(public.stdout.split()[:2])
    assert key.known_hosts(PARENT) == f"cli-mcp-demo-ssh.ns.svc {key.public_key}"


@pytest.mark.parametrize("text", ["", "nonsense", "-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\n"])
def test_what_is_no_host_key_is_none(text: str) -> None:
    assert read_host_key(text) is None


@pytest.mark.parametrize("own", [False, True], ids=["generated", "the admin's"])
def test_the_status_says_how_to_know_the_gateway(own: bool) -> None:
    world = World()
    world.admin_secrets()
    private = RandomKeys().ssh_host_key()
    world.keys.ssh_host_key = lambda: private  # type: ignore[method-assign]
    ssh: dict[str, Any] = {"routes": [{"username": "ann", "authorizedKeysSecret": "keys"}]}
    if own:
        private = RandomKeys().ssh_host_key()
        world.secret("mine", {"ssh_host_ed25519_key": private})
        ssh["hostKeySecret"] = "mine"
    world.apply({"proxy": ALLOWLIST, "ssh": ssh})
    world.run()
    key = read_host_key(private)
    assert key is not None
    assert world.status()["ssh"]["hostKeyFingerprint"] == key.fingerprint
    assert world.status()["ssh"]["knownHosts"] == f"cli-mcp-demo-ssh.default.svc {key.public_key}"
    assert (world.find("secrets", "cli-mcp-demo-ssh-host-key") is None) is own
    assert world.condition()["status"] == "True", world.condition()
    assert world.writes_at_rest() == []
    world.apply({"proxy": ALLOWLIST})
    world.run()
    assert world.find("deployments.apps", "cli-mcp-demo-ssh") is None
    assert "ssh" not in world.status()
