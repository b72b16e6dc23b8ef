"""A namespace for attacks on the admission policies: instances with all that the hooks give them, and nothing
that works on them.

All that carries the API's group and kind is translated on its way to the API server and back, so that an
operator and the policies of the cluster have nothing to do with it.
"""

from __future__ import annotations

import copy
import json
import os
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import yaml

from cli_mcp import names
from cli_mcp.sandbox_config import SandboxConfig
from hooks.preview import preview_settled
from hooks.settings import Settings
from mcp_server.backend import SessionKey
from mcp_server.cluster import writes
from mcp_server.cluster.claiming import on_demand_name
from tests.e2e.kube_client import KubeClient, Reply, eventually
from tests.e2e.operator import CRD_FILE, ROOT, apply, get, kubectl

if TYPE_CHECKING:
    from collections.abc import Mapping

Object = dict[str, Any]

FOLDER = ROOT / "config/admission"
RUN = f"admission-{os.getpid()}"
IMAGE, AGENT = "registry.invalid/tools:1", "registry.invalid/sandbox:1"
NOW = datetime(2026, 1, 1, tzinfo=UTC)
WHO = SessionKey(owner="someone", id="s1")
TRANSLATED = {
    names.GROUP: f"{RUN}.example.com",
    names.KIND: "AdmissionTest",
    names.KIND.lower(): "admissiontest",
}
SESSION = {names.LABEL_SESSION_ID: "s1", names.LABEL_STATE: names.STATE_CLAIMING}
DROPPED = "Impersonate-Extra-Dropped"
# No node has it: pods are objects here, and nothing runs.
NOWHERE = {"example.com/nowhere": "true"}
SECRET_KEY = {"secretKeyRef": {"name": "allowed", "key": "one"}}
SPEC: Object = {
    "sandbox": {
        "image": IMAGE,
        "nodeSelector": NOWHERE,
        "tolerations": [{"key": "team", "operator": "Equal", "value": "a", "effect": "NoSchedule"}],
        "env": [
            {"name": "ONE", "valueFrom": SECRET_KEY},
            {"name": "TWO", "valueFrom": {"configMapKeyRef": {"name": "allowed", "key": "two"}}},
        ],
        "resources": {"limits": {"memory": "1Gi"}},
        "workspace": {"persistent": True, "size": "1Mi"},
    },
    "proxy": {"targets": [{"type": "allowlist", "domains": ["example.com"]}]},
    "ssh": {"routes": [{"username": "a", "authorizedKeysSecret": "keys"}]},
}
PLAIN: Object = {"sandbox": {"nodeSelector": NOWHERE}, "proxy": SPEC["proxy"]}
# As many references as an instance can have: the API server bounds what an expression may cost.
LARGE: Object = copy.deepcopy(PLAIN)
LARGE["sandbox"] |= {
    "env": [
        {"name": f"V{i}", "valueFrom": {"secretKeyRef": {"name": f"{'n' * 60}-{i}", "key": "k" * 60}}}
        for i in range(256)
    ],
    "tolerations": [{"key": f"{'t' * 60}-{i}", "operator": "Exists"} for i in range(64)],
}
# `plain-ssh` has the ServiceAccount that the gateway of `plain` would have.
INSTANCES = {"demo": SPEC, "other": PLAIN, "plain": PLAIN, "plain-ssh": PLAIN, "large": LARGE}


def policies() -> list[Object]:
    """As they are installed."""
    manifests = kubectl("kustomize", str(FOLDER))
    return [it for it in yaml.safe_load_all(manifests) if it]


def of_kind(suffix: str, manifests: list[Object]) -> list[Object]:
    return [it for it in manifests if it["kind"].endswith(suffix)]


def elsewhere(manifest: Any) -> Any:
    """The same with the test's group and kind."""
    return _replaced(manifest, TRANSLATED)


def _replaced(manifest: Any, words: Mapping[str, str]) -> Any:
    text = json.dumps(manifest)
    for word, other in words.items():
        text = text.replace(word, other)
    return json.loads(text)


class Translator(KubeClient):
    """Speaks of the test's group and kind, and is spoken to of the API's."""

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        content_type: str = "application/json",
        manager: str = "twin",
        **query: str,
    ) -> Reply:
        reply = super().request(method, path, elsewhere(body), content_type, manager, **query)
        back = {other: word for word, other in TRANSLATED.items()}
        return Reply(reply.code, _replaced(reply.body, back))


def for_the_test(manifest: Object) -> Object:
    """The policy or binding under another name and for the test's kind; a rule does not count for a request
    whose user has the rule's message as extra `dropped`."""
    made: Object = elsewhere(manifest)
    name = f"{RUN}-{made['metadata']['name']}"
    made["metadata"]["name"] = name
    if "policyName" in made["spec"]:
        made["spec"]["policyName"] = name
    for rule in made["spec"].get("validations", ()):
        message = json.dumps(rule["message"])
        dropped = f"request.userInfo.?extra[?'dropped'].orValue([]).exists(it, it == {message})"
        rule["expression"] = f"{dropped} || ({rule['expression']})"
    return made


def definition() -> Object:
    made: Object = elsewhere(yaml.safe_load(CRD_FILE.read_text()))
    del made["spec"]["names"]["shortNames"]
    return made


