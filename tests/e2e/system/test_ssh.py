"""The SSH gateway in a cluster: pods by user name, keys by Secret, and what outlives a gateway."""

from __future__ import annotations

import asyncio
import os
import subprocess
from typing import TYPE_CHECKING, Any

import asyncssh
import pytest

from ssh_gateway.routes import session_key
from tests.e2e.installation import SCRIPT_SECONDS
from tests.e2e.operator import ROOT, kubectl
from tests.e2e.ssh_client import client, connect, gateway, jsonpath, stdout
from tests.hooks.world import ALLOWLIST
from tests.ssh_gateway.harness import KEY, OTHER_KEY, public

if TYPE_CHECKING:
    from tests.e2e.instances import Instance

# The kubelet brings a changed Secret into a pod within a minute and a half.
CHANGED_SECRET_SECONDS = 120
SPEC: dict[str, Any] = {
    "sandbox": {"warmPoolSize": 1},
    "proxy": ALLOWLIST,
    "ssh": {"routes": [{"usernamePattern": "^agent-[a-z0-9]+$", "authorizedKeysSecret": "agents"}]},
}


@pytest.fixture(scope="module")
def ready(instance: Instance) -> Instance:
    instance.make_secret("agents", {"authorized_keys": public(KEY)})
    instance.create(SPEC)
    instance.wait_for("Ready", 120)
    rolled_out(instance)
    return instance


def rolled_out(instance: Instance) -> None:
    kubectl("-n", instance.namespace, "rollout", "status", f"deployment/{gateway(instance)}", "--timeout=60s")


async def test_each_user_name_has_a_pod_of_its_own_that_it_comes_back_to(ready: Instance) -> None:
    async with client(ready, "agent-1") as one, client(ready, "agent-2") as two:
        assert await stdout(one, "export WHO=one; echo hi") == "hi\n"
        assert await stdout(two, "echo [$WHO]; hostname -i") != await stdout(one, "echo []; hostname -i")
    async with client(ready, "agent-1") as again:
        assert await stdout(again, "echo $WHO") == "one\n"
    pods = [ready.session_pods(session_key(name).id) for name in ("agent-1", "agent-2")]
    assert [len(found) for found in pods] == [1, 1]
    owners = [found[0]["metadata"]["annotations"]["cli-mcp.redhat.com/session-owner"] for found in pods]
    assert owners == ["ssh:agent-1", "ssh:agent-2"]


async def test_a_session_of_ssh_cannot_be_reached_over_http(ready: Instance) -> None:
    async with client(ready, "agent-1") as one:
        await stdout(one, "echo hi")
    answer = ready.client().bash(session_key("agent-1").id, "echo hi")
    assert answer.is_error
    assert "does not start with `ssh-`" in answer.text


async def test_a_command_outlives_the_rollout_of_its_gateway_and_the_session_goes_on(ready: Instance) -> None:
    published = jsonpath(ready, "climcpinstance", ready.name, "{.status.ssh}")
    async with client(ready, "agent-3") as before:
        await stdout(before, "export KEPT=yes")
        before.call("sleep 6; echo done")
        kubectl("-n", ready.namespace, "rollout", "restart", f"deployment/{gateway(ready)}")
        rolled_out(ready)
        assert (await before.read())["result"]["structuredContent"]["stdout"] == "done\n"
    async with client(ready, "agent-3") as after:
        assert await stdout(after, "echo $KEPT") == "yes\n"
    assert jsonpath(ready, "climcpinstance", ready.name, "{.status.ssh}") == published


async def test_a_changed_secret_counts_without_a_restart(ready: Instance) -> None:
    pods = [pod["metadata"]["uid"] for pod in ready.component("ssh")]
    with pytest.raises(asyncssh.PermissionDenied):
        await connect(ready, "agent-1", OTHER_KEY)
    ready.make_secret("agents", {"authorized_keys": f"{public(KEY)}\n{public(OTHER_KEY)}\n"})
    async with asyncio.timeout(CHANGED_SECRET_SECONDS):
        while True:
            try:
                connection = await connect(ready, "agent-1", OTHER_KEY)
            except asyncssh.PermissionDenied:
                await asyncio.sleep(2)
            else:
                connection.abort()
                break
    assert [pod["metadata"]["uid"] for pod in ready.component("ssh")] == pods


@pytest.mark.parametrize("verb", ["get", "list", "watch"])
def test_the_gateway_may_read_no_secret(ready: Instance, verb: str) -> None:
    account = f"system:serviceaccount:{ready.namespace}:{gateway(ready)}"
    asked = subprocess.run(
        ["kubectl", "-n", ready.namespace, "auth", "can-i", verb, "secrets", "--as", account],
        capture_output=True,
        text=True,
    )
    assert asked.stdout.strip() == "no"


def test_the_example_works_from_keys_to_calls(system: None) -> None:
    namespace = f"e2e-ssh-example-{os.getpid()}"
    done = subprocess.run(
        [ROOT / "examples/ssh/run.sh"],
        env=os.environ | {"NAMESPACE": namespace},
        capture_output=True,
        text=True,
        timeout=SCRIPT_SECONDS,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "All of it works." in done.stdout
