"""The admission policies on a real API server: what a server that has been taken over asks for, and gets.

Each rule has its attacks, and each attack passes once its rule is dropped: nothing else would have stopped
it. To that end the policies are installed once more, with every rule wrapped so that a request may name one
that does not count for it. All that carries the API's group and kind is translated on its way to the API
server and back, so that an operator and the policies of the cluster have nothing to do with it.
"""

from __future__ import annotations

import copy
import json
import os
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from cli_mcp import names
from cli_mcp.sandbox_config import SandboxConfig
from hooks.preview import preview_settled
from hooks.settings import Settings
from mcp_server.backend import SessionKey
from mcp_server.cluster import writes
from mcp_server.cluster.claiming import on_demand_name
from mcp_server.cluster.pods import SandboxPod, read_pod
from tests.e2e.conftest import in_cluster, skip_without
from tests.e2e.kube_client import KubeClient, Reply, eventually
from tests.e2e.operator import CRD_FILE, ROOT, apply, get, kubectl

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    Edit = Callable[[dict[str, Any]], object]
    Attack = Callable[["World"], Callable[[KubeClient], Reply]]

Object = dict[str, Any]

FOLDER = ROOT / "config/admission"
RUN = f"admission-{os.getpid()}"
IMAGE, AGENT = "registry.invalid/tools:1", "registry.invalid/sandbox:1"
HASH = "0123456789abcdef"
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


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    skip_without(("KUBECONFIG",))
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": RUN, "labels": {"test": RUN}}}
    runtime = {
        "apiVersion": "node.k8s.io/v1",
        "kind": "RuntimeClass",
        "metadata": {"name": RUN},
        "handler": "any",
    }
    made = [namespace, runtime, definition(), *map(for_the_test, policies())]
    try:
        apply(*made)
        with in_cluster() as api:
            yield furnished(Translator(api.url, RUN))
    finally:
        for it in reversed(made):
            kubectl("delete", it["kind"], it["metadata"]["name"], "--wait=false", check=False)


def furnished(admin: KubeClient) -> World:
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
    # Policies take effect a moment after they were stored, each at its own time.
    for rule in FIRST_RULES:
        (attack, *_) = ATTACKS[rule].values()
        eventually(partial(is_refused, world, attack))
    return world


def is_created(admin: KubeClient, manifest: Object) -> bool:
    return admin.create(manifest).code == 201


def is_refused(world: World, attack: Attack) -> bool:
    return attack(world)(world.server()).code == 403


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
        "metadata": {"name": name, "finalizers": []},
        "spec": {"nodeSelector": NOWHERE, "containers": [{"name": "it", "image": IMAGE}]},
    }


def refusal(reply: Reply) -> str:
    return "" if reply.code < 400 else f"{reply.code} {reply.body.get('message')}"


def creating_pod(*edits: Edit, instance: str = "demo") -> Attack:
    """A pod as the server makes it, but for the edits."""

    def attack(world: World) -> Callable[[KubeClient], Reply]:
        pod = world.pod(instance)
        for edit in edits:
            edit(pod)
        return lambda server: server.create(pod, dryRun="All")

    return attack


def creating_workspace(edit: Edit) -> Attack:
    def attack(world: World) -> Callable[[KubeClient], Reply]:
        claim = world.workspace()
        edit(claim)
        return lambda server: server.create(claim, dryRun="All")

    return attack


def patching(name: str, **fields: Any) -> Attack:
    """`fields` of the metadata."""
    return lambda world: lambda server: server.patch("Pod", name, {"metadata": fields}, dryRun="All")


def patching_spec(name: str, **fields: Any) -> Attack:
    kind = "application/strategic-merge-patch+json"
    body = {"spec": fields}
    return lambda world: lambda server: server.patch("Pod", name, body, content_type=kind, dryRun="All")


def deleting(name: str) -> Attack:
    return lambda world: lambda server: server.delete("Pod", name, dryRun="All")


def meta(**fields: Any) -> Edit:
    """Sets fields of the metadata; of labels and annotations those that are named, None takes one away."""

    def edit(manifest: Object) -> None:
        for field, value in fields.items():
            if field in ("labels", "annotations"):
                merged = manifest["metadata"][field] | value
                manifest["metadata"][field] = {key: it for key, it in merged.items() if it is not None}
            else:
                manifest["metadata"][field] = value

    return edit


