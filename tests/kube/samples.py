"""Small objects for tests of the loop, and the ways in which a hook can repeat what it observed.

Pods name a scheduler that does not exist, and Deployments have no replicas, so that nothing runs in a real
cluster.
"""

from __future__ import annotations

import json
from typing import Any

from tests.kube.objects import Object, annotations_of, labels_of, name_of, namespace_of, uid_of
from tests.kube.three_way import LAST_APPLIED

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

RBAC_GROUP = "rbac.authorization.k8s.io"
# The content of one small object of each kind.
CONTENTS: dict[str, Object] = {
    "ConfigMap": {"apiVersion": "v1", "data": {"k": "v"}},
    "Pod": {
        "apiVersion": "v1",
        "spec": {
            "schedulerName": "nobody",
            "containers": [{"name": "main", "image": "pause:3.9", "ports": [{"containerPort": 8080}]}],
        },
    },
    "Secret": {"apiVersion": "v1", "data": {"k": "dg=="}},
    "Service": {"apiVersion": "v1", "spec": {"ports": [{"port": 80}]}},
    "ServiceAccount": {"apiVersion": "v1"},
    "Deployment": {
        "apiVersion": "apps/v1",
        "spec": {
            "replicas": 0,
            "selector": {"matchLabels": {"a": "b"}},
            "template": {
                "metadata": {"labels": {"a": "b"}},
                "spec": {"containers": [{"name": "c", "image": "i:1"}]},
            },
        },
    },
    "NetworkPolicy": {"apiVersion": "networking.k8s.io/v1", "spec": {"podSelector": {}}},
    "Role": {
        "apiVersion": f"{RBAC_GROUP}/v1",
        "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}],
    },
    "RoleBinding": {
        "apiVersion": f"{RBAC_GROUP}/v1",
        "roleRef": {"apiGroup": RBAC_GROUP, "kind": "Role", "name": "x"},
        "subjects": [{"kind": "ServiceAccount", "name": "s", "namespace": "default"}],
    },
}


def of_kind(kind: str, name: str = "x", **fields: Any) -> Object:
    """A small object; `fields` replace its content."""
    content: Object = json.loads(json.dumps(CONTENTS[kind]))
    return {**content, "kind": kind, "metadata": {"name": name}, **fields}


def config_map(name: str = "c", **data: str) -> Object:
    return of_kind("ConfigMap", name, **({"data": data} if data else {}))


def pod(name: str = "p", **metadata: Any) -> Object:
    return of_kind("Pod", name, metadata={"name": name, **metadata})


def owned_by(parent: Object, obj: Object, *, labelled: bool = True, referenced: bool = True) -> Object:
    """As somebody else would create it for the parent: in its namespace, with label and owner reference."""
    labels = {**labels_of(obj), **({"controller-uid": uid_of(parent)} if labelled else {})}
    metadata = {**obj["metadata"], "namespace": namespace_of(parent), "labels": labels}
    if referenced:
        owner = {"apiVersion": parent["apiVersion"], "kind": parent["kind"], "name": name_of(parent)}
        metadata["ownerReferences"] = [{**owner, "uid": uid_of(parent), "controller": True}]
    return {**obj, "metadata": metadata}


def observed_pods(request: Object) -> list[Object]:
    return list(request["children"]["Pod.v1"].values())


def stub(observed: Object) -> Object:
    """A pod's identity and nothing else."""
    metadata = {"name": name_of(observed), "namespace": namespace_of(observed)}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata}


def full_echo(observed: Object) -> Object:
    """The pod as observed, without what only the API server writes."""
    fields = ("name", "namespace", "labels", "annotations")
    metadata = {key: observed["metadata"][key] for key in fields if key in observed["metadata"]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": observed["spec"]}


def last_applied_echo(observed: Object) -> Object:
    """The content of the pod's own annotation, with labels and annotations as of now; a stub without one."""
    text = annotations_of(observed).get(LAST_APPLIED)
    if text is None:
        return stub(observed)
    applied: Object = json.loads(text)
    for field, now in (("labels", labels_of(observed)), ("annotations", annotations_of(observed))):
        if field in applied["metadata"]:
            applied["metadata"][field] = {key: now[key] for key in applied["metadata"][field] if key in now}
    return applied
