"""A plain HTTP client for an API server, real or in memory: what goes over the wire is what a test says."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import requests

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.kube.objects import Object

PLURALS = {
    "ConfigMap": ("v1", "configmaps"),
    "Namespace": ("v1", "namespaces"),
    "Pod": ("v1", "pods"),
    "Secret": ("v1", "secrets"),
    "Service": ("v1", "services"),
    "ServiceAccount": ("v1", "serviceaccounts"),
    "PersistentVolumeClaim": ("v1", "persistentvolumeclaims"),
    "Deployment": ("apps/v1", "deployments"),
    "NetworkPolicy": ("networking.k8s.io/v1", "networkpolicies"),
    "PodDisruptionBudget": ("policy/v1", "poddisruptionbudgets"),
    "Role": ("rbac.authorization.k8s.io/v1", "roles"),
    "RoleBinding": ("rbac.authorization.k8s.io/v1", "rolebindings"),
    "CustomResourceDefinition": ("apiextensions.k8s.io/v1", "customresourcedefinitions"),
    "CompositeController": ("metacontroller.k8s.io/v1alpha1", "compositecontrollers"),
    "Widget": ("twin.example.com/v1", "widgets"),
}
CLUSTER_SCOPED = frozenset(("Namespace", "CustomResourceDefinition", "CompositeController"))
REQUEST_SECONDS = 30
POLL_SECONDS = 0.05


@dataclass(frozen=True)
class Reply:
    """`body` is the object, or the Status of a refusal."""

    code: int
    body: Object

    @property
    def outcome(self) -> tuple[int, str]:
        """`(409, "Conflict")`; the reason of a success is `""`."""
        return self.code, str(self.body.get("reason", "")) if self.code >= 400 else ""


@dataclass(frozen=True)
class KubeClient:
    """Requests go to `namespace` unless the object says otherwise; `user` is impersonated. `headers` are sent
    with each request."""

    url: str
    namespace: str = ""
    user: str = ""
    headers: tuple[tuple[str, str], ...] = ()

    def as_user(self, user: str) -> KubeClient:
        return replace(self, user=user)

    def path(self, kind: str, name: str = "", subresource: str = "", namespace: str | None = None) -> str:
        api_version, plural = PLURALS[kind]
        root = f"/api/{api_version}" if "/" not in api_version else f"/apis/{api_version}"
        where = "" if kind in CLUSTER_SCOPED else f"/namespaces/{namespace or self.namespace}"
        return (
            root
            + where
            + f"/{plural}"
            + (f"/{name}" if name else "")
            + (f"/{subresource}" if subresource else "")
        )

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        content_type: str = "application/json",
        manager: str = "twin",
        **query: str,
    ) -> Reply:
        headers = {"Content-Type": content_type, "User-Agent": f"{manager}/1", **dict(self.headers)}
        if self.user:
            headers["Impersonate-User"] = self.user
        data = None if body is None else json.dumps(body)
        answer = requests.request(
            method, self.url + path, data=data, params=query, headers=headers, timeout=REQUEST_SECONDS
        )
        try:
            return Reply(answer.status_code, answer.json())
        except ValueError:
            return Reply(answer.status_code, {"message": answer.text})

    def create(self, obj: Object, **options: str) -> Reply:
        namespace = obj.get("metadata", {}).get("namespace")
        return self.request("POST", self.path(obj["kind"], namespace=namespace), obj, **options)

    def get(self, kind: str, name: str) -> Reply:
        return self.request("GET", self.path(kind, name))

    def list(self, kind: str, **query: str) -> Reply:
        return self.request("GET", self.path(kind), **query)

    def put(self, obj: Object, subresource: str = "", **options: str) -> Reply:
        return self.request(
            "PUT", self.path(obj["kind"], obj["metadata"]["name"], subresource), obj, **options
        )

    def patch(
        self,
        kind: str,
        name: str,
        body: Any,
        subresource: str = "",
        content_type: str = "application/merge-patch+json",
        **options: str,
    ) -> Reply:
        return self.request("PATCH", self.path(kind, name, subresource), body, content_type, **options)

    def delete(self, kind: str, name: str, body: Any = None, **query: str) -> Reply:
        return self.request("DELETE", self.path(kind, name), body, **query)

    def watch(self, kind: str, seconds: int, **query: str) -> Iterator[Object]:
        """The events until the server ends the watch."""
        query = {"watch": "true", "timeoutSeconds": str(seconds), **query}
        timeout = (REQUEST_SECONDS, seconds + REQUEST_SECONDS)
        with requests.get(self.url + self.path(kind), params=query, stream=True, timeout=timeout) as answer:
            if answer.status_code != 200:
                yield {"type": "ERROR", "object": answer.json()}
                return
            for line in answer.iter_lines():
                if line:
                    yield json.loads(line)


def eventually(condition: Callable[[], object], seconds: float = 30) -> None:
    """Poll until the condition holds; AssertionError after the deadline."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"still not so after {seconds} s"
        time.sleep(POLL_SECONDS)