def renamed(name: str) -> Edit:
    """Consistently, so that only the name itself is wrong."""

    def edit(manifest: Object) -> None:
        annotations = manifest["metadata"]["annotations"]
        applied = annotations[names.ANNOTATION_LAST_APPLIED]
        annotations[names.ANNOTATION_LAST_APPLIED] = applied.replace(manifest["metadata"]["name"], name)
        manifest["metadata"]["name"] = name

    return edit


def of_another_instance(pod: Object) -> None:
    uid = "00000000-0000-0000-0000-000000000000"
    applied = json.loads(pod["metadata"]["annotations"][names.ANNOTATION_LAST_APPLIED])
    applied["metadata"]["labels"]["controller-uid"] = uid
    pod["metadata"]["annotations"][names.ANNOTATION_LAST_APPLIED] = json.dumps(
        applied, separators=(",", ":"), sort_keys=True
    )
    pod["metadata"]["labels"][names.LABEL_CONTROLLER_UID] = uid
    pod["metadata"]["ownerReferences"][0]["uid"] = uid


def spec(**fields: Any) -> Edit:
    return lambda manifest: manifest["spec"].update(fields)


def container(**fields: Any) -> Edit:
    return lambda pod: pod["spec"]["containers"][0].update(fields)


def init_container(**fields: Any) -> Edit:
    return lambda pod: pod["spec"]["initContainers"][0].update(fields)


def container_security(**fields: Any) -> Edit:
    return lambda pod: pod["spec"]["containers"][0]["securityContext"].update(fields)


def pod_security(**fields: Any) -> Edit:
    return lambda pod: pod["spec"]["securityContext"].update(fields)


def variable(**source: Any) -> Edit:
    return lambda pod: pod["spec"]["containers"][0]["env"].append({"name": "STOLEN", "valueFrom": source})


def volume(**source: Any) -> Edit:
    """In place of the one at /tmp."""

    def edit(pod: Object) -> None:
        volumes = pod["spec"]["volumes"]
        volumes[:] = [it for it in volumes if it["name"] != "tmp"] + [{"name": "tmp", **source}]

    return edit


def workspace_volume(claim: str) -> Edit:
    def edit(pod: Object) -> None:
        (found,) = (it for it in pod["spec"]["volumes"] if it["name"] == "workspace")
        found["persistentVolumeClaim"]["claimName"] = claim

    return edit


def limits(**given: str | None) -> Edit:
    def edit(pod: Object) -> None:
        found = pod["spec"]["containers"][0]["resources"]["limits"]
        found.update(given)
        for name in [it for it in found if found[it] is None]:
            del found[name]

    return edit


def second(field: str, **changed: Any) -> Edit:
    """One more container like the first."""
    return lambda pod: pod["spec"][field].append({**pod["spec"][field][0], **changed})


