"""Two API servers for the same tests: the one in memory, and the one that KUBECONFIG names when it is set."""

from __future__ import annotations

import asyncio
import itertools
import os
import subprocess
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from tests.e2e.kube_client import KubeClient, eventually
from tests.kube.server import Server

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.kube.objects import Object

WIDGETS: Object = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "widgets.twin.example.com"},
    "spec": {
        "group": "twin.example.com",
        "scope": "Namespaced",
        "names": {"plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "subresources": {"status": {}},
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "properties": {
                            "spec": {
                                "type": "object",
                                "properties": {
                                    "size": {"type": "integer", "default": 1, "minimum": 1, "maximum": 9},
                                    "color": {"type": "string", "enum": ["red", "blue"]},
                                    "code": {"type": "string", "pattern": "^[a-z]+$", "maxLength": 5},
                                    "parts": {
                                        "type": "array",
                                        "maxItems": 2,
                                        "x-kubernetes-list-type": "map",
                                        "x-kubernetes-list-map-keys": ["name"],
                                        "items": {
                                            "type": "object",
                                            "required": ["name"],
                                            "properties": {
                                                "name": {"type": "string"},
                                                "weight": {"type": "integer", "default": 5},
                                            },
                                        },
                                    },
                                    "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                                },
                            },
                            "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                        },
                    }
                },
            }
        ],
    },
}


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


@pytest.fixture
def kube(api_server: ApiServer) -> Iterator[KubeClient]:
    """A client in a new namespace, which goes after the test."""
    client = KubeClient(api_server.url, f"twin-{os.getpid()}-{next(_numbers)}")
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": client.namespace}}
    assert client.create(namespace).code == 201
    eventually(lambda: client.get("ServiceAccount", "default").code == 200)
    eventually(lambda: client.get("ConfigMap", "kube-root-ca.crt").code == 200)
    yield client
    client.delete("Namespace", client.namespace)
