"""The same tests on what is in memory and on what is real, as far as the environment names it.

KUBECONFIG: a cluster. METACONTROLLER and METACONTROLLER_CRDS: its binary, and the folder of its manifests.
"""

from __future__ import annotations

import itertools
import os
import subprocess
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.e2e.background import in_background
from tests.e2e.kube_client import KubeClient, eventually
from tests.e2e.metacontroller import Metacontroller, running
from tests.e2e.real_world import RealWorld
from tests.kube.samples import WIDGETS
from tests.kube.server import Server
from tests.kube.worlds import ModelWorld, World

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@dataclass(frozen=True)
class ApiServer:
    """`forget_history` makes watches from old revisions expire; None where that cannot be asked for."""

    url: str
    is_real: bool
    forget_history: Callable[[], None] | None = None


@contextmanager
def in_memory() -> Iterator[ApiServer]:
    with in_background(Server().running()) as server:
        yield ApiServer(server.url, is_real=False, forget_history=server.api.storage.compact)


@contextmanager
def in_cluster() -> Iterator[ApiServer]:
    """The cluster of KUBECONFIG, by way of a proxy that authenticates as it says."""
    command = ["kubectl", "proxy", "--port=0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as proxy:
        try:
            assert proxy.stdout is not None
            started = proxy.stdout.readline()  # Starting to serve on 127.0.0.1:41234
            assert started, "kubectl proxy did not start; is kubectl in PATH, and KUBECONFIG right?"
            yield ApiServer(f"http://{started.split()[-1]}", is_real=True)
        finally:
            proxy.terminate()


SERVERS = {"memory": in_memory, "cluster": in_cluster}
# What each kind of API server, and the real Metacontroller, need from the environment.
NEEDED = {"memory": (), "cluster": ("KUBECONFIG",)}
METACONTROLLER_NEEDS = ("METACONTROLLER", "METACONTROLLER_CRDS")


def skip_without(names: tuple[str, ...]) -> None:
    missing = [name for name in names if name not in os.environ]
    if missing:
        pytest.skip(f"not set: {', '.join(missing)}")


@contextmanager
def api_with_widgets(kind: str) -> Iterator[ApiServer]:
    with SERVERS[kind]() as server:
        assert KubeClient(server.url).create(WIDGETS).code in (201, 409)
        eventually(lambda: KubeClient(server.url, "default").list("Widget").code == 200)
        yield server


@pytest.fixture(scope="session", params=SERVERS)
def api_server(request: pytest.FixtureRequest) -> Iterator[ApiServer]:
    skip_without(NEEDED[request.param])
    with api_with_widgets(request.param) as server:
        yield server


_numbers = itertools.count(1)


@contextmanager
def new_namespace(url: str) -> Iterator[KubeClient]:
    """A client in a new namespace, which goes afterwards."""
    client = KubeClient(url, f"twin-{os.getpid()}-{next(_numbers)}")
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": client.namespace}}
    assert client.create(namespace).code == 201
    eventually(lambda: client.get("ServiceAccount", "default").code == 200)
    eventually(lambda: client.get("ConfigMap", "kube-root-ca.crt").code == 200)
    yield client
    client.delete("Namespace", client.namespace)


@pytest.fixture
def kube(api_server: ApiServer) -> Iterator[KubeClient]:
    with new_namespace(api_server.url) as client:
        yield client


@pytest.fixture(scope="session", params=["model", *SERVERS], ids=["model", *(f"real-{it}" for it in SERVERS)])
def metacontroller(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Metacontroller | None]:
    """The real one on either API server; None stands for the model."""
    if request.param == "model":
        yield None
        return
    skip_without(NEEDED[request.param] + METACONTROLLER_NEEDS)
    binary, manifests = (Path(os.environ[name]) for name in METACONTROLLER_NEEDS)
    folder = tmp_path_factory.mktemp("metacontroller")
    with api_with_widgets(request.param) as server, running(binary, manifests, server.url, folder) as process:
        yield process


@pytest.fixture
def new_world(metacontroller: Metacontroller | None) -> Iterator[Callable[..., World]]:
    """`new_world(method, **settings)` makes a world with a CompositeController and a namespace of its own."""
    with ExitStack() as worlds:

        def new(method: str = "InPlace", **settings: object) -> World:
            if metacontroller is None:
                return ModelWorld(method, **settings)
            kube = worlds.enter_context(new_namespace(metacontroller.api_url))
            world = RealWorld(kube, metacontroller, method, **settings)
            worlds.callback(world.close)
            return world

        yield new