PROJECTED_TOKEN = {"serviceAccountToken": {"path": "token"}}
HTTP = {"port": 8090, "path": "/health", "host": "169.254.169.254"}
ATTACKS: dict[str, dict[str, Attack]] = {
    "only sandboxes of its own instance": {
        "delete somebody's pod": deleting("database"),
        "claim somebody's pod": patching("database", labels=SESSION),
        "claim another instance's pod": patching("cli-mcp-other-pool-0", labels=SESSION),
        "delete another instance's pod": deleting("cli-mcp-other-pool-0"),
        "create for another instance": creating_pod(instance="other"),
        "create what is no sandbox": creating_pod(meta(labels={names.LABEL_COMPONENT: None})),
        "create a server": creating_pod(meta(labels={names.LABEL_COMPONENT: "server"})),
    },
    "the spec of a sandbox never changes": {
        "another image": patching_spec(
            "cli-mcp-demo-pool-0", containers=[{"name": "sandbox", "image": "registry.invalid/evil"}]
        ),
        "a life time": patching_spec("cli-mcp-demo-pool-0", activeDeadlineSeconds=1),
    },
    "of the labels only session-id and state may change": {
        "another pool": patching("cli-mcp-demo-pool-0", labels={names.LABEL_POOL_HASH: "0"}),
        "another instance": patching("cli-mcp-demo-pool-0", labels={names.LABEL_INSTANCE: "other"}),
        "a label of a Service": patching("cli-mcp-demo-pool-0", labels={"app": "database"}),
        "out of the NetworkPolicy": patching("cli-mcp-demo-pool-0", labels={names.LABEL_COMPONENT: None}),
        "unclaimed": patching("cli-mcp-demo-pool-1", labels={names.LABEL_SESSION_ID: None}),
    },
    "of the annotations only those of the session may change": {
        "another network": patching("cli-mcp-demo-pool-0", annotations={"k8s.v1.cni.cncf.io/networks": "x"}),
        "what Metacontroller applies": patching(
            "cli-mcp-demo-pool-0", annotations={names.ANNOTATION_LAST_APPLIED: '{"spec":{}}'}
        ),
        "forgotten by Metacontroller": patching(
            "cli-mcp-demo-pool-0", annotations={names.ANNOTATION_LAST_APPLIED: None}
        ),
    },
    "owner and finalizers of a sandbox never change": {
        "an orphan": patching("cli-mcp-demo-pool-0", ownerReferences=None),
        "never deleted": patching("cli-mcp-demo-pool-0", finalizers=["example.com/for-ever"]),
    },
    "the state goes forward only": {
        "back from retiring": patching("cli-mcp-demo-pool-2", labels={names.LABEL_STATE: "active"}),
        "back to claiming": patching("cli-mcp-demo-pool-1", labels={names.LABEL_STATE: "claiming"}),
        "active without a claim": patching("cli-mcp-demo-pool-0", labels={names.LABEL_STATE: "active"}),
        "an unknown state": patching("cli-mcp-demo-pool-0", labels={names.LABEL_STATE: "mine"}),
    },
    "a sandbox stays with its session and its owner": {
        "another session": patching("cli-mcp-demo-pool-1", labels={names.LABEL_SESSION_ID: "s9"}),
        "another owner": patching("cli-mcp-demo-pool-1", annotations={names.ANNOTATION_SESSION_OWNER: "me"}),
    },
    "a new sandbox is for a session": {
        "named like a pool pod": creating_pod(renamed("cli-mcp-demo-pool-9")),
        "named like something else": creating_pod(renamed("database-1")),
        "without a session": creating_pod(meta(labels={names.LABEL_SESSION_ID: None})),
        "without an owner": creating_pod(meta(annotations={names.ANNOTATION_SESSION_OWNER: None})),
        "active from birth": creating_pod(meta(labels={names.LABEL_STATE: "active"})),
    },
    "a new sandbox has the labels of its template and its session": {
        "a label of a Service": creating_pod(meta(labels={"app": "database"})),
    },
    "a new sandbox has the annotations of its session": {
        "another network": creating_pod(meta(annotations={"k8s.v1.cni.cncf.io/networks": "x"})),
    },
    "last-applied-configuration of a new sandbox": {
        "what Metacontroller applies": creating_pod(
            meta(annotations={names.ANNOTATION_LAST_APPLIED: '{"spec":{"containers":[{"image":"evil"}]}}'})
        ),
    },
    "a new sandbox is owned by its instance alone": {
        "an orphan": creating_pod(meta(ownerReferences=[])),
        "never deleted": creating_pod(meta(finalizers=["example.com/for-ever"])),
    },
    "a sandbox has the ServiceAccount without rights": {
        "the server's": creating_pod(spec(serviceAccountName="cli-mcp-demo")),
        "the namespace's": creating_pod(spec(serviceAccountName="default")),
        "its token": creating_pod(spec(automountServiceAccountToken=True)),
    },
    "a sandbox shares no network, process or IPC namespace": {
        "network": creating_pod(spec(hostNetwork=True)),
        "processes": creating_pod(spec(hostPID=True)),
        "IPC": creating_pod(spec(hostIPC=True)),
        "port": creating_pod(container(ports=[{"containerPort": 8090, "hostPort": 8090}])),
    },
    "the scheduler chooses a sandbox's node": {
        "node": creating_pod(spec(nodeName="node1")),
        "scheduler": creating_pod(spec(schedulerName="mine")),
        "affinity": creating_pod(spec(affinity={"podAntiAffinity": {}})),
        "devices": creating_pod(spec(resourceClaims=[{"name": "gpu", "resourceClaimName": "gpu"}])),
    },
    "a sandbox runs the agent": {
        "another command": creating_pod(container(command=["/bin/sh"])),
        "a second container": creating_pod(second("containers", name="more", ports=[])),
        "a second init container": creating_pod(second("initContainers", name="more")),
        "another init command": creating_pod(init_container(command=["/bin/sh"])),
        "a side car": creating_pod(init_container(restartPolicy="Always")),
        "secrets for the init container": creating_pod(
            init_container(volumeMounts=[{"name": "proxy-ca", "mountPath": "/ca"}])
        ),
    },
    "the containers of a sandbox have no privileges": {
        "privileged": creating_pod(container_security(privileged=True, allowPrivilegeEscalation=True)),
        "setuid": creating_pod(container_security(allowPrivilegeEscalation=True)),
        "a capability more": creating_pod(
            container_security(capabilities={"drop": ["ALL"], "add": ["SYS_PTRACE"]})
        ),
        "all capabilities": creating_pod(container_security(capabilities={})),
        "root": creating_pod(container_security(runAsUser=0)),
        "a writable image": creating_pod(container_security(readOnlyRootFilesystem=False)),
    },
    "a sandbox keeps the node's default profiles": {
        "root": creating_pod(pod_security(runAsUser=0)),
        "may be root": creating_pod(pod_security(runAsNonRoot=False)),
        "system calls": creating_pod(pod_security(seccompProfile={"type": "Unconfined"})),
        "system calls of one container": creating_pod(
            container_security(seccompProfile={"type": "Unconfined"})
        ),
        "AppArmor": creating_pod(container_security(appArmorProfile={"type": "Unconfined"})),
        "SELinux": creating_pod(pod_security(seLinuxOptions={"type": "spc_t"})),
        "the kernel": creating_pod(pod_security(sysctls=[{"name": "kernel.shm_rmid_forced", "value": "1"}])),
    },
    "a sandbox takes no whole Secret or ConfigMap": {
        "a Secret": creating_pod(container(envFrom=[{"secretRef": {"name": "any"}}])),
        "a ConfigMap": creating_pod(container(envFrom=[{"configMapRef": {"name": "any"}}])),
        "for the init container": creating_pod(init_container(envFrom=[{"secretRef": {"name": "any"}}])),
    },
    "the volumes of a sandbox are empty": {
        "a Secret": creating_pod(volume(secret={"secretName": "any"})),
        "the real kubeconfig": creating_pod(volume(secret={"secretName": "cli-mcp-demo-kubeconfig"})),
        "the CA's private key": creating_pod(volume(secret={"secretName": "cli-mcp-demo-proxy-ca"})),
        "the CA's private key by name": creating_pod(
            volume(
                secret={
                    "secretName": "cli-mcp-demo-proxy-ca",
                    "items": [{"key": "ca.crt", "path": "a"}, {"key": "tls.key", "path": "b"}],
                }
            )
        ),
        "another's ConfigMap": creating_pod(volume(configMap={"name": "any"})),
        "a token": creating_pod(volume(projected={"sources": [PROJECTED_TOKEN]})),
        "a projected Secret": creating_pod(volume(projected={"sources": [{"secret": {"name": "any"}}]})),
        "the node": creating_pod(volume(hostPath={"path": "/"})),
        "a driver": creating_pod(volume(csi={"driver": "secrets-store.csi.k8s.io"})),
        "another's volume": creating_pod(workspace_volume("database")),
        "another instance's workspace": creating_pod(workspace_volume("cli-mcp-other-pool-0")),
        "a workspace of demo-s": creating_pod(workspace_volume("cli-mcp-demo-s-pool-0")),
    },
    "the kubelet asks a sandbox's own port": {
        "another host": creating_pod(container(readinessProbe={"httpGet": HTTP})),
        "another port": creating_pod(container(readinessProbe={"httpGet": {"port": 22}})),
        "a liveness probe": creating_pod(container(livenessProbe={"httpGet": HTTP})),
        "a hook": creating_pod(container(lifecycle={"postStart": {"httpGet": HTTP}})),
    },
    "a sandbox ends within 30 s": {
        "an hour": creating_pod(spec(terminationGracePeriodSeconds=3600)),
    },
    "a new sandbox belongs to the instance that is there now": {
        "an instance before it": creating_pod(of_another_instance),
    },
    "a sandbox runs the image of its instance": {
        "another image": creating_pod(container(image="registry.invalid/evil")),
        "another agent": creating_pod(init_container(image="registry.invalid/evil")),
    },
    "a sandbox's environment takes": {
        "a Secret": creating_pod(variable(secretKeyRef={"name": "any", "key": "one"})),
        "the real kubeconfig": creating_pod(
            variable(secretKeyRef={"name": "cli-mcp-demo-kubeconfig", "key": "kubeconfig"})
        ),
        "another key": creating_pod(variable(secretKeyRef={"name": "allowed", "key": "two"})),
        "a ConfigMap": creating_pod(variable(configMapKeyRef={"name": "any", "key": "two"})),
        "for the init container": creating_pod(
            init_container(env=[{"name": "A", "valueFrom": {"secretKeyRef": {"name": "any", "key": "one"}}}])
        ),
    },
    "a sandbox has the runtime class": {
        "another runtime": creating_pod(spec(runtimeClassName=RUN)),
        "another user namespace": creating_pod(spec(hostUsers=True)),
    },
    "a sandbox has the priority class": {
        "the system's": creating_pod(spec(priorityClassName="system-node-critical")),
    },
    "a sandbox runs on the nodes": {
        "all nodes": creating_pod(spec(nodeSelector={})),
        "all taints": creating_pod(spec(tolerations=[{"operator": "Exists"}])),
        "another team's nodes": creating_pod(
            spec(tolerations=[{"key": "team", "operator": "Equal", "value": "b", "effect": "NoSchedule"}])
        ),
    },
    "a sandbox has the limits": {
        "more memory": creating_pod(limits(memory="1100Mi")),
        "more than the default": creating_pod(limits(cpu="501m")),
        "endless memory": creating_pod(limits(memory=None)),
        "a device": creating_pod(limits(**{"example.com/gpu": "1"})),
    },
    "a sandbox tests its isolation": {
        "no test": creating_pod(container(args=["--listen", ":8090"])),
    },
    "a workspace begins empty": {
        "a copy of another": creating_workspace(
            spec(dataSource={"kind": "PersistentVolumeClaim", "name": "database"})
        ),
    },
    "a workspace is a new volume": {
        "another's volume": creating_workspace(spec(volumeName="pv-of-the-database")),
        "chosen by label": creating_workspace(spec(selector={"matchLabels": {"app": "database"}})),
    },
    "a workspace is a file system": {
        "for all nodes": creating_workspace(spec(accessModes=["ReadWriteMany"])),
        "a device": creating_workspace(spec(volumeMode="Block")),
    },
}
# One of each policy.
FIRST_RULES = (
    "only sandboxes of its own instance",
    "a sandbox shares no network, process or IPC namespace",
    "a sandbox runs the image of its instance",
    "a workspace begins empty",
)
# The API server adds the token's volume, which another rule refuses too; and a session must not be forgotten.
SEVERAL_RULES = {"its token", "unclaimed"}
CASES = [
    pytest.param(rule, attack, name not in SEVERAL_RULES, id=f"{rule[:50]}: {name}")
    for rule, attacks in ATTACKS.items()
    for name, attack in attacks.items()
]


