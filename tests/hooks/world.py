"""A cluster in memory with the hooks in it: API server, Metacontroller, and what pods would do."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from cli_mcp import names
from cli_mcp.crd import custom_resource_definition
from cli_mcp.session_keys import SessionKey
from hooks.customize import customize
from hooks.finalize import finalize
from hooks.keys import Authority
from hooks.reconcile import sync
from hooks.settings import Settings
from tests.kube import controllers, garbage
from tests.kube.api import Api
from tests.kube.composite import CompositeController
from tests.kube.composite import Settings as ControllerSettings
from tests.kube.hook_wire import HookAnswer, HookName, in_process

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.kube.clock import Clock
    from tests.kube.objects import Object

ROOT = Path(__file__).parents[2]
NAMESPACE = "default"
SETTINGS = Settings(image="registry.example.com/cli-mcp:1", sandbox_image="registry.example.com/sandbox:1")
CRD = custom_resource_definition()
CONTROLLER = ControllerSettings.from_manifest(
    yaml.safe_load((ROOT / "metacontroller/controller/composite-controller.yaml").read_text())
)
ALLOWLIST = {"targets": [{"type": "allowlist", "domains": ["pypi.org", "registry.example.com:5000"]}]}
KUBERNETES = {"targets": [{"type": "kubernetes"}]}
KUBECONFIG = {
    "apiVersion": "v1",
    "kind": "Config",
    "current-context": "main",
    "clusters": [{"name": "main", "cluster": {"server": "https://api.example.com:6443"}}],
    "users": [{"name": "robot", "user": {"token": "the-real-token"}}],
    "contexts": [{"name": "main", "context": {"cluster": "main", "user": "robot", "namespace": "team"}}],
}


@dataclass
class CountingKeys:
    """Keys that are as different as real ones and can be told apart: `made` counts them."""

    made: int = 0

    def proxy_authority(self, common_name: str, now: datetime) -> Authority:
        self.made += 1
        return Authority(
            f"-----BEGIN CERTIFICATE-----\nca {self.made}\n-----END CERTIFICATE-----\n",
            f"-----BEGIN PRIVATE KEY-----\nca {self.made}\n-----END PRIVATE KEY-----\n",
        )

    def session_key(self, now: datetime) -> SessionKey:
        self.made += 1
        return SessionKey(
            kid=f"{self.made:016x}",
            published_at=now,
            private_key=f"private {self.made}",
            public_key=f"public {self.made}",
        )

    def ssh_host_key(self) -> str:
        self.made += 1
        return f"host key {self.made}"


@dataclass(frozen=True)
class Exchange:
    """One request of Metacontroller to sync, when it came, and the answer."""

    request: Object
    now: datetime
    answer: Object

    def observed(self, kind: str) -> dict[str, Object]:
        """By name; `kind` as in `Pod.v1`."""
        return {obj["metadata"]["name"]: obj for obj in self.request["children"][kind].values()}

    def desired(self, kind: str) -> dict[str, Object]:
        """By name; `kind` as in `Pod`."""
        return {obj["metadata"]["name"]: obj for obj in self.answer["children"] if obj["kind"] == kind}


@dataclass
class World:
    """One namespace. `run` lets Metacontroller, and the cluster around it, go on until nothing moves."""

    api: Api = field(default_factory=Api)
    keys: CountingKeys = field(default_factory=CountingKeys)
    settings: Settings = SETTINGS
    hooks_are_down: bool = False
    on_sync: Callable[[Exchange], None] | None = None

    def __post_init__(self) -> None:
        self.api.create(CRD)
        self.controller = self.restart()

    def restart(self) -> CompositeController:
        answering = in_process(
            sync=self._sync,
            finalize=lambda body: finalize(body, self.clock()),
            customize=customize,
        )

        def hooks(name: HookName, body: bytes) -> HookAnswer:
            if self.hooks_are_down:
                raise ConnectionRefusedError("the hooks are down")
            return answering(name, body)

        self.controller = CompositeController(self.api, CONTROLLER, hooks)
        return self.controller

    def _sync(self, body: Object) -> Object:
        now = self.clock()
        answer = sync(body, self.settings, now, self.keys)
        if self.on_sync:
            self.on_sync(Exchange(body, now, answer))
        return answer

    @property
    def clock(self) -> Clock:
        return self.api.clock  # type: ignore[return-value]

    def apply(self, spec: Object, name: str = "demo", **metadata: Any) -> Object:
        existing = self.find("climcpinstances.cli-mcp.redhat.com", name)
        if existing is not None:
            return self.api.update({**existing, "spec": spec})
        return self.api.create(
            {
                "apiVersion": names.API_VERSION,
                "kind": names.KIND,
                "metadata": {"name": name, "namespace": NAMESPACE, **metadata},
                "spec": spec,
            }
        )

    def annotate(self, key: str, value: str, name: str = "demo") -> None:
        body = {"metadata": {"annotations": {key: value}}}
        self.api.patch("climcpinstances.cli-mcp.redhat.com", NAMESPACE, name, body)

    def secret(self, name: str, data: dict[str, str]) -> None:
        existing = self.find("secrets", name)
        manifest = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": name, "namespace": NAMESPACE},
            "stringData": data,
        }
        if existing is None:
            self.api.create(manifest)
        else:
            self.api.update({**existing, "stringData": data})

    def admin_secrets(self, name: str = "demo") -> None:
        self.secret(f"cli-mcp-{name}-tls", {"tls.crt": "certificate", "tls.key": "key"})
        self.secret("keys", {"authorized_keys": "ssh-ed25519 AAAA"})
        self.secret(f"cli-mcp-{name}-kubeconfig", {"kubeconfig": json.dumps(KUBECONFIG)})

    def run(self, rounds: int = 40, *, pods_ready: bool = True, max_syncs: int = 200) -> None:
        """Raises AssertionError when the world does not come to rest."""
        for _ in range(rounds):
            before = self.api.storage.revision
            self.controller.run(max_syncs)
            controllers.roll_out_deployments(self.api)
            controllers.schedule_pods(self.api)
            controllers.start_pods(self.api, lambda pod: pods_ready)
            controllers.end_terminating_pods(self.api)
            garbage.step(self.api)
            if self.api.storage.revision == before and not self.failing():
                return
            self.clock.advance(1)
        raise AssertionError("the world does not come to rest")

    def failing(self) -> list[Exception]:
        """Errors of each instance's last sync."""
        last = {done.key: done.errors for done in self.controller.syncs}
        return [error for errors in last.values() for error in errors]

    def writes_at_rest(self, syncs: int = 3) -> list[str]:
        """What more syncs write, without anything having changed."""
        start = len(self.api.journal)
        for _ in range(syncs):
            self.poke()
            self.controller.run(2000)
        return self.writes_since(start)

    def writes_since(self, start: int) -> list[str]:
        """The writes after entry `start` of the journal, without those of the cluster's own controllers."""
        return [
            f"{entry.verb} {entry.resource} {entry.name} {entry.code}"
            for entry in self.api.journal[start:]
            if entry.is_write and not entry.user.startswith("system:")
        ]

    def poke(self) -> None:
        """Have every instance synced again."""
        for instance in self.api.objects("climcpinstances.cli-mcp.redhat.com", NAMESPACE):
            self.controller.queue.add(f"{NAMESPACE}/{instance['metadata']['name']}")

    def find(self, kind: str, name: str) -> Object | None:
        return self.api.find(kind, NAMESPACE, name)

    def get(self, kind: str, name: str) -> Object:
        return self.api.get(kind, NAMESPACE, name)

    def pods(self, instance: str = "demo") -> dict[str, Object]:
        return {
            pod["metadata"]["name"]: pod
            for pod in self.api.objects("pods", NAMESPACE)
            if pod["metadata"]["labels"].get(names.LABEL_INSTANCE) == instance
        }

    def claim(self, pod_name: str, session: str) -> Object:
        """As the server does it: one patch, bound to what was read."""
        pod = self.get("pods", pod_name)
        metadata = pod["metadata"]
        assert metadata["labels"].get(names.LABEL_STATE) is None
        stamp = self.clock().astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return self.api.patch(
            "pods",
            NAMESPACE,
            pod_name,
            {
                "metadata": {
                    "uid": metadata["uid"],
                    "resourceVersion": metadata["resourceVersion"],
                    "labels": {names.LABEL_SESSION_ID: session, names.LABEL_STATE: names.STATE_ACTIVE},
                    "annotations": {names.ANNOTATION_LAST_ACTIVITY: stamp},
                }
            },
        )

    def status(self, name: str = "demo") -> Object:
        status: Object = self.get("climcpinstances.cli-mcp.redhat.com", name).get("status") or {}
        return status

    def condition(self, kind: str = "Ready", name: str = "demo") -> Object:
        return next(it for it in self.status(name)["conditions"] if it["type"] == kind)

    def sandbox_config(self, name: str = "demo") -> Object:
        config: Object = json.loads(self.get("configmaps", f"cli-mcp-{name}")["data"]["sandbox.json"])
        return config
