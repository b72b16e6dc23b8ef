"""An instance on a real cluster: to edit it, and to look at what becomes of it."""

from __future__ import annotations

import base64
import itertools
import json
import os
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import yaml

from cli_mcp import names
from cli_mcp.authority import generate_authority
from hooks.wire import CHILD_KINDS
from tests.e2e.operator import Object, apply, eventually, get, kubectl, objects

if TYPE_CHECKING:
    from collections.abc import Iterator

ALL_CHILDREN = ",".join(f"{kind.resource}.{kind.group}".rstrip(".") for kind in CHILD_KINDS)
_numbers = itertools.count(1)


@dataclass
class Cluster:
    """A namespace with an instance `demo` to come."""

    namespace: str
    name: str = "demo"
    spec: dict[str, Any] = field(default_factory=dict)

    def apply(self, spec: Object, **metadata: Any) -> None:
        self.spec = spec
        apply(
            {
                "apiVersion": names.API_VERSION,
                "kind": names.KIND,
                "metadata": {"name": self.name, "namespace": self.namespace, **metadata},
                "spec": spec,
            }
        )

    def instance(self) -> Object:
        found = get(self.namespace, "climcpinstance", self.name)
        assert found is not None
        return found

    def condition(self, kind: str = "Ready") -> Object:
        conditions = self.instance().get("status", {}).get("conditions", ())
        return next((it for it in conditions if it["type"] == kind), {})

    def wait_for(self, reason: str = "Ready", seconds: float = 180) -> None:
        def reached() -> bool:
            found = self.instance()
            conditions = found.get("status", {}).get("conditions", ())
            current = [
                it["reason"]
                for it in conditions
                if it["type"] == "Ready" and it["observedGeneration"] == found["metadata"]["generation"]
            ]
            return current == [reason]

        try:
            eventually(reached, seconds)
        except AssertionError:
            raise AssertionError(f"{self.condition()}") from None

    def child(self, kind: str, name: str) -> Object:
        found = get(self.namespace, kind, name)
        assert found is not None, name
        return found

    def pods(self) -> dict[str, Object]:
        found = objects(
            self.namespace, "pods", f"{names.LABEL_INSTANCE}={self.name},{names.LABEL_COMPONENT}=sandbox"
        )
        return {it["metadata"]["name"]: it for it in found}

    def has_only_current_pods(self) -> bool:
        """As many as the pool has, none of an older template and none on its way out."""
        config = json.loads(self.child("configmap", f"cli-mcp-{self.name}")["data"][names.SANDBOX_CONFIG_KEY])
        hashes = [it["metadata"]["labels"][names.LABEL_POOL_HASH] for it in self.pods().values()]
        return hashes == [config["poolHash"]] * self.spec["sandbox"]["warmPoolSize"]

    def revisions(self) -> dict[str, str]:
        """Of the instance and all its children."""
        everything = objects(self.namespace, ALL_CHILDREN, names.LABEL_CONTROLLER_UID)
        return {
            f"{it['kind']} {it['metadata']['name']}": it["metadata"]["resourceVersion"]
            for it in (*everything, self.instance())
        }

    def claim(self, pod: str, session: str) -> None:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        body = {
            "metadata": {
                "labels": {names.LABEL_SESSION_ID: session, names.LABEL_STATE: names.STATE_ACTIVE},
                "annotations": {names.ANNOTATION_LAST_ACTIVITY: now},
            }
        }
        kubectl("-n", self.namespace, "patch", "pod", pod, "--type=merge", "-p", json.dumps(body))


def prepare(namespace: str, instance: str) -> None:
    """The Secrets of an admin; the kubeconfig is for this cluster, with a token that may do nothing."""
    certificate, key = generate_authority("test", datetime.now(UTC))
    ca = json.loads(kubectl("-n", namespace, "get", "configmap", "kube-root-ca.crt", "-o", "json"))["data"][
        "ca.crt"
    ]
    token = kubectl("-n", namespace, "create", "token", "default", "--duration=1000h").strip()
    kubeconfig = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {
                "name": "here",
                "cluster": {
                    "server": "https://kubernetes.default.svc",
                    "certificate-authority-data": base64.b64encode(ca.encode()).decode(),
                },
            }
        ],
        "users": [{"name": "me", "user": {"token": token}}],
        "contexts": [{"name": "here", "context": {"cluster": "here", "user": "me"}}],
        "current-context": "here",
    }
    contents = {
        f"cli-mcp-{instance}-tls": {"tls.crt": certificate, "tls.key": key},
        f"cli-mcp-{instance}-kubeconfig": {"kubeconfig": yaml.safe_dump(kubeconfig)},
        "keys": {"authorized_keys": "ssh-ed25519 AAAA"},
    }
    apply(
        *(
            {
                "apiVersion": "v1",
                "kind": "Secret",
                "metadata": {"name": name, "namespace": namespace},
                "stringData": data,
            }
            for name, data in contents.items()
        )
    )


@contextmanager
def new_cluster() -> Iterator[Cluster]:
    """A new namespace, in which everything is ready for an instance `demo`; it goes afterwards."""
    namespace = f"hooks-{os.getpid()}-{next(_numbers)}"
    kubectl("create", "namespace", namespace)
    # https://kubernetes.io/docs/concepts/security/pod-security-standards/#restricted
    kubectl("label", "namespace", namespace, "pod-security.kubernetes.io/enforce=restricted")
    eventually(lambda: get(namespace, "configmap", "kube-root-ca.crt"))
    prepare(namespace, "demo")
    yield Cluster(namespace)
    kubectl("-n", namespace, "delete", "climcpinstances", "--all", "--timeout=120s", check=False)
    kubectl("delete", "namespace", namespace, "--wait=false", check=False)