def message_of(beginning: str) -> str:
    (found,) = (
        rule["message"]
        for policy in of_kind("Policy", policies())
        for rule in policy["spec"]["validations"]
        if rule["message"].startswith(beginning)
    )
    return str(found)


@pytest.mark.parametrize(("rule", "attack", "is_alone"), CASES)
def test_an_attack_is_refused_by_its_rule_and_by_no_other(
    world: World, rule: str, attack: Attack, is_alone: bool
) -> None:
    message = message_of(rule)
    request = attack(world)
    refused = request(world.server())
    assert refused.code == 403, refused.body
    assert message in refused.body["message"]
    if is_alone:
        assert refusal(request(world.server(drop=message))) == ""


def test_every_rule_has_an_attack_and_every_policy_the_same_condition_on_who_asks() -> None:
    installed = of_kind("Policy", policies())
    messages = [rule["message"] for it in installed for rule in it["spec"]["validations"]]
    assert sorted(messages) == sorted(map(message_of, ATTACKS))
    assert len({it["spec"]["matchConditions"][0]["expression"] for it in installed}) == 1
    assert {it["spec"]["failurePolicy"] for it in installed} == {"Fail"}
    bindings = of_kind("Binding", policies())
    assert [it["spec"]["policyName"] for it in bindings] == [it["metadata"]["name"] for it in installed]
    assert all(it["spec"]["validationActions"] == ["Deny"] for it in bindings)


