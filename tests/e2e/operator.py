"""Hooks and Metacontroller as processes, with exactly the rights of the installation, on a real cluster."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).parents[2]
CRD_FILE = ROOT / "config/crd/climcpinstances.yaml"
ADMISSION_FOLDER = ROOT / "config/admission"
NAMESPACE = "cli-mcp-system"
WAIT_SECONDS = 180
START = "import sys; from hooks import main; sys.exit(main.main(sys.argv[1:]))"
FLAGS = (
    "--discovery-interval=2s",
    "--client-go-qps=100",
    "--client-go-burst=200",
    "--metrics-address=0",
    "--health-probe-bind-address=0",
    "--zap-log-level=2",
    "--target-label-selector=app.kubernetes.io/part-of=cli-mcp",
)

NEEDED = ("KUBECONFIG", "E2E_IMAGE", "E2E_SANDBOX_IMAGE")
# The real Metacontroller: its binary and the folder of its manifests. Without them the model takes its place.
METACONTROLLER = os.environ.get("METACONTROLLER")
METACONTROLLER_CRDS = os.environ.get("METACONTROLLER_CRDS")
METACONTROLLER_USER = f"system:serviceaccount:{NAMESPACE}:metacontroller"
MISSING = [name for name in NEEDED if name not in os.environ]
NEEDS_AN_OPERATOR = pytest.mark.skipif(bool(MISSING), reason=f"not set: {', '.join(MISSING)}")
NEEDS_METACONTROLLER = pytest.mark.skipif(
    bool(MISSING) or not METACONTROLLER, reason="not set: METACONTROLLER, or what NEEDS_AN_OPERATOR asks for"
)

Object = dict[str, Any]


def kubectl(*arguments: str, given: str | None = None, check: bool = True) -> str:
    done = subprocess.run(["kubectl", *arguments], input=given, capture_output=True, text=True, timeout=120)
    assert not check or done.returncode == 0, f"kubectl {' '.join(arguments)}: {done.stderr}"
    return done.stdout


def apply(*objects: Object) -> None:
    kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", given=yaml.safe_dump_all(objects))


def get(namespace: str, kind: str, name: str) -> Object | None:
    found = kubectl("-n", namespace, "get", kind, name, "-o", "json", "--ignore-not-found")
    return json.loads(found) if found else None


def objects(namespace: str, kinds: str, selector: str = "") -> list[Object]:
    arguments = ["-n", namespace, "get", kinds, "-o", "json", *(["-l", selector] if selector else [])]
    items: list[Object] = json.loads(kubectl(*arguments))["items"]
    return items


def eventually(holds: Callable[[], object], seconds: float = WAIT_SECONDS) -> None:
    """Poll until `holds` returns something true."""
    deadline = time.monotonic() + seconds
    while not (found := holds()):
        assert time.monotonic() < deadline, f"not within {seconds} s: {found!r}"
        time.sleep(0.3)


class Operator:
    """Two processes that a test may end and start again."""

    def __init__(self, folder: Path, hook_arguments: tuple[str, ...] = ()) -> None:
        self.folder = folder
        self._hook_arguments = hook_arguments
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self.port = _free_port()
        self._api_port = _free_port()

    def start_hooks(self) -> None:
        environment = {
            "CLI_MCP_IMAGE": os.environ["E2E_IMAGE"],
            "CLI_MCP_SANDBOX_IMAGE": os.environ["E2E_SANDBOX_IMAGE"],
        }
        listen = f"127.0.0.1:{self.port}"
        command = [sys.executable, "-c", START, "--listen", listen, *self._hook_arguments]
        self._start("hooks", command, **environment)
        eventually(lambda: _listens(self.port), 30)

    def start_metacontroller(self) -> None:
        """The real one where there is one, else the model of it."""
        if METACONTROLLER:
            config = self.folder / "kubeconfig"
            config.write_text(yaml.safe_dump(self._kubeconfig()))
            self._start("metacontroller", [METACONTROLLER, f"--kubeconfig={config}", *FLAGS])
            return
        if "api-proxy" not in self._processes:
            self._start("api-proxy", ["kubectl", "proxy", f"--port={self._api_port}"])
            eventually(lambda: _listens(self._api_port), 30)
        urls = ["--server", f"http://127.0.0.1:{self._api_port}", "--hooks", f"http://127.0.0.1:{self.port}"]
        model = [sys.executable, "-m", "tests.e2e.model_controller", "--user", METACONTROLLER_USER]
        self._start("metacontroller", [*model, *urls])

    def stop(self, name: str) -> None:
        process = self._processes.pop(name)
        process.terminate()
        process.wait(30)

    def close(self) -> None:
        for name in list(self._processes):
            self.stop(name)

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    def _start(self, name: str, command: list[str], **environment: str) -> None:
        with (self.folder / f"{name}.log").open("ab") as output:
            self._processes[name] = subprocess.Popen(
                command, stdout=output, stderr=output, env=os.environ | environment, cwd=ROOT
            )

    def _kubeconfig(self) -> Object:
        """The administrator's, with the token of Metacontroller's ServiceAccount as its credential."""
        config: Object = json.loads(kubectl("config", "view", "--raw", "--minify", "-o", "json"))
        token = kubectl("-n", NAMESPACE, "create", "token", "metacontroller", "--duration=4h").strip()
        config["users"] = [{"name": it["name"], "user": {"token": token}} for it in config["users"]]
        return config


def loopback_controller(port: int) -> Object:
    """The CompositeController as it is installed, for hooks on another port."""
    manifest = (ROOT / "metacontroller/controller/composite-controller.yaml").read_text()
    controller: Object = yaml.safe_load(manifest.replace("127.0.0.1:8070", f"127.0.0.1:{port}"))
    return controller


@contextmanager
def installed(
    folder: Path,
    controller: Callable[[int], Object] = loopback_controller,
    hook_arguments: tuple[str, ...] = (),
) -> Iterator[Operator]:
    """The operator, running; what it installed goes afterwards, but for the CRDs. `controller` makes the
    CompositeController for hooks on a port of this machine."""
    operator = Operator(folder, hook_arguments)
    kubectl("apply", "--server-side", "--force-conflicts", "-f", str(CRD_FILE))
    if METACONTROLLER_CRDS:
        files = Path(METACONTROLLER_CRDS).glob("*.yaml")
        manifests = [it for path in files for it in yaml.safe_load_all(path.read_text()) if it]
        apply(*(it for it in manifests if it.get("kind") == "CustomResourceDefinition"))
    apply(*_manifests("controller/namespace.yaml"))
    account = _manifests("install/service-account.yaml")[0]
    account["metadata"]["namespace"] = NAMESPACE
    apply(account, *_manifests("install/role.yaml"), *_manifests("install/role-binding.yaml"))
    kubectl("apply", "--server-side", "--force-conflicts", "-k", str(ADMISSION_FOLDER))
    operator.start_hooks()
    if METACONTROLLER:
        apply(controller(operator.port))
    operator.start_metacontroller()
    try:
        yield operator
    finally:
        kubectl("delete", "climcpinstances", "-A", "--all", "--timeout=90s", check=False)
        if METACONTROLLER:
            kubectl("delete", "compositecontroller", "cli-mcp", check=False)
        kubectl("delete", "-k", str(ADMISSION_FOLDER), "--ignore-not-found", check=False)
        operator.close()


def _manifests(path: str) -> list[Object]:
    return list(yaml.safe_load_all((ROOT / "metacontroller" / path).read_text()))


def _listens(port: int) -> bool:
    with socket.socket() as asked:
        return asked.connect_ex(("127.0.0.1", port)) == 0


def _free_port() -> int:
    with socket.socket() as asked:
        asked.bind(("127.0.0.1", 0))
        port: int = asked.getsockname()[1]
        return port
