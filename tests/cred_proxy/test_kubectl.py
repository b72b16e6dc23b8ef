"""What kubectl, in several versions where there are some, tells its user of the proxy's own answers."""

import asyncio
import base64
import json
import os
import shutil
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from cli_mcp.kubeconfig import dummy_kubeconfig, parse_kubeconfig
from cred_proxy.core import Limits
from tests.cred_proxy.harness import Harness
from tests.cred_proxy.origin import Origin, PrivateAuthority, Received


def installed() -> list[str]:
    """The kubectl that is found, and of those that a cloud SDK brings besides the oldest and the newest."""
    found = shutil.which("kubectl")
    if found is None:
        return []
    others = sorted(map(str, Path(found).resolve().parent.glob("kubectl.1.*")))
    return list(dict.fromkeys([found, *others[:1], *others[-1:]]))


KUBECTLS = installed()

pytestmark = pytest.mark.skipif(not KUBECTLS, reason="kubectl is not installed")

_VERBS = ["get", "list", "watch", "create", "patch", "delete"]
DISCOVERY = {
    "/api": {"kind": "APIVersions", "versions": ["v1"]},
    "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": []},
    "/api/v1": {
        "kind": "APIResourceList",
        "groupVersion": "v1",
        "resources": [
            {
                "name": f"{kind.lower()}s",
                "singularName": "",
                "namespaced": True,
                "kind": kind,
                "verbs": _VERBS,
            }
            for kind in ("Pod", "ConfigMap", "Secret")
        ],
    },
    "/version": {"major": "1", "minor": "32", "gitVersion": "v1.32.0"},
}
MANIFEST = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c, namespace: default}\n"
EVERY_KIND_OF_COMMAND = (
    *("get pods", "get pod p", "get pods --watch", "logs p", "delete pod p", "describe pod p"),
    *("apply --validate=false -f manifest", "apply --server-side -f manifest", "create -f manifest"),
    *("explain pod", "auth can-i get pods", "get --raw /openapi/v2", "patch pod p -p {}"),
)


async def discovery_alone(request: Received, writer: asyncio.StreamWriter) -> None:
    """What else is asked for ends the connection."""
    document = DISCOVERY.get(request.target.partition("?")[0])
    if document is None:
        writer.transport.abort()
        return
    body = json.dumps(document).encode()
    head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)


async def hang(request: Received, writer: asyncio.StreamWriter) -> None:
    await asyncio.sleep(60)


async def hang_up(request: Received, writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()


@dataclass
class Kubectl:
    harness: Harness
    directory: Path

    def write_kubeconfig(self) -> None:
        served = parse_kubeconfig(self.harness.kubeconfig_file.read_bytes())
        # Go takes no proxy from the environment for addresses of this machine.
        content = dummy_kubeconfig(served, str(self.harness.ca_file), f"http://127.0.0.1:{self.harness.port}")
        (self.directory / "kubeconfig").write_text(content)

    async def run(self, program: str, command: str) -> str:
        """What the user sees; the command has to fail."""
        home = self.directory / f"home of {Path(program).name}, {command.replace('/', ' ')[:60]}"
        process = await asyncio.create_subprocess_exec(
            *("timeout", "30", program, "--kubeconfig", "kubeconfig", *command.split(" ")),
            cwd=self.directory,
            env={"PATH": os.environ["PATH"], "HOME": str(home)},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output, _ = await process.communicate()
        assert process.returncode == 1, output.decode()
        return output.decode()

    async def says(self, expected: str, *commands: str) -> None:
        """The last line of each command has `expected`; other versions than the first try the first alone."""
        runs = [(KUBECTLS[0], command) for command in commands]
        runs += [(program, commands[0]) for program in KUBECTLS[1:]]
        shown = await asyncio.gather(*(self.run(*run) for run in runs))
        for run, output in zip(runs, shown, strict=True):
            last = output.strip().splitlines()[-1]
            assert expected in last, (run, output)
            assert '"unknown"' not in output, (run, output)


@pytest.fixture
async def kubectl(
    kubernetes: Origin, origin_authority: PrivateAuthority, tmp_path: Path
) -> AsyncIterator[Kubectl]:
    kubernetes.respond = discovery_alone
    (tmp_path / "manifest").write_text(MANIFEST)
    limits = Limits(upstream_connect_seconds=2.0, upstream_idle_seconds=1.0)
    directory = tmp_path / "proxy"
    directory.mkdir()
    async with Harness(directory, origin_authority, (), kubernetes, limits=limits) as harness:
        kubectl = Kubectl(harness, tmp_path)
        kubectl.write_kubeconfig()
        yield kubectl


async def test_a_failure_of_any_command_is_named(kubectl: Kubectl) -> None:
    await kubectl.says("upstream broke the connection: api.test:", *EVERY_KIND_OF_COMMAND)


async def test_a_failure_of_discovery_is_named(kubectl: Kubectl, kubernetes: Origin) -> None:
    kubernetes.respond = hang_up
    await kubectl.says("upstream broke the connection: api.test:", "get pods", "apply -f manifest", "version")


async def test_a_server_that_does_not_answer_is_named(kubectl: Kubectl, kubernetes: Origin) -> None:
    kubernetes.respond = hang
    await kubectl.says("upstream timed out: api.test:", "get --raw /version", "get --raw /api/v1/pods")


async def test_a_server_that_is_not_there_is_named(kubectl: Kubectl, kubernetes: Origin) -> None:
    await kubernetes.stop()
    await kubectl.says("upstream not reachable: api.test:", "get pods", "version", "apply -f manifest")


async def test_a_server_that_is_not_trusted_is_named(kubectl: Kubectl) -> None:
    stranger = base64.b64encode(PrivateAuthority().pem.encode()).decode()
    kubectl.harness.write_kubeconfig("token", **{"certificate-authority-data": stranger})
    kubectl.harness.proxy.reload()
    await kubectl.says("upstream certificate not trusted: api.test:", "get pods", "get --raw /api/v1/pods")


async def test_what_the_proxy_refuses_it_says_in_its_own_words(kubectl: Kubectl) -> None:
    await kubectl.says(
        "impersonation (kubectl --as", "get pods --as=nobody", "auth can-i get pods --as=nobody"
    )
    await kubectl.says("token is not available from a sandbox", "create token default")
    await kubectl.says("proxy is not available from a sandbox", "get --raw /api/v1/nodes/n/proxy/run/x")
    await kubectl.says("its head is too large", f"get --raw /api/v1/pods?labelSelector={9000 * 'x'}")


async def test_secrets_of_the_instance_are_refused_with_how_to_ask_for_others(kubectl: Kubectl) -> None:
    harness = kubectl.harness
    config = json.loads(harness.config_file.read_text())
    config["ownSecrets"] = {"namespace": "default", "names": ["a", "b"]}
    harness.config_file.write_text(json.dumps(config))
    harness.proxy.reload()
    told = "--field-selector=metadata.name!=a,metadata.name!=b"
    await kubectl.says(told, "get secrets", "get secrets -w", "delete secrets --all")
    await kubectl.says("--field-selector=metadata.namespace!=default", "get secrets -A")
    await kubectl.says("a is a Secret of this sandbox's own instance", "get secret a", "describe secret a")
    await kubectl.says("broke the connection", f"get secrets {told}", "get secret c", "get secret c -w")


async def test_another_server_is_refused_with_what_can_be_reached(kubectl: Kubectl) -> None:
    await kubectl.says("this sandbox reaches api.test:", "get pods --server=https://elsewhere.test")