@pytest.mark.parametrize("name", ["sandboxes", "sandbox-pods", "sandbox-class", "workspaces"])
def test_the_api_server_finds_no_fault_with_the_expressions(world: World, name: str) -> None:
    (policy,) = (it for it in of_kind("Policy", policies()) if it["metadata"]["name"] == f"cli-mcp-{name}")
    # It looks once, at a new policy, and may not have heard of a new CRD yet.
    eventually(lambda: warnings(policy) == {}, 120)


def warnings(policy: Object) -> Object:
    """What the API server says of the policy, here without a binding."""
    name = f"{RUN}-checked"
    apply(elsewhere({**policy, "metadata": {"name": name}}))
    try:
        eventually(lambda: "typeChecking" in status_of(name))
        found: Object = status_of(name)["typeChecking"]
        return found
    finally:
        kubectl("delete", "validatingadmissionpolicy", name)


def status_of(policy: str) -> Object:
    found = get("default", "validatingadmissionpolicy", policy)
    assert found is not None
    status: Object = found.get("status", {})
    return status


SERVERS = ("demo", "demo-ssh")


@pytest.mark.parametrize("account", SERVERS)
@pytest.mark.parametrize(
    "request_",
    [
        creating_pod(),
        creating_workspace(lambda claim: None),
        # A session that resumes: its pod is new, its workspace that of a pool slot.
        creating_pod(workspace_volume("cli-mcp-demo-pool-7")),
        creating_pod(lambda pod: pod["metadata"]["annotations"].pop(names.ANNOTATION_LAST_APPLIED)),
        deleting("cli-mcp-demo-pool-2"),
        # Less than the instance grants is no attack.
        creating_pod(limits(memory="512Mi", cpu="100m")),
    ],
    ids=["create", "workspace", "resume", "unapplied", "delete", "less"],
)
def test_what_a_server_and_a_gateway_do_passes(world: World, account: str, request_: Attack) -> None:
    assert refusal(request_(world)(world.server(account))) == ""


