"""Instances of the installed system, each with the Secrets of an admin and with callers."""

from __future__ import annotations

import base64
import itertools
import json
import os
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from cli_mcp import names
from tests.e2e.certificate import VALIDITY, server_certificate
from tests.e2e.cluster import Cluster
from tests.e2e.mcp_client import McpClient
from tests.e2e.operator import Object, apply, eventually, get, kubectl, objects
from tests.e2e.reach import Reach

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import timedelta

INVESTIGATOR = "investigator"
# What that identity may do in its namespace unless a test says otherwise.
READ_CONFIG_MAPS = ({"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "list", "watch"]},)
# A node of two CPUs has room for many.
SMALL: Object = {
    "sandbox": {"resources": {"requests": {"cpu": "1m", "memory": "16Mi"}}},
    "serverContainer": {"resources": {"requests": {"cpu": "5m", "memory": "64Mi"}}},
}
_numbers = itertools.count(1)


@dataclass
class Instance(Cluster):
    """`folder` keeps the certificate of the authority that signed the server's."""

    folder: Path = field(default_factory=Path)

    def __post_init__(self) -> None:
        self.reach = Reach(self.namespace)

    @property
    def service_name(self) -> str:
        return f"cli-mcp-{self.name}.{self.namespace}.svc"

    @property
    def authority_file(self) -> Path:
        return self.folder / f"{self.namespace}-{self.name}.pem"

    def create(self, spec: Object, rules: Sequence[Object] = READ_CONFIG_MAPS) -> None:
        """The instance with small requests, and before it the Secrets that it needs."""
        self.make_secrets(rules)
        self.apply(merged(SMALL, spec))

    def make_secrets(self, rules: Sequence[Object] = READ_CONFIG_MAPS) -> None:
        """The server's certificate, and the credential that the proxy holds."""
        self.make_server_certificate()
        self.make_kubeconfig(self.make_identity(INVESTIGATOR, rules))

    def make_server_certificate(self, validity: timedelta = VALIDITY) -> None:
        made = server_certificate(self.service_name, validity)
        self.authority_file.write_text(made.authority)
        self.make_secret(f"cli-mcp-{self.name}-tls", {"tls.crt": made.chain, "tls.key": made.key})

    def make_identity(self, account: str, rules: Sequence[Object]) -> str:
        """A token of a ServiceAccount of the namespace that may do what `rules` say there."""
        role = {"apiVersion": "rbac.authorization.k8s.io/v1", "metadata": self._metadata(account)}
        reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": account}
        subject = {"kind": "ServiceAccount", "name": account, "namespace": self.namespace}
        apply(
            {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": self._metadata(account)},
            {**role, "kind": "Role", "rules": list(rules)},
            {**role, "kind": "RoleBinding", "roleRef": reference, "subjects": [subject]},
        )
        return self.token(account, "1000h")

    def make_kubeconfig(self, token: str) -> None:
        """The Secret with the credential that the proxy holds, for this cluster."""
        text = yaml.safe_dump(kubeconfig(self.namespace, token))
        self.make_secret(f"cli-mcp-{self.name}-kubeconfig", {"kubeconfig": text})

    def make_secret(self, name: str, data: dict[str, str]) -> None:
        apply({"apiVersion": "v1", "kind": "Secret", "metadata": self._metadata(name), "stringData": data})

    def token(self, account: str | None = None, duration: str = "2h") -> str:
        """Of a ServiceAccount of the namespace; without a name of the one that is made for clients."""
        account = account or f"cli-mcp-{self.name}-client"
        arguments = ("-n", self.namespace, "create", "token", account, f"--duration={duration}")
        return kubectl(*arguments).strip()

    def make_account(self, name: str, role: str | None = None) -> str:
        """A token of a new ServiceAccount, with a Role of the namespace; by default it has none."""
        metadata = self._metadata(name)
        account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata}
        binding = {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": metadata,
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": role},
            "subjects": [{"kind": "ServiceAccount", **metadata}],
        }
        apply(account, *([binding] if role else []))
        return self.token(name)

    def make_caller(self, name: str) -> str:
        """The same with all that the instance's own client may do."""
        return self.make_account(name, f"cli-mcp-{self.name}-client")

    def client(self, token: str | None = None, address: str | None = None) -> McpClient:
        """A caller, by default with a client's token (`""` for none) and by way of the Service."""
        token = self.token() if token is None else token
        address = address or self._service_address()
        return McpClient(address, self.service_name, self.authority_file, token or None)

    def _service_address(self) -> str:
        service = f"cli-mcp-{self.name}"
        ip = self.child("service", service)["spec"]["clusterIP"]
        return self.reach.address(f"service/{service}", ip, names.SERVER_PORT)

    def component(self, name: str) -> list[Object]:
        """The pods of `server`, `proxy`, `sandbox` or `ssh` that are not on their way out."""
        selector = f"{names.LABEL_INSTANCE}={self.name},{names.LABEL_COMPONENT}={name}"
        pods = objects(self.namespace, "pods", selector)
        return [it for it in pods if "deletionTimestamp" not in it["metadata"]]

    def replicas(self, token: str | None = None) -> list[McpClient]:
        """A client for each server pod that is Ready."""
        token = self.token() if token is None else token
        ready = [it for it in self.component("server") if is_ready(it)]
        return [self.client(token, self._pod_address(it)) for it in ready]

    def _pod_address(self, pod: Object) -> str:
        name, ip = pod["metadata"]["name"], pod["status"]["podIP"]
        return self.reach.address(f"pod/{name}", ip, names.SERVER_PORT)

    def session_pods(self, session: str) -> list[Object]:
        return [
            it
            for it in self.component("sandbox")
            if it["metadata"]["labels"].get(names.LABEL_SESSION_ID) == session
        ]

    def restarts(self, session: str) -> int:
        """How often the container of the session's pod was started again."""
        (pod,) = self.session_pods(session)
        return int(pod["status"]["containerStatuses"][0]["restartCount"])

    def make_stray_pod(self, name: str) -> None:
        """A pod that is no part of the instance, with the tools of the sandbox image; it is Ready then."""
        confined = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
        container = {
            "name": "stray",
            "image": os.environ["E2E_SANDBOX_IMAGE"],
            "command": ["sleep", "3600"],
            "resources": {"requests": {"cpu": "1m", "memory": "16Mi"}},
            "securityContext": confined,
        }
        spec = {
            "containers": [container],
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 0,
            "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        }
        apply({"apiVersion": "v1", "kind": "Pod", "metadata": self._metadata(name), "spec": spec})
        kubectl("-n", self.namespace, "wait", "--for=condition=Ready", f"pod/{name}", "--timeout=60s")

    def connects(self, pod: str, address: str, port: int) -> bool:
        """Whether a pod gets a TCP connection within 3 s; its default container has bash."""
        command = f"exec 3<>/dev/tcp/{address}/{port} && echo open"
        program = ("exec", pod, "--", "timeout", "3", "bash", "-c", command)
        return kubectl("-n", self.namespace, *program, check=False) == "open\n"

    def _metadata(self, name: str) -> Object:
        return {"name": name, "namespace": self.namespace}


def is_ready(pod: Object) -> bool:
    conditions = pod["status"].get("conditions", ())
    return any(it["type"] == "Ready" and it["status"] == "True" for it in conditions)


def kubeconfig(namespace: str, token: str) -> Object:
    """For the API server of this cluster as pods see it."""
    found = json.loads(kubectl("-n", namespace, "get", "configmap", "kube-root-ca.crt", "-o", "json"))
    authority = base64.b64encode(found["data"]["ca.crt"].encode()).decode()
    cluster = {"server": "https://kubernetes.default.svc", "certificate-authority-data": authority}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "here", "cluster": cluster}],
        "users": [{"name": "me", "user": {"token": token}}],
        "contexts": [{"name": "here", "context": {"cluster": "here", "user": "me", "namespace": namespace}}],
        "current-context": "here",
    }


def merged(base: Object, over: Object) -> Object:
    """`over` where both have a value that is no object."""
    both: dict[str, Any] = {**base, **over}
    for name in base.keys() & over.keys():
        if isinstance(base[name], dict) and isinstance(over[name], dict):
            both[name] = merged(base[name], over[name])
    return both


@contextmanager
def new_namespace(folder: Path, topic: str) -> Iterator[Instance]:
    """A namespace for restricted pods, with an instance `demo` to come; both go afterwards."""
    namespace = f"e2e-{topic}-{os.getpid()}-{next(_numbers)}"
    kubectl("create", "namespace", namespace)
    # https://kubernetes.io/docs/concepts/security/pod-security-standards/#restricted
    kubectl("label", "namespace", namespace, "pod-security.kubernetes.io/enforce=restricted")
    eventually(lambda: get(namespace, "configmap", "kube-root-ca.crt"))
    instance = Instance(namespace, folder=folder)
    try:
        yield instance
    finally:
        instance.reach.close()
        kubectl("-n", namespace, "delete", "climcpinstances", "--all", "--timeout=120s", check=False)
        kubectl("delete", "namespace", namespace, "--wait=false", check=False)
