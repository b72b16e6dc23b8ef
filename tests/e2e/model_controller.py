"""The model of Metacontroller on a real API server, for machines without the real one.

    python -m tests.e2e.model_controller --server URL --hooks URL --user NAME

The decisions are those of tests/kube, with nothing changed; here are only its eyes and hands: watches fill a
mirror of the kinds that it looks at, and its requests go to the server as `user` (Impersonate-User), so that
the rights of the installation are tested too.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import requests
import yaml

from tests.kube.clock import wall_clock
from tests.kube.composite import CompositeController, Settings
from tests.kube.errors import ApiError
from tests.kube.hook_wire import HookAnswer
from tests.kube.objects import name_of, namespace_of
from tests.kube.resources import Registry, Resource, custom_resources
from tests.kube.storage import Key, Storage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from datetime import datetime

    from tests.kube.api import Api
    from tests.kube.deletion import DeleteOptions
    from tests.kube.hook_wire import HookName
    from tests.kube.objects import Object
    from tests.kube.rbac import User

ROOT = Path(__file__).parents[2]
CONTROLLER_FILE = ROOT / "metacontroller/controller/composite-controller.yaml"
CRD_FILE = ROOT / "config/crd/climcpinstances.yaml"
# What the hooks' customize answers name, beside the children's kinds.
RELATED = (
    ("v1", "secrets"),
    ("discovery.k8s.io/v1", "endpointslices"),
    ("networking.k8s.io/v1", "networkpolicies"),
)
REQUEST_SECONDS = 30
HOOK_SECONDS = 30
WATCH_SECONDS = 300
POLL_SECONDS = 0.02
RECONNECT_SECONDS = 0.5

log = logging.getLogger("model_controller")


class Mirror(Storage):
    """What the watches have shown so far. Revisions count what was seen; objects keep their own versions."""

    def show(self, resource: Resource, obj: Object, *, removed: bool = False) -> None:
        """Take over an event; what is known already changes nothing."""
        key = Key(resource.key, namespace_of(obj), name_of(obj))
        with self.lock:
            known = self._objects.get(key.kind, {}).get(key)
            if known == (None if removed else obj):
                return
            self._commit(key, obj, removed=removed)

    def replace(self, resource: Resource, found: Iterable[Object]) -> None:
        """Take over a list: what is not in it is gone."""
        listed = {(namespace_of(obj), name_of(obj)): obj for obj in found}
        for obj in self.items(resource.key):
            if (namespace_of(obj), name_of(obj)) not in listed:
                self.show(resource, obj, removed=True)
        for obj in listed.values():
            self.show(resource, obj)

    @staticmethod
    def _versioned(obj: Object, revision: int) -> Object:
        return obj


@dataclass
class RemoteApi:
    """The part of tests.kube's Api that the model of Metacontroller uses."""

    url: str
    user: str
    registry: Registry
    storage: Mirror = field(default_factory=Mirror)
    clock: Callable[[], datetime] = wall_clock

    def get(self, kind: Resource, namespace: str, name: str, *, user: User) -> Object:
        return self._request("GET", self.path(kind, namespace, name))

    def create(self, obj: Object, *, user: User, manager: str) -> Object:
        return self._request("POST", self.path(self._kind(obj), namespace_of(obj)), obj)

    def update(self, obj: Object, subresource: str = "", *, user: User, manager: str) -> Object:
        path = self.path(self._kind(obj), namespace_of(obj), name_of(obj), subresource)
        return self._request("PUT", path, obj)

    def delete(
        self, kind: Resource, namespace: str, name: str, options: DeleteOptions, *, user: User
    ) -> Object:
        body = {"preconditions": {"uid": options.uid}, "propagationPolicy": options.propagation}
        return self._request("DELETE", self.path(kind, namespace, name), body)

    def find(self, kind: str, namespace: str, name: str) -> Object | None:
        return self.storage.get(Key(self.registry.by_name(kind).key, namespace, name))

    def path(self, kind: Resource, namespace: str = "", name: str = "", subresource: str = "") -> str:
        root = "/apis/" if kind.group else "/api/"
        where = f"/namespaces/{namespace}" if namespace else ""
        return "/".join(filter(None, (f"{root}{kind.api_version}{where}/{kind.plural}", name, subresource)))

    def mirror(self, kind: Resource) -> str:
        """Take over what there is now; returns the revision of the list."""
        listed = self._request("GET", self.path(kind))
        identity = {"apiVersion": kind.api_version, "kind": kind.kind}  # which items of lists do not have
        self.storage.replace(kind, ({**identity, **it} for it in listed["items"]))
        revision: str = listed["metadata"]["resourceVersion"]
        return revision

    def watch(self, kind: Resource, revision: str) -> None:
        """Mirror what comes after a revision, for ever."""
        while True:
            try:
                self._follow(kind, revision)
                revision = self.mirror(kind)
            except (ApiError, requests.RequestException) as error:
                log.info("watch of %s: %s", kind.qualified, error)
                time.sleep(RECONNECT_SECONDS)

    def _follow(self, kind: Resource, revision: str) -> None:
        query = {"watch": "true", "resourceVersion": revision, "timeoutSeconds": str(WATCH_SECONDS)}
        timeout = (REQUEST_SECONDS, WATCH_SECONDS + REQUEST_SECONDS)
        with requests.get(
            self.url + self.path(kind), params=query, headers=self._headers, stream=True, timeout=timeout
        ) as answer:
            _raise_for_status(answer)
            for line in answer.iter_lines(chunk_size=None):
                event = json.loads(line)
                if event["type"] == "ERROR":
                    return  # 410: list again
                self.storage.show(kind, event["object"], removed=event["type"] == "DELETED")

    def _request(self, method: str, path: str, body: Any = None) -> Object:
        answer = requests.request(
            method, self.url + path, json=body, headers=self._headers, timeout=REQUEST_SECONDS
        )
        _raise_for_status(answer)
        content: Object = answer.json()
        return content

    @property
    def _headers(self) -> dict[str, str]:
        return {"Impersonate-User": self.user}

    def _kind(self, obj: Object) -> Resource:
        return self.registry.by_kind(str(obj["apiVersion"]), str(obj["kind"]))