@pytest.mark.parametrize("account", SERVERS)
def test_a_session_lives_from_its_claim_to_its_end(world: World, account: str) -> None:
    """For real: the API server keeps every step, and the next is judged by it."""
    server, name = world.server(account), "cli-mcp-demo-pool-5"
    pod = world.warm_pod(slot=5)
    del pod["metadata"]["ownerReferences"]
    assert refusal(world.admin.create(pod)) == ""
    for write in (
        lambda pod: writes.claim(pod, WHO, NOW),
        lambda pod: writes.activate(pod, NOW),
        lambda pod: writes.stamp(pod, datetime.now(UTC)),
        lambda pod: writes.started(pod, NOW),
        lambda pod: writes.retire(pod, "DELETE"),
    ):
        eventually(partial(written, server, name, write))
    back = {"metadata": {"labels": {names.LABEL_STATE: names.STATE_ACTIVE}}}
    assert server.patch("Pod", name, back).code == 403
    uid = server.get("Pod", name).body["metadata"]["uid"]
    assert refusal(server.delete("Pod", name, {"preconditions": {"uid": uid}, "gracePeriodSeconds": 0})) == ""


def written(server: KubeClient, name: str, write: Callable[[SandboxPod], Object]) -> bool:
    """False when somebody else, the scheduler say, wrote in between."""
    reply = server.patch("Pod", name, write(read_pod(server.get("Pod", name).body)))
    assert reply.code in (200, 409), reply.body
    return reply.code == 200


def test_an_instance_with_all_that_it_may_have_is_within_the_api_servers_budget(world: World) -> None:
    assert refusal(creating_pod(instance="large")(world)(world.server("large"))) == ""
    stolen = creating_pod(variable(secretKeyRef={"name": "any", "key": "one"}), instance="large")
    assert "spec.sandbox.env" in refusal(stolen(world)(world.server("large")))


def test_a_shared_name_of_two_service_accounts_gives_nobody_the_others_sandboxes(world: World) -> None:
    """cli-mcp-plain-ssh is the server of plain-ssh and would be the gateway of plain, which has none."""
    server = world.server("plain-ssh")
    assert refusal(creating_pod(instance="plain-ssh")(world)(server)) == ""
    assert "its own instance" in refusal(creating_pod(instance="plain")(world)(server))
    assert "its own instance" in refusal(deleting("cli-mcp-plain-pool-0")(world)(server))
    assert "its own instance" in refusal(creating_pod(instance="plain-ssh")(world)(world.server("plain")))