@dataclass(frozen=True)
class World:
    """A namespace with instances, whatever the hooks make for them, and no Metacontroller."""

    admin: KubeClient
    configs: dict[str, Object]

    def server(self, account: str = "demo", drop: str = "") -> KubeClient:
        """With the rights of the ServiceAccount cli-mcp-<account>, and without the rule that says `drop`."""
        user = f"system:serviceaccount:{self.admin.namespace}:cli-mcp-{account}"
        headers = ((DROPPED, drop),) if drop else ()
        return Translator(self.admin.url, self.admin.namespace, user, headers)

    def pod(self, instance: str = "demo") -> Object:
        """As a server makes it for a session when there is no warm one."""
        config = SandboxConfig.model_validate(self.configs[instance])
        name = on_demand_name(names.InstanceNames(instance), WHO, ())
        pod = writes.newborn(config, name, self.admin.namespace, WHO, NOW)
        for volume in pod["spec"]["volumes"]:
            if volume["name"] == "workspace" and "persistentVolumeClaim" in volume:
                volume["persistentVolumeClaim"]["claimName"] = name
        return pod

    def workspace(self) -> Object:
        """The claim of that pod."""
        claim: Object = copy.deepcopy(self.configs["demo"]["workspaceClaim"])
        pod = self.pod()["metadata"]
        applied = pod["annotations"][names.ANNOTATION_LAST_APPLIED].replace(
            '"Pod"', '"PersistentVolumeClaim"'
        )
        claim["metadata"] |= {
            "name": pod["name"],
            "labels": claim["metadata"]["labels"] | {names.LABEL_SESSION_ID: WHO.id},
            "annotations": {
                names.ANNOTATION_LAST_APPLIED: applied,
                names.ANNOTATION_LAST_USED: writes.timestamp(NOW),
                names.ANNOTATION_SESSION_OWNER: WHO.owner,
            },
            "ownerReferences": pod["ownerReferences"],
        }
        return claim

    def warm_pod(self, instance: str = "demo", slot: int = 0) -> Object:
        """As Metacontroller makes it."""
        pod = self.pod(instance)
        pod["metadata"]["name"] = f"cli-mcp-{instance}-pool-{slot}"
        pod["metadata"]["annotations"] = {names.ANNOTATION_LAST_APPLIED: "{}"}
        for label in SESSION:
            del pod["metadata"]["labels"][label]
        return pod


def furnished(admin: KubeClient) -> World:
    """The client's namespace with instances, pods of theirs in each state, and a pod of somebody else."""
    eventually(lambda: admin.get("ServiceAccount", "default").code == 200)
    kubectl("wait", "--for=condition=Established", "crd", definition()["metadata"]["name"])
    world = World(admin, {name: install(admin.namespace, name, spec) for name, spec in INSTANCES.items()})
    account = admin.get("ServiceAccount", "default").body["metadata"]
    owner = {"apiVersion": "v1", "kind": "ServiceAccount", "name": "default", "uid": account["uid"]}
    for manifest in (
        world.warm_pod(),
        world.warm_pod("other"),
        world.warm_pod("plain"),
        with_state(world.warm_pod(slot=1), names.STATE_ACTIVE),
        with_state(world.warm_pod(slot=2), names.STATE_RETIRING),
        foreign_pod(),
    ):
        # The real owner is not of the API's group here, and the garbage collector would not find it.
        manifest["metadata"]["ownerReferences"] = [owner]
        manifest["metadata"]["labels"] = manifest["metadata"].get("labels", {}) | {"controller-uid": "none"}
        # The API server may not have heard of the new kind's objects yet.
        eventually(partial(is_created, admin, manifest))
    return world


def is_created(admin: KubeClient, manifest: Object) -> bool:
    return admin.create(manifest).code == 201


def install(namespace: str, name: str, spec: Object) -> Object:
    """The instance, with the rights and the status that hooks would give it; its sandbox.json."""
    metadata = {"name": name, "namespace": namespace}
    instance = {"apiVersion": names.API_VERSION, "kind": names.KIND, "metadata": metadata, "spec": spec}
    apply(elsewhere(instance))
    stored = get(namespace, TRANSLATED[names.KIND], name)
    assert stored is not None
    metadata["uid"] = stored["metadata"]["uid"]
    settings = Settings(image="registry.invalid/cli-mcp:1", sandbox_image=AGENT)
    preview = preview_settled(instance, settings)
    kinds = ("ServiceAccount", "Role", "RoleBinding")
    apply(*(elsewhere(it) for it in preview.children if it["kind"] in kinds))
    patch = ("--subresource=status", "--type=merge", "-p", json.dumps({"status": preview.status}))
    kubectl("-n", namespace, "patch", TRANSLATED[names.KIND], name, *patch)
    configs: list[Object] = [
        json.loads(it["data"][names.SANDBOX_CONFIG_KEY])
        for it in preview.children
        if names.SANDBOX_CONFIG_KEY in (it.get("data") or ())
    ]
    return configs[0]


def with_state(pod: Object, state: str) -> Object:
    pod["metadata"]["labels"] |= {names.LABEL_SESSION_ID: "s0", names.LABEL_STATE: state}
    pod["metadata"]["annotations"] |= {names.ANNOTATION_SESSION_OWNER: "someone"}
    return pod


def foreign_pod(name: str = "database") -> Object:
    """Of somebody else in the same namespace."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"nodeSelector": NOWHERE, "containers": [{"name": "it", "image": IMAGE}]},
    }


def refusal(reply: Reply) -> str:
    return "" if reply.code < 400 else f"{reply.code} {reply.body.get('message')}"
