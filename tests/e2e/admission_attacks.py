"""What a server that has been taken over asks for: for each rule of the admission policies, named by how its
message begins, requests that break this rule alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from cli_mcp import names
from tests.e2e.admission_world import RUN, SESSION, Object, World
from tests.e2e.kube_client import KubeClient, Reply

Edit = Callable[[Object], object]
Attack = Callable[[World], Callable[[KubeClient], Reply]]
"""Makes the request ready, then sends it as whichever client."""


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