BYSTANDERS = {
    "the namespace's operator": "cli-mcp-operator",
    "a gateway that is none": "cli-mcp-other-ssh",
    "a person": "alice",
}


@pytest.mark.parametrize("user", BYSTANDERS.values(), ids=BYSTANDERS)
def test_nobody_else_is_affected(world: World, user: str) -> None:
    namespace = world.admin.namespace
    full = user if user == "alice" else f"system:serviceaccount:{namespace}:{user}"
    edits(namespace, full)
    client = world.admin.as_user(full)
    eventually(lambda: client.get("Pod", "database").code == 200)
    assert refusal(client.create(foreign_pod("anything"), dryRun="All")) == ""
    assert refusal(patching("cli-mcp-demo-pool-0", labels={"app": "database"})(world)(client)) == ""
    assert refusal(deleting("database")(world)(client)) == ""


def test_metacontroller_makes_marks_and_deletes_what_the_hooks_say(world: World) -> None:
    user = "system:serviceaccount:cli-mcp-system:metacontroller"
    edits(world.admin.namespace, user)
    client = world.admin.as_user(user)
    eventually(lambda: client.get("Pod", "database").code == 200)
    assert refusal(client.create(world.warm_pod(slot=9), dryRun="All")) == ""
    observed = client.get("Pod", "cli-mcp-demo-pool-0").body
    observed["metadata"]["labels"][names.LABEL_STATE] = names.STATE_RETIRING
    observed["metadata"]["annotations"][names.ANNOTATION_LAST_APPLIED] = "{}"
    assert refusal(client.put(observed, dryRun="All")) == ""
    assert refusal(deleting("cli-mcp-demo-pool-0")(world)(client)) == ""


def edits(namespace: str, user: str) -> None:
    """Gives the user what Kubernetes' own role `edit` has."""
    name = user.replace(":", "-")
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "edit"}
    subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}
    apply(
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": {"name": name, "namespace": namespace},
            "roleRef": role,
            "subjects": [subject],
        }
    )


def test_without_an_instance_no_sandbox_is_made_and_all_else_goes_on(world: World) -> None:
    namespace = f"{RUN}-empty"
    apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
    try:
        empty = World(Translator(world.admin.url, namespace), world.configs)
        eventually(lambda: empty.admin.get("ServiceAccount", "default").code == 200)
        kinds = ("serviceaccount", "role", "rolebinding")
        left = [get(world.admin.namespace, kind, "cli-mcp-demo") for kind in kinds]
        left.append(get(world.admin.namespace, "serviceaccount", "cli-mcp-demo-sandbox"))
        for it in left:
            assert it is not None
            it["metadata"] = {"name": it["metadata"]["name"], "namespace": namespace}
            for subject in it.get("subjects", ()):
                subject["namespace"] = namespace
            apply(it)
        pod = empty.pod()
        pod["metadata"]["namespace"] = namespace
        eventually(lambda: "no params found" in refusal(empty.server().create(pod, dryRun="All")))
        assert refusal(empty.admin.create(foreign_pod(), dryRun="All")) == ""
    finally:
        kubectl("delete", "namespace", namespace, "--wait=false", check=False)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "secrets"),
        ("GET", "secrets/cli-mcp-demo-session-key"),
        ("GET", "configmaps/cli-mcp-demo-proxy"),
        ("POST", "pods/cli-mcp-demo-pool-0/exec"),
        ("PATCH", "pods/cli-mcp-demo-pool-0/ephemeralcontainers"),
        ("PATCH", "pods/cli-mcp-demo-pool-0/status"),
        ("PATCH", "pods/cli-mcp-demo-pool-0/resize"),
        ("POST", "pods/cli-mcp-demo-pool-0/binding"),
        ("POST", "pods/cli-mcp-demo-pool-0/eviction"),
        ("PUT", "pods/cli-mcp-demo-pool-0"),
        ("DELETE", "pods"),
        ("DELETE", "persistentvolumeclaims/cli-mcp-demo-pool-0"),
        ("POST", "serviceaccounts/cli-mcp-demo-sandbox/token"),
    ],
)
def test_the_role_of_a_server_gives_none_of_this(world: World, method: str, path: str) -> None:
    where = f"/api/v1/namespaces/{world.admin.namespace}/{path}"
    kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
    reply = world.server().request(method, where, {} if method != "GET" else None, kind)
    assert reply.code == 403
    assert "ValidatingAdmissionPolicy" not in reply.body["message"]
