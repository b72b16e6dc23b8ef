"""What the API server does: the same tests against the one in memory and, with KUBECONFIG, a real one.

Where the two differ, the one in memory is wrong.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
import requests

from tests.e2e.kube_client import KubeClient, Reply, eventually
from tests.kube import patch as patches
from tests.kube.api import Api
from tests.kube.objects import copy_json
from tests.kube.server import COMPRESSED_FROM_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.e2e.conftest import ApiServer
    from tests.kube.objects import Object

OK = (200, "")
CREATED = (201, "")
CONFLICT = (409, "Conflict")
INVALID = (422, "Invalid")
NOT_FOUND = (404, "NotFound")
BAD_REQUEST = (400, "BadRequest")
FORBIDDEN = (403, "Forbidden")
ANOTHER_UID = "00000000-0000-0000-0000-000000000000"
RBAC_GROUP = "rbac.authorization.k8s.io"


def config_map(name: str = "c", **fields: Any) -> Object:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"k": "v"}, **fields}


def widget(name: str = "w", **spec: Any) -> Object:
    return {"apiVersion": "twin.example.com/v1", "kind": "Widget", "metadata": {"name": name}, "spec": spec}


def pod(name: str = "p", labels: dict[str, str] | None = None, **spec: Any) -> Object:
    container = {"name": "main", "image": "registry.invalid/pause:3.9", "imagePullPolicy": "Never"}
    metadata = {"name": name, "labels": labels or {}}
    # No scheduler of this name exists, so nothing happens to the pod unless a test does it.
    content = {"schedulerName": "nobody", "containers": [container], **spec}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": content}


def made(reply: Reply) -> Object:
    assert reply.code in (200, 201), reply.body
    return reply.body


# --- answers ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("characters", "accepted", "encoding"),
    [
        (COMPRESSED_FROM_BYTES, "gzip", "gzip"),
        (COMPRESSED_FROM_BYTES, "identity", None),
        (COMPRESSED_FROM_BYTES // 2, "gzip", None),
    ],
)
def test_long_answers_are_compressed_for_whoever_takes_that(
    kube: KubeClient, characters: int, accepted: str, encoding: str | None
) -> None:
    made(kube.create(config_map(data={"k": "x" * characters})))
    url = kube.url + kube.path("ConfigMap", "c")
    answer = requests.get(url, headers={"Accept-Encoding": accepted}, timeout=30)
    assert answer.headers.get("Content-Encoding") == encoding
    assert len(answer.json()["data"]["k"]) == characters


# --- creation ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("obj", "generation"),
    [
        (config_map(), None),
        (pod(), 1),
        (widget(), 1),
        ({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "spec": {"podSelector": {}}}, 1),
        ({"apiVersion": "v1", "kind": "Service", "spec": {"ports": [{"port": 80}]}}, None),
        ({"apiVersion": f"{RBAC_GROUP}/v1", "kind": "Role", "rules": []}, None),
    ],
    ids=lambda it: it["kind"] if isinstance(it, dict) else str(it),
)
def test_a_new_object_gets_its_system_metadata(kube: KubeClient, obj: Object, generation: int | None) -> None:
    obj = {**obj, "metadata": {"name": "new", **obj.get("metadata", {})}}
    metadata = made(kube.create(obj))["metadata"]
    assert metadata["uid"]
    assert int(metadata["resourceVersion"])
    assert metadata["creationTimestamp"].endswith("Z")
    assert metadata.get("generation") == generation


def test_a_generated_name_is_the_prefix_and_five_characters(kube: KubeClient) -> None:
    obj = config_map()
    obj["metadata"] = {"generateName": "g-"}
    name = made(kube.create(obj))["metadata"]["name"]
    assert name.startswith("g-")
    assert len(name) == 7


def in_namespace(obj: Object, namespace: str) -> Object:
    return {**obj, "metadata": {**obj["metadata"], "namespace": namespace}}


REFUSED_CREATIONS: dict[str, tuple[Object, tuple[int, str]]] = {
    "upper case name": (config_map("Bad"), INVALID),
    "name with underscore": (config_map("a_b"), INVALID),
    "no name": ({**config_map(), "metadata": {}}, INVALID),
    "no such namespace": (in_namespace(config_map(), "no-such-namespace"), NOT_FOUND),
    "label value with a space": (
        {**config_map(), "metadata": {"name": "c", "labels": {"a": "b c"}}},
        INVALID,
    ),
    "label key with two slashes": (
        {**config_map(), "metadata": {"name": "c", "labels": {"a/b/c": "d"}}},
        INVALID,
    ),
    "data key with a slash": (config_map(data={"a/b": "c"}), INVALID),
    "pod without containers": ({**pod(), "spec": {}}, INVALID),
    "pod with two containers of a name": (
        pod(containers=[{"name": "a", "image": "i"}, {"name": "a", "image": "i"}]),
        INVALID,
    ),
    "pod with a mount of no volume": (
        pod(containers=[{"name": "a", "image": "i", "volumeMounts": [{"name": "v", "mountPath": "/v"}]}]),
        INVALID,
    ),
    "pod of an unknown service account": (pod(serviceAccountName="nobody"), FORBIDDEN),
    "service with a port twice": (
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "s"},
            "spec": {"ports": [{"name": "a", "port": 80}, {"name": "b", "port": 80}]},
        },
        INVALID,
    ),
    "widget below its minimum": (widget(size=0), INVALID),
    "widget above its maximum": (widget(size=10), INVALID),
    "widget of a wrong type": (widget(size="1"), INVALID),
    "widget outside its enum": (widget(color="green"), INVALID),
    "widget against its pattern": (widget(code="A"), INVALID),
    "widget longer than allowed": (widget(code="abcdef"), INVALID),
    "widget with too many parts": (widget(parts=[{"name": it} for it in "abc"]), INVALID),
    "widget with a part twice": (widget(parts=[{"name": "a"}, {"name": "a"}]), INVALID),
    "widget with a nameless part": (widget(parts=[{}]), INVALID),
}


@pytest.mark.parametrize(("obj", "outcome"), REFUSED_CREATIONS.values(), ids=REFUSED_CREATIONS)
def test_what_is_refused_at_creation(kube: KubeClient, obj: Object, outcome: tuple[int, str]) -> None:
    assert kube.create(obj).outcome == outcome


def test_a_name_is_taken_once(kube: KubeClient) -> None:
    made(kube.create(config_map()))
    assert kube.create(config_map()).outcome == (409, "AlreadyExists")


def test_an_unknown_resource_is_404(kube: KubeClient) -> None:
    assert kube.request("GET", f"/api/v1/namespaces/{kube.namespace}/gadgets").code == 404
    assert kube.get("ConfigMap", "none").outcome == NOT_FOUND


def test_a_custom_resource_is_pruned_and_defaulted(kube: KubeClient) -> None:
    obj = widget(unknown=1, color=None, parts=[{"name": "a", "odd": 1}], free={"any": {"thing": 1}})
    stored = made(kube.create(obj))
    assert stored["spec"] == {"size": 1, "parts": [{"name": "a", "weight": 5}], "free": {"any": {"thing": 1}}}


def test_the_status_of_a_new_object_is_dropped(kube: KubeClient) -> None:
    assert "status" not in made(kube.create({**widget(), "status": {"x": 1}}))
    assert made(kube.create({**pod(), "status": {"phase": "Running"}}))["status"]["phase"] == "Pending"


def test_a_dry_run_stores_nothing(kube: KubeClient) -> None:
    assert kube.create(config_map(), dryRun="All").outcome == CREATED
    assert kube.get("ConfigMap", "c").outcome == NOT_FOUND


# --- the form in which templates are stored ---------------------------------------------------------------

PROBE = {"httpGet": {"path": "/health", "port": 8090}}
DEPLOYMENT_SPEC: Object = {
    "selector": {"matchLabels": {"a": "b"}},
    "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i:1"}]}},
}


def container(**fields: Any) -> Object:
    return {"name": "main", "image": "registry.invalid/pause:3.9", **fields}


TEMPLATES: dict[str, Object] = {
    "small pod": pod(),
    "pod with an untagged image": pod(containers=[{"name": "a", "image": "pause"}]),
    "pod with a latest image": pod(containers=[{"name": "a", "image": "host:5000/pause:latest"}]),
    "pod with a digest": pod(containers=[{"name": "a", "image": "pause@sha256:" + "a" * 64}]),
    "pod with resources": pod(
        containers=[
            container(resources={"limits": {"cpu": "1000m", "memory": "1024Mi", "ephemeral-storage": "10Gi"}})
        ]
    ),
    "pod with odd quantities": pod(
        containers=[
            container(resources={"requests": {"cpu": 0.5, "memory": "1.5Gi", "ephemeral-storage": "1e3"}})
        ]
    ),
    "pod with probes": pod(
        containers=[
            container(
                readinessProbe=PROBE,
                livenessProbe={"tcpSocket": {"port": 80}},
                startupProbe={"exec": {"command": ["x"]}, "initialDelaySeconds": 0, "failureThreshold": 30},
                lifecycle={"preStop": {"sleep": {"seconds": 5}}},
            )
        ]
    ),
    "pod with ports and env": pod(
        containers=[
            container(
                ports=[{"containerPort": 8080}, {"containerPort": 53, "protocol": "UDP", "name": "dns"}],
                env=[
                    {"name": "A", "value": ""},
                    {"name": "B", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}},
                    {
                        "name": "C",
                        "valueFrom": {"secretKeyRef": {"name": "s", "key": "k", "optional": False}},
                    },
                ],
                args=[],
                command=["a"],
            )
        ]
    ),
    "pod with volumes": pod(
        volumes=[
            {"name": "a", "emptyDir": {}},
            {"name": "b", "emptyDir": {"medium": "Memory", "sizeLimit": "1024Mi"}},
            {"name": "c", "configMap": {"name": "x", "items": [{"key": "k", "path": "p"}]}},
            {"name": "d", "secret": {"secretName": "x", "optional": True}},
            {
                "name": "e",
                "projected": {"sources": [{"serviceAccountToken": {"path": "t", "audience": "x"}}]},
            },
            {
                "name": "f",
                "downwardAPI": {"items": [{"path": "l", "fieldRef": {"fieldPath": "metadata.labels"}}]},
            },
        ],
        containers=[
            container(volumeMounts=[{"name": "a", "mountPath": "/a", "readOnly": False, "subPath": "s"}])
        ],
    ),
    "hardened pod": pod(
        automountServiceAccountToken=False,
        enableServiceLinks=False,
        hostNetwork=False,
        dnsPolicy="None",
        dnsConfig={"nameservers": ["127.0.0.1"]},
        hostAliases=[{"ip": "10.0.0.1", "hostnames": ["proxy"]}],
        terminationGracePeriodSeconds=5,
        securityContext={
            "runAsNonRoot": True,
            "runAsUser": 1000,
            "runAsGroup": 1000,
            "fsGroup": 1000,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        initContainers=[container(name="init")],
        containers=[
            container(
                securityContext={
                    "allowPrivilegeEscalation": False,
                    "readOnlyRootFilesystem": True,
                    "privileged": False,
                    "capabilities": {"drop": ["ALL"]},
                },
                resources={},
            )
        ],
        tolerations=[{"key": "a", "operator": "Exists"}],
        nodeSelector={},
    ),
    "pod that tolerates everything": pod(tolerations=[{"operator": "Exists"}]),
    "deployment": {"apiVersion": "apps/v1", "kind": "Deployment", "spec": DEPLOYMENT_SPEC},
    "deployment with a strategy": {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "spec": {
            **DEPLOYMENT_SPEC,
            "replicas": 0,
            "minReadySeconds": 0,
            "revisionHistoryLimit": 0,
            "strategy": {"rollingUpdate": {"maxUnavailable": 0}},
        },
    },
    "deployment that recreates": {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "spec": {
            **DEPLOYMENT_SPEC,
            "strategy": {"type": "Recreate"},
            "template": {
                "metadata": {"labels": {"a": "b"}, "annotations": {}},
                "spec": {
                    "serviceAccountName": "s",
                    "containers": [container()],
                    "topologySpreadConstraints": [
                        {
                            "maxSkew": 1,
                            "topologyKey": "kubernetes.io/hostname",
                            "whenUnsatisfiable": "ScheduleAnyway",
                            "labelSelector": {"matchLabels": {"a": "b"}},
                        }
                    ],
                },
            },
        },
    },
    "policy that denies all": {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "spec": {"podSelector": {}, "policyTypes": ["Ingress", "Egress"], "ingress": [], "egress": []},
    },
    "policy with rules": {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "spec": {
            "podSelector": {"matchLabels": {"a": "b"}},
            "ingress": [{}],
            "egress": [
                {
                    "to": [
                        {"namespaceSelector": {}, "podSelector": {"matchLabels": {"k8s-app": "kube-dns"}}},
                        {"ipBlock": {"cidr": "169.254.20.10/32"}},
                    ],
                    "ports": [{"port": 53, "protocol": "UDP"}, {"port": 53}],
                }
            ],
        },
    },
    "policy for ingress only": {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "spec": {
            "podSelector": {},
            "ingress": [{"from": [{"podSelector": {}}], "ports": [{"port": "http"}]}],
        },
    },
    "secret": {"apiVersion": "v1", "kind": "Secret", "data": {"k": "dg=="}, "stringData": {"j": "w"}},
    "secret without data": {"apiVersion": "v1", "kind": "Secret", "type": "Opaque", "data": {}},
    "config map": config_map(data={"k": "", "j": "v"}),
    "config map without data": config_map(data={}),
    "service account": {"apiVersion": "v1", "kind": "ServiceAccount", "automountServiceAccountToken": False},
    "role": {
        "apiVersion": f"{RBAC_GROUP}/v1",
        "kind": "Role",
        "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"], "resourceNames": []}],
    },
    "role without rules": {"apiVersion": f"{RBAC_GROUP}/v1", "kind": "Role", "rules": []},
    "role binding": {
        "apiVersion": f"{RBAC_GROUP}/v1",
        "kind": "RoleBinding",
        "roleRef": {"kind": "Role", "name": "r"},
        "subjects": [
            {"kind": "ServiceAccount", "name": "s", "namespace": "default", "apiGroup": ""},
            {"kind": "User", "name": "u"},
        ],
    },
    "disruption budget": {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "spec": {"maxUnavailable": 1, "selector": {"matchLabels": {"a": "b"}}},
    },
    "volume claim": {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": "standard",
            "resources": {"requests": {"storage": "1024Mi"}},
        },
    },
}


@pytest.mark.parametrize("template", TEMPLATES.values(), ids=TEMPLATES)
def test_a_template_is_stored_in_the_form_that_the_store_in_memory_predicts(
    kube: KubeClient, template: Object
) -> None:
    template = {**template, "metadata": {"name": "x", **template.get("metadata", {})}}
    api = Api()
    predicted = api.create({**template, "metadata": {**template["metadata"], "namespace": "default"}})
    stored = made(kube.create(template))
    assert comparable(stored) == comparable(predicted)
    assert stored["metadata"].get("generation") == predicted["metadata"].get("generation")
    assert stored["metadata"].get("labels") == predicted["metadata"].get("labels")


def test_a_service_is_stored_in_the_form_that_the_store_in_memory_predicts(kube: KubeClient) -> None:
    services: list[Object] = [
        {"ports": [{"port": 80}]},
        {"ports": [{"port": 80, "targetPort": "http", "name": "a"}], "selector": {"a": "b"}},
        {"ports": [{"port": 80, "protocol": "TCP"}], "type": "NodePort"},
        {"ports": [{"port": 80}], "clusterIP": "None", "publishNotReadyAddresses": False},
        {"ports": [{"port": 80}], "clusterIP": "None", "selector": {"a": "b"}},
    ]
    for number, spec in enumerate(services):
        obj: Object = {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": f"s{number}"},
            "spec": spec,
        }
        predicted = Api().create({**obj, "metadata": {"name": "s", "namespace": "default"}})
        assert comparable(made(kube.create(obj))) == comparable(predicted)


def test_an_address_can_be_asked_for_until_somebody_has_it(kube: KubeClient) -> None:
    def service(name: str, **spec: str) -> Object:
        content = {"ports": [{"port": 80}], **spec}
        return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": content}

    address = made(kube.create(service("first")))["spec"]["clusterIP"]
    assert kube.create(service("second", clusterIP=address)).code == 422
    assert kube.delete("Service", "first").code == 200
    assert made(kube.create(service("third", clusterIP=address)))["spec"]["clusterIP"] == address


def comparable(obj: Object) -> Object:
    """Without metadata and status, and with random names and addresses made equal."""
    content = {key: copy_json(value) for key, value in obj.items() if key not in ("metadata", "status")}
    spec = content.get("spec", {})
    mounts = [
        it
        for each in spec.get("containers", []) + spec.get("initContainers", [])
        for it in each.get("volumeMounts", [])
    ]
    for named in (*spec.get("volumes", ()), *mounts):
        if named["name"].startswith("kube-api-access-"):
            named["name"] = "kube-api-access-"
    for field in ("clusterIP", "clusterIPs"):
        if field in spec and spec.get("clusterIP") != "None":
            spec[field] = "some address"
    for port in spec.get("ports", ()):
        if "nodePort" in port:
            port["nodePort"] = 30000
    return content


# --- compare and swap -------------------------------------------------------------------------------------


@pytest.mark.parametrize("obj", [config_map(), widget(), pod()], ids=lambda it: it["kind"])
def test_a_put_of_an_older_state_is_a_conflict(kube: KubeClient, obj: Object) -> None:
    old = made(kube.create(obj))
    new = made(kube.patch(obj["kind"], obj["metadata"]["name"], {"metadata": {"labels": {"x": "y"}}}))
    assert int(new["metadata"]["resourceVersion"]) > int(old["metadata"]["resourceVersion"])
    assert kube.put(old).outcome == CONFLICT
    assert kube.put(new).outcome == OK


@pytest.mark.parametrize(
    ("obj", "outcome"), [(config_map(), OK), (widget(), INVALID)], ids=["ConfigMap", "Widget"]
)
def test_a_put_without_a_revision(kube: KubeClient, obj: Object, outcome: tuple[int, str]) -> None:
    made(kube.create(obj))
    assert kube.put(obj).outcome == outcome


@pytest.mark.parametrize("content_type", [patches.MERGE, patches.STRATEGIC])
def test_a_patch_with_revision_and_uid_is_a_compare_and_swap(kube: KubeClient, content_type: str) -> None:
    first = made(kube.create(pod()))["metadata"]

    def claim(session: str, revision: str, uid: str) -> tuple[int, str]:
        metadata = {"labels": {"session-id": session}, "resourceVersion": revision, "uid": uid}
        return kube.patch("Pod", "p", {"metadata": metadata}, content_type=content_type).outcome

    assert claim("a", first["resourceVersion"], ANOTHER_UID) == INVALID
    assert claim("a", first["resourceVersion"], first["uid"]) == OK
    assert claim("b", first["resourceVersion"], first["uid"]) == CONFLICT
    assert claim("b", first["resourceVersion"], ANOTHER_UID) == CONFLICT
    assert kube.get("Pod", "p").body["metadata"]["labels"] == {"session-id": "a"}


def test_a_put_of_another_uid_is_a_conflict(kube: KubeClient) -> None:
    stored = made(kube.create(config_map()))
    stored["metadata"]["uid"] = ANOTHER_UID
    assert kube.put(stored).outcome == CONFLICT


def test_a_write_that_changes_nothing_gets_no_new_revision(kube: KubeClient) -> None:
    stored = made(kube.create(pod(labels={"a": "b"})))
    assert made(kube.put(stored))["metadata"]["resourceVersion"] == stored["metadata"]["resourceVersion"]
    same = made(kube.patch("Pod", "p", {"metadata": {"labels": {"a": "b"}}}))
    assert same["metadata"]["resourceVersion"] == stored["metadata"]["resourceVersion"]


def test_a_put_to_what_does_not_exist_is_404(kube: KubeClient) -> None:
    assert kube.put(config_map()).outcome == NOT_FOUND
    assert kube.patch("ConfigMap", "c", {}).outcome == NOT_FOUND


# --- patches ----------------------------------------------------------------------------------------------


PATCHES: dict[str, tuple[Object, str, Any, tuple[int, str]]] = {
    "null removes": (config_map(), patches.MERGE, {"data": {"k": None}}, OK),
    "failing test": (config_map(), patches.JSON, [{"op": "test", "path": "/data/k", "value": "x"}], INVALID),
    "passing test": (config_map(), patches.JSON, [{"op": "test", "path": "/data/k", "value": "v"}], OK),
    "missing path": (config_map(), patches.JSON, [{"op": "remove", "path": "/data/none"}], INVALID),
    "no such type": (config_map(), "text/plain", {}, (415, "UnsupportedMediaType")),
    "strategic on custom": (widget(), patches.STRATEGIC, {}, (415, "UnsupportedMediaType")),
    "not a patch": (config_map(), patches.MERGE, [], BAD_REQUEST),
    "not operations": (config_map(), patches.JSON, {}, BAD_REQUEST),
}


@pytest.mark.parametrize(("obj", "content_type", "body", "outcome"), PATCHES.values(), ids=PATCHES)
def test_patches(
    kube: KubeClient, obj: Object, content_type: str, body: Any, outcome: tuple[int, str]
) -> None:
    made(kube.create(obj))
    assert (
        kube.patch(obj["kind"], obj["metadata"]["name"], body, content_type=content_type).outcome == outcome
    )


def test_json_patch_applies_all_operations_or_none(kube: KubeClient) -> None:
    made(kube.create(config_map(data={"a": "1"})))
    good = [
        {"op": "add", "path": "/data/b", "value": "2"},
        {"op": "copy", "from": "/data/a", "path": "/data/c~1d"},
        {"op": "move", "from": "/data/a", "path": "/data/e"},
        {"op": "replace", "path": "/data/b", "value": "3"},
    ]
    bad = [{"op": "add", "path": "/data/z", "value": "1"}, {"op": "test", "path": "/data/z", "value": "2"}]
    assert (
        kube.patch("ConfigMap", "c", good, content_type=patches.JSON).outcome == INVALID
    )  # c/d is no data key
    assert kube.patch("ConfigMap", "c", bad, content_type=patches.JSON).outcome == INVALID
    del good[1]
    assert made(kube.patch("ConfigMap", "c", good, content_type=patches.JSON))["data"] == {"b": "3", "e": "1"}


def test_a_strategic_patch_merges_lists_by_key_and_a_merge_patch_replaces_them(kube: KubeClient) -> None:
    spec = {**DEPLOYMENT_SPEC, "replicas": 0}
    made(
        kube.create({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}, "spec": spec})
    )
    more = {"spec": {"template": {"spec": {"containers": [{"name": "other", "image": "i:2"}]}}}}

    def names(reply: Reply) -> list[str]:
        return sorted(it["name"] for it in made(reply)["spec"]["template"]["spec"]["containers"])

    assert names(kube.patch("Deployment", "d", more, content_type=patches.STRATEGIC)) == ["c", "other"]
    assert names(kube.patch("Deployment", "d", more)) == ["other"]


def test_a_server_side_apply_creates_and_updates(kube: KubeClient) -> None:
    for value in ("1", "2"):
        applied = kube.patch(
            "ConfigMap", "c", config_map(data={"k": value}), content_type=patches.APPLY, fieldManager="me"
        )
        assert made(applied)["data"] == {"k": value}


# --- what an update may not change ------------------------------------------------------------------------


def change_image(obj: Object) -> None:
    obj["spec"]["containers"][0]["image"] = "registry.invalid/other:1"


def change_env(obj: Object) -> None:
    obj["spec"]["containers"][0]["env"] = [{"name": "A", "value": "b"}]


def drop_containers(obj: Object) -> None:
    obj["spec"]["containers"] = []


def drop_spec(obj: Object) -> None:
    del obj["spec"]


def add_toleration(obj: Object) -> None:
    obj["spec"]["tolerations"].append({"key": "k", "operator": "Exists"})


def drop_tolerations(obj: Object) -> None:
    obj["spec"]["tolerations"] = []


def change_selector(obj: Object) -> None:
    obj["spec"]["selector"]["matchLabels"] = {"c": "d"}
    obj["spec"]["template"]["metadata"]["labels"] = {"c": "d"}


def change_role(obj: Object) -> None:
    obj["roleRef"]["name"] = "other"


def change_type(obj: Object) -> None:
    obj["type"] = "example.com/other"


DEPLOYMENT: Object = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {"name": "d"},
    "spec": {**DEPLOYMENT_SPEC, "replicas": 0},
}
UPDATES: dict[str, tuple[Object, Callable[[Object], None], tuple[int, str]]] = {
    "image of a pod": (pod(), change_image, OK),
    "env of a pod": (pod(), change_env, INVALID),
    "containers of a pod": (pod(), drop_containers, INVALID),
    "spec of a pod": (pod(), drop_spec, INVALID),
    "one more toleration": (pod(), add_toleration, OK),
    "tolerations that admission puts back": (pod(), drop_tolerations, OK),
    "selector of a deployment": (copy_json(DEPLOYMENT), change_selector, INVALID),
    "role of a binding": (
        {**TEMPLATES["role binding"], "metadata": {"name": "b"}},
        change_role,
        INVALID,
    ),
    "type of a secret": (
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}},
        change_type,
        INVALID,
    ),
}


@pytest.mark.parametrize(("obj", "change", "outcome"), UPDATES.values(), ids=UPDATES)
def test_which_updates_are_refused(
    kube: KubeClient, obj: Object, change: Callable[[Object], None], outcome: tuple[int, str]
) -> None:
    stored = made(kube.create(obj))
    change(stored)
    stored["metadata"].pop("resourceVersion")  # controllers may have written meanwhile
    assert kube.put(stored).outcome == outcome


def test_metadata_of_the_server_cannot_be_written(kube: KubeClient) -> None:
    stored = made(kube.create(widget()))
    forged = copy_json(stored)
    forged["metadata"].update(generation=99, creationTimestamp="2001-01-01T00:00:00Z")
    new = made(kube.put(forged))
    for field in ("generation", "creationTimestamp", "uid"):
        assert new["metadata"][field] == stored["metadata"][field]
    forged = copy_json(new)
    forged["metadata"]["deletionTimestamp"] = "2001-01-01T00:00:00Z"
    assert kube.put(forged).outcome == INVALID


def test_the_status_subresource_writes_the_status_and_nothing_else(kube: KubeClient) -> None:
    stored = made(kube.create(widget(size=2)))
    both = {"spec": {"size": 3}, "status": {"x": 1}, "metadata": {"labels": {"a": "b"}}}
    by_status = made(kube.patch("Widget", "w", both, "status"))
    assert (by_status["spec"], by_status["status"]) == ({"size": 2}, {"x": 1})
    assert by_status["metadata"]["generation"] == stored["metadata"]["generation"]
    assert "labels" not in by_status["metadata"]
    by_main = made(kube.patch("Widget", "w", {"spec": {"size": 3}, "status": {"x": 2}}))
    assert (by_main["spec"], by_main["status"]) == ({"size": 3}, {"x": 1})


@pytest.mark.parametrize(
    ("obj", "patch", "counts"),
    [
        (widget(), {"spec": {"size": 4}}, True),
        (widget(), {"metadata": {"labels": {"a": "b"}}}, False),
        (copy_json(DEPLOYMENT), {"spec": {"minReadySeconds": 7}}, True),
        (copy_json(DEPLOYMENT), {"metadata": {"labels": {"a": "b"}}}, False),
        (copy_json(DEPLOYMENT), {"metadata": {"annotations": {"a": "b"}}}, True),
        (pod(), {"metadata": {"labels": {"a": "b"}}}, False),
        (pod(), {"spec": {"activeDeadlineSeconds": 5000}}, True),
    ],
)
def test_the_generation_counts_changes_outside_of_metadata_and_status(
    kube: KubeClient, obj: Object, patch: Object, counts: bool
) -> None:
    before = made(kube.create(obj))["metadata"]["generation"]
    after = made(kube.patch(obj["kind"], obj["metadata"]["name"], patch))["metadata"]["generation"]
    assert after == before + counts


def test_managed_fields_say_who_set_a_label(kube: KubeClient) -> None:
    made(kube.create(pod(labels={"a": "1", "b": "1"}), manager="maker"))
    made(kube.patch("Pod", "p", {"metadata": {"labels": {"session-id": "s"}}}, manager="claimer"))
    changed = made(kube.patch("Pod", "p", {"metadata": {"labels": {"a": "2"}}}, manager="changer"))

    def owners(label: str) -> list[str]:
        return [
            entry["manager"]
            for entry in changed["metadata"]["managedFields"]
            if f"f:{label}" in entry["fieldsV1"].get("f:metadata", {}).get("f:labels", {})
        ]

    assert {label: owners(label) for label in ("a", "b", "session-id")} == {
        "a": ["changer"],
        "b": ["maker"],
        "session-id": ["claimer"],
    }


# --- deletion ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("obj", "kind"),
    [
        (config_map(), "Status"),
        (widget(), "Status"),
        (pod(), "Pod"),
        ({**config_map(), "kind": "ServiceAccount"}, "ServiceAccount"),
    ],
    ids=["ConfigMap", "Widget", "Pod", "ServiceAccount"],
)
def test_what_a_delete_answers(kube: KubeClient, obj: Object, kind: str) -> None:
    obj = {key: value for key, value in obj.items() if key != "data"}
    made(kube.create(obj))
    reply = kube.delete(obj["kind"], obj["metadata"]["name"])
    assert (reply.outcome, reply.body["kind"]) == (OK, kind)
    assert kube.delete(obj["kind"], obj["metadata"]["name"]).outcome == NOT_FOUND


@pytest.mark.parametrize("field", ["uid", "resourceVersion"])
def test_a_delete_checks_its_preconditions(kube: KubeClient, field: str) -> None:
    metadata = made(kube.create(config_map()))["metadata"]
    assert kube.delete("ConfigMap", "c", {"preconditions": {field: "1"}}).outcome == CONFLICT
    assert kube.delete("ConfigMap", "c", {"preconditions": {field: metadata[field]}}).outcome == OK


def test_a_finalizer_holds_an_object_until_it_is_taken_off(kube: KubeClient) -> None:
    obj = widget()
    obj["metadata"]["finalizers"] = ["twin.example.com/hold"]
    made(kube.create(obj))
    held = made(kube.delete("Widget", "w"))
    assert held["metadata"]["deletionTimestamp"]
    assert held["metadata"]["deletionGracePeriodSeconds"] == 0
    assert held["metadata"]["generation"] == 2
    again = made(kube.delete("Widget", "w"))
    assert again["metadata"]["resourceVersion"] == held["metadata"]["resourceVersion"]
    more = {"metadata": {"finalizers": ["twin.example.com/hold", "twin.example.com/more"]}}
    assert kube.patch("Widget", "w", more).outcome == INVALID
    assert kube.patch("Widget", "w", {"metadata": {"labels": {"a": "b"}}}).outcome == OK
    assert kube.patch("Widget", "w", {"metadata": {"finalizers": []}}).outcome == OK
    assert kube.get("Widget", "w").outcome == NOT_FOUND


def test_a_pod_without_a_node_is_gone_at_once(kube: KubeClient) -> None:
    made(kube.create(pod()))
    assert kube.delete("Pod", "p").outcome == OK
    assert kube.get("Pod", "p").outcome == NOT_FOUND


def bind(kube: KubeClient, name: str) -> None:
    """To a node that does not exist, so that no kubelet ends the pod."""
    binding = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": name},
        "target": {"kind": "Node", "name": "none"},
    }
    assert kube.request("POST", kube.path("Pod", name, "binding"), binding).outcome == CREATED


def test_a_pod_on_a_node_terminates_within_its_grace_period(kube: KubeClient) -> None:
    made(kube.create(pod(terminationGracePeriodSeconds=300)))
    bind(kube, "p")
    first = made(kube.delete("Pod", "p"))["metadata"]
    assert first["deletionGracePeriodSeconds"] == 300
    assert made(kube.delete("Pod", "p"))["metadata"]["deletionTimestamp"] == first["deletionTimestamp"]
    shorter = made(kube.delete("Pod", "p", gracePeriodSeconds="200"))["metadata"]
    assert shorter["deletionGracePeriodSeconds"] == 200
    longer = made(kube.delete("Pod", "p", gracePeriodSeconds="250"))["metadata"]
    assert longer["deletionGracePeriodSeconds"] == 200
    assert kube.delete("Pod", "p", {"gracePeriodSeconds": 0}).outcome == OK
    assert kube.get("Pod", "p").outcome == NOT_FOUND


def test_a_pod_is_bound_once(kube: KubeClient) -> None:
    made(kube.create(pod()))
    bind(kube, "p")
    again = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": "p"},
        "target": {"kind": "Node", "name": "other"},
    }
    assert kube.request("POST", kube.path("Pod", "p", "binding"), again).outcome == CONFLICT


def owned(owner: Object, name: str = "child", **reference: Any) -> Object:
    metadata = owner["metadata"]
    owners = [
        {
            "apiVersion": owner["apiVersion"],
            "kind": owner["kind"],
            "name": metadata["name"],
            "uid": metadata["uid"],
            **reference,
        }
    ]
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "ownerReferences": owners}}


def is_gone(kube: KubeClient, kind: str, name: str) -> bool:
    return kube.get(kind, name).outcome == NOT_FOUND


def test_what_belongs_to_a_deleted_owner_is_collected(kube: KubeClient) -> None:
    owner = made(kube.create(widget()))
    made(kube.create(owned(owner)))
    made(kube.create(owned(made(kube.get("ConfigMap", "child")), "grandchild")))
    made(kube.delete("Widget", "w"))
    eventually(lambda: is_gone(kube, "ConfigMap", "child") and is_gone(kube, "ConfigMap", "grandchild"))


def test_a_second_owner_keeps_an_object(kube: KubeClient) -> None:
    one, two = made(kube.create(widget("one"))), made(kube.create(widget("two")))
    child = owned(one)
    child["metadata"]["ownerReferences"] += owned(two)["metadata"]["ownerReferences"]
    made(kube.create(child))
    made(kube.delete("Widget", "one"))
    eventually(lambda: len(kube.get("ConfigMap", "child").body["metadata"]["ownerReferences"]) == 1)
    made(kube.delete("Widget", "two"))
    eventually(lambda: is_gone(kube, "ConfigMap", "child"))


def test_a_foreground_deletion_waits_for_what_blocks_it(kube: KubeClient) -> None:
    owner = made(kube.create(widget()))
    child = owned(owner, blockOwnerDeletion=True)
    child["metadata"]["finalizers"] = ["twin.example.com/hold"]
    made(kube.create(child))
    deleted = made(kube.delete("Widget", "w", {"propagationPolicy": "Foreground"}))
    assert deleted["metadata"]["finalizers"] == ["foregroundDeletion"]
    eventually(lambda: "deletionTimestamp" in kube.get("ConfigMap", "child").body["metadata"])
    assert kube.get("Widget", "w").code == 200
    made(kube.patch("ConfigMap", "child", {"metadata": {"finalizers": None}}))
    eventually(lambda: is_gone(kube, "Widget", "w"))


def test_an_orphaning_deletion_sets_dependents_free(kube: KubeClient) -> None:
    owner = made(kube.create(widget()))
    made(kube.create(owned(owner)))
    made(kube.delete("Widget", "w", {"propagationPolicy": "Orphan"}))
    eventually(lambda: is_gone(kube, "Widget", "w"))
    assert "ownerReferences" not in made(kube.get("ConfigMap", "child"))["metadata"]


def test_an_owner_in_another_namespace_counts_as_absent(kube: KubeClient) -> None:
    owner = made(kube.create(in_namespace(config_map(f"owner-{kube.namespace}"), "default")))
    made(kube.create(owned(owner)))
    eventually(lambda: is_gone(kube, "ConfigMap", "child"))
    kube.request("DELETE", kube.path("ConfigMap", owner["metadata"]["name"], namespace="default"))


def test_in_a_terminating_namespace_nothing_is_created_and_everything_goes(kube: KubeClient) -> None:
    held = config_map("held")
    held["metadata"]["finalizers"] = ["twin.example.com/hold"]
    made(kube.create(held))
    made(kube.create(config_map("free")))
    assert made(kube.delete("Namespace", kube.namespace))["status"]["phase"] == "Terminating"
    assert kube.create(config_map("late")).outcome == FORBIDDEN
    eventually(lambda: is_gone(kube, "ConfigMap", "free"))
    assert kube.get("Namespace", kube.namespace).code == 200
    made(kube.patch("ConfigMap", "held", {"metadata": {"finalizers": None}}))
    eventually(lambda: is_gone(kube, "Namespace", kube.namespace), 60)


# --- lists and watches ------------------------------------------------------------------------------------


def names(reply: Reply) -> list[str]:
    return [it["metadata"]["name"] for it in made(reply)["items"]]


@pytest.mark.parametrize(
    ("selector", "found"),
    [
        ("n=1", ["p1"]),
        ("n==1", ["p1"]),
        ("n!=1", ["p0", "p2", "plain"]),
        ("n in (1,2)", ["p1", "p2"]),
        ("n notin (1,2)", ["p0", "plain"]),
        ("n", ["p0", "p1", "p2"]),
        ("!n", ["plain"]),
        ("n,n!=0", ["p1", "p2"]),
        ("n in (0,1),even=yes", ["p0"]),
    ],
)
def test_label_selectors(kube: KubeClient, selector: str, found: list[str]) -> None:
    for number in range(3):
        made(
            kube.create(pod(f"p{number}", {"n": str(number), **({"even": "yes"} if number % 2 == 0 else {})}))
        )
    made(kube.create(pod("plain")))
    assert names(kube.list("Pod", labelSelector=selector)) == found


def test_a_selector_that_does_not_parse_is_400(kube: KubeClient) -> None:
    assert kube.list("Pod", labelSelector="a in b").outcome == BAD_REQUEST
    assert kube.list("Pod", labelSelector="=").outcome == BAD_REQUEST


def test_field_selectors(kube: KubeClient) -> None:
    for name in ("a", "b"):
        made(kube.create(pod(name)))
    made(kube.patch("Pod", "b", {"status": {"phase": "Running"}}, "status"))
    assert names(kube.list("Pod", fieldSelector="metadata.name=a")) == ["a"]
    assert names(kube.list("Pod", fieldSelector="status.phase=Running")) == ["b"]
    assert names(kube.list("Pod", fieldSelector="status.phase!=Running,metadata.name!=b")) == ["a"]


def test_pages_of_a_list_show_one_revision(kube: KubeClient) -> None:
    for name in "abcd":
        made(kube.create(config_map(name)))
    kube.delete("ConfigMap", "kube-root-ca.crt")
    first = kube.list("ConfigMap", limit="2", labelSelector="!none")
    made(kube.create(config_map("aa")))
    made(kube.delete("ConfigMap", "d"))
    second = kube.list(
        "ConfigMap", limit="9", **{"continue": first.body["metadata"]["continue"]}, labelSelector="!none"
    )
    assert {"c", "d"} <= set(names(second))
    assert "aa" not in names(first) + names(second)
    assert "continue" not in second.body["metadata"]
    assert second.body["metadata"]["resourceVersion"] == first.body["metadata"]["resourceVersion"]


class Watcher(threading.Thread):
    """Collects the events of a watch until the server ends it."""

    def __init__(self, kube: KubeClient, seconds: int, **query: str) -> None:
        super().__init__(daemon=True)
        self.events: list[Object] = []
        self._watch = kube.watch("Pod", seconds, **query)
        self.start()

    def run(self) -> None:
        self.events.extend(self._watch)

    def types(self) -> list[str]:
        self.join(30)
        return [event["type"] for event in self.events]


def test_a_watch_resumes_and_its_selector_makes_changes_appear_and_disappear(kube: KubeClient) -> None:
    made(kube.create(pod("p", {"n": "1"})))
    revision = kube.list("Pod").body["metadata"]["resourceVersion"]
    for label in ("2", "1", "3"):
        made(kube.patch("Pod", "p", {"metadata": {"labels": {"n": label}}}))
    made(kube.patch("Pod", "p", {"metadata": {"labels": {"n": "1"}}}))
    made(kube.patch("Pod", "p", {"metadata": {"annotations": {"a": "b"}}}))
    made(kube.delete("Pod", "p"))
    watcher = Watcher(kube, 2, resourceVersion=revision, labelSelector="n=1")
    assert watcher.types() == ["DELETED", "ADDED", "DELETED", "ADDED", "MODIFIED", "MODIFIED", "DELETED"]
    marked = watcher.events[-2]["object"]["metadata"]
    assert (marked["deletionGracePeriodSeconds"], marked["generation"]) == (0, 2)
    revisions = [int(event["object"]["metadata"]["resourceVersion"]) for event in watcher.events]
    assert revisions == sorted(revisions)
    assert revisions[0] > int(revision)


def test_a_watch_without_a_revision_begins_with_what_is_there_and_goes_on(kube: KubeClient) -> None:
    made(kube.create(pod("a")))
    watcher = Watcher(kube, 4)
    eventually(lambda: watcher.events)
    made(kube.create(pod("b")))
    assert watcher.types() == ["ADDED", "ADDED"]


def test_a_watch_from_a_forgotten_revision_is_410(kube: KubeClient, api_server: ApiServer) -> None:
    made(kube.create(pod()))
    if api_server.forget_history:
        api_server.forget_history()
    watcher = Watcher(kube, 5, resourceVersion="1")
    assert watcher.types() == ["ERROR"]
    assert watcher.events[0]["object"]["code"] == 410


# --- who may do what --------------------------------------------------------------------------------------

REVIEW_ROOT = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


def may(kube: KubeClient, **attributes: str) -> bool:
    body = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": attributes},
    }
    return bool(made(kube.request("POST", REVIEW_ROOT, body))["status"]["allowed"])


def grant(kube: KubeClient, user: str, *rules: Object) -> None:
    role = {"apiVersion": f"{RBAC_GROUP}/v1", "kind": "Role", "metadata": {"name": "r"}, "rules": list(rules)}
    made(kube.create(role))
    binding = {
        "apiVersion": f"{RBAC_GROUP}/v1",
        "kind": "RoleBinding",
        "metadata": {"name": "b"},
        "roleRef": {"apiGroup": RBAC_GROUP, "kind": "Role", "name": "r"},
        "subjects": [{"kind": "User", "name": user, "apiGroup": RBAC_GROUP}],
    }
    made(kube.create(binding))


def test_a_user_without_roles_may_ask_who_they_are_and_nothing_else(kube: KubeClient) -> None:
    nobody = kube.as_user("nobody")
    path = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    who = made(nobody.request("POST", path, body))["status"]["userInfo"]
    assert who["username"] == "nobody"
    assert "system:authenticated" in who["groups"]
    assert not may(nobody, verb="get", resource="pods", namespace=kube.namespace)
    assert nobody.list("Pod").outcome == FORBIDDEN
    assert nobody.create(pod()).outcome == FORBIDDEN


def test_a_service_account_has_its_groups(kube: KubeClient) -> None:
    account = kube.as_user(f"system:serviceaccount:{kube.namespace}:default")
    path = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    groups = made(account.request("POST", path, body))["status"]["userInfo"]["groups"]
    wanted = {"system:serviceaccounts", f"system:serviceaccounts:{kube.namespace}", "system:authenticated"}
    assert wanted <= set(groups)


def test_rules_name_verbs_subresources_and_names(kube: KubeClient) -> None:
    group = "twin.example.com"
    grant(
        kube,
        "alice",
        {
            "apiGroups": [group],
            "resources": ["widgets/mcp"],
            "verbs": ["create", "get"],
            "resourceNames": ["one"],
        },
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]},
    )
    alice = kube.as_user("alice")

    def may_mcp(verb: str, name: str, namespace: str = kube.namespace) -> bool:
        return may(
            alice,
            verb=verb,
            group=group,
            resource="widgets",
            subresource="mcp",
            name=name,
            namespace=namespace,
        )

    eventually(lambda: may_mcp("create", "one"))
    assert may_mcp("get", "one")
    assert not may_mcp("delete", "one")
    assert not may_mcp("create", "two")
    assert not may_mcp("create", "one", "default")
    assert not may(
        alice, verb="create", group=group, resource="widgets", name="one", namespace=kube.namespace
    )
    assert alice.list("Pod").outcome == OK
    assert alice.get("Pod", "p").outcome == FORBIDDEN


def test_nobody_grants_what_they_do_not_hold(kube: KubeClient) -> None:
    roles = {"apiGroups": [RBAC_GROUP], "resources": ["roles"], "verbs": ["create", "get"]}
    grant(kube, "bob", roles, {"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]})
    bob = kube.as_user("bob")

    def role(name: str, *verbs: str) -> Object:
        rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": list(verbs)}]
        return {"apiVersion": f"{RBAC_GROUP}/v1", "kind": "Role", "metadata": {"name": name}, "rules": rules}

    eventually(lambda: bob.create(role("less", "get")).outcome == CREATED)
    assert bob.create(role("more", "get", "delete")).outcome == FORBIDDEN
