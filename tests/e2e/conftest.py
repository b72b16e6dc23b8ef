"""The same tests twice: on what is in memory, and on KUBECONFIG's cluster with the real METACONTROLLER."""

from __future__ import annotations

import asyncio
import itertools
import os
import subprocess
import threading
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

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
    """A server in a thread of its own, so that tests are free to block."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    server = Server()
    running = server.running()
    asyncio.run_coroutine_threadsafe(running.__aenter__(), loop).result()
    try:
        yield ApiServer(server.url, is_real=False, forget_history=server.api.storage.compact)
    finally:
        asyncio.run_coroutine_threadsafe(running.__aexit__(None, None, None), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


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


@pytest.fixture(scope="session", params=SERVERS)
def api_server(request: pytest.FixtureRequest) -> Iterator[ApiServer]:
    if request.param == "cluster" and "KUBECONFIG" not in os.environ:
        pytest.skip("KUBECONFIG names no cluster")
    with SERVERS[request.param]() as server:
        client = KubeClient(server.url)
        assert client.create(WIDGETS).code in (201, 409)
        eventually(lambda: KubeClient(server.url, "default").list("Widget").code == 200)
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


def what_the_real_one_lacks() -> str:
    missing = [
        name for name in ("KUBECONFIG", "METACONTROLLER", "METACONTROLLER_CRDS") if name not in os.environ
    ]
    return f"not set: {', '.join(missing)}" if missing else ""


@pytest.fixture(scope="session")
def metacontroller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Metacontroller]:
    """The real one, against the cluster of KUBECONFIG."""
    if missing := what_the_real_one_lacks():
        pytest.skip(missing)
    with in_cluster() as server:
        kube = KubeClient(server.url)
        assert kube.create(WIDGETS).code in (201, 409)
        folder = tmp_path_factory.mktemp("metacontroller")
        binary, manifests = (Path(os.environ[name]) for name in ("METACONTROLLER", "METACONTROLLER_CRDS"))
        with running(binary, manifests, server.url, folder) as process:
            yield process


@pytest.fixture(params=["model", "real"])
def new_world(request: pytest.FixtureRequest) -> Iterator[Callable[..., World]]:
    """`new_world(method, **settings)` makes a world with a CompositeController and a namespace of its own."""
    if request.param == "model":
        yield lambda method="InPlace", **settings: ModelWorld(method, **settings)
        return
    process: Metacontroller = request.getfixturevalue("metacontroller")
    with ExitStack() as worlds:

        def new(method: str = "InPlace", **settings: object) -> World:
            kube = worlds.enter_context(new_namespace(process.api_url))
            world = RealWorld(kube, process, method, **settings)
            worlds.callback(world.close)
            return world

        yield new