def _raise_for_status(answer: requests.Response) -> None:
    if answer.status_code >= 400:
        status: Object = answer.json()
        raise ApiError(answer.status_code, status.get("reason", ""), status.get("message", ""))


def call_hook(url: str) -> Callable[[HookName, bytes], HookAnswer]:
    session = requests.Session()

    def call(name: HookName, body: bytes) -> HookAnswer:
        headers = {"Content-Type": "application/json"}
        answer = session.post(f"{url}/{name}", data=body, headers=headers, timeout=HOOK_SECONDS)
        return HookAnswer(answer.status_code, answer.content)

    return call


def run(api: RemoteApi, hooks_url: str) -> None:
    """Watch, and sync whatever has to be, for ever."""
    settings = Settings.from_manifest(yaml.safe_load(CONTROLLER_FILE.read_text()))
    kinds = {(version, plural) for version, plural, _ in settings.children}
    for kind in sorted({settings.parent, *RELATED} | kinds):
        resource = api.registry.by_plural(*kind)
        revision = api.mirror(resource)
        threading.Thread(target=api.watch, args=(resource, revision), daemon=True).start()
    controller = CompositeController(cast("Api", api), settings, call_hook(hooks_url))
    while True:
        controller.deliver()
        done = controller.sync_next()
        if done is None:
            time.sleep(POLL_SECONDS)
        elif done.errors:
            log.info("%s: %s", done.key, "; ".join(map(str, done.errors)))


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--server", required=True)
    parser.add_argument("--hooks", required=True)
    parser.add_argument("--user", required=True)
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    registry = Registry()
    registry.add(custom_resources(yaml.safe_load(CRD_FILE.read_text())))
    run(RemoteApi(options.server, options.user, registry), options.hooks)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
