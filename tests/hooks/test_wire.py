"""Requests as Metacontroller sends them, read strictly."""

import copy
from typing import Any

import pytest

from cli_mcp import names
from hooks.wire import CHILD_KINDS, CONFIG_MAP, POD, SERVICE, MalformedRequest, parse_request

CONFIG = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "namespace": "ns"}}
DNS = {"metadata": {"name": "kube-dns", "namespace": "kube-system"}, "spec": {}}
REQUEST: dict[str, Any] = {
    "controller": {},
    "parent": {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "metadata": {"name": "demo", "namespace": "ns", "uid": "u", "generation": 3},
        "spec": {},
    },
    "children": {kind.key: {} for kind in CHILD_KINDS} | {CONFIG_MAP.key: {"ns/a": CONFIG}},
    "related": {SERVICE.key: {"kube-system/kube-dns": DNS}},
    "finalizing": False,
}


def test_children_go_by_name_and_related_objects_by_namespace_too() -> None:
    request = parse_request(REQUEST)
    assert (request.parent.name, request.parent.uid, request.parent.generation) == ("demo", "u", 3)
    assert request.child(CONFIG_MAP, "a") == CONFIG
    assert request.child(CONFIG_MAP, "b") is None
    assert request.related_object(SERVICE, "kube-dns", "kube-system") == DNS
    assert request.related_object(SERVICE, "kube-dns") is None
    assert list(request.related_objects(POD)) == []


def test_a_child_on_its_way_out_is_not_there() -> None:
    changed = copy.deepcopy(REQUEST)
    changed["children"][CONFIG_MAP.key]["ns/a"]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert parse_request(changed).child(CONFIG_MAP, "a") is None


def test_kinds_have_the_keys_that_metacontroller_uses() -> None:
    keys = {kind.key for kind in CHILD_KINDS}
    assert keys >= {"Pod.v1", "Deployment.apps/v1", "Role.rbac.authorization.k8s.io/v1"}


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("parent",), None),
        (("parent", "kind"), "Pod"),
        (("parent", "apiVersion"), "v1"),
        (("parent", "metadata"), None),
        (("parent", "metadata", "uid"), ""),
        (("parent", "metadata", "namespace"), None),
        (("parent", "metadata", "name"), 5),
        (("children",), None),
        (("children",), []),
        (("children", POD.key), None),
        (("children", POD.key), []),
        (("children", CONFIG_MAP.key, "ns/a"), None),
        (("children", CONFIG_MAP.key, "ns/a"), {}),
        (("children", CONFIG_MAP.key, "ns/b"), CONFIG),
        (("children", CONFIG_MAP.key, "a"), CONFIG),
        (("children", CONFIG_MAP.key, "other/a"), {"metadata": {"name": "a", "namespace": "other"}}),
        (("related",), None),
        (("related", SERVICE.key), None),
    ],
)
def test_a_request_that_is_not_whole_is_malformed(path: tuple[str, ...], value: Any) -> None:
    changed = copy.deepcopy(REQUEST)
    place = changed
    for part in path[:-1]:
        place = place[part]
    place[path[-1]] = value
    with pytest.raises(MalformedRequest):
        parse_request(changed)


def test_a_kind_of_child_that_metacontroller_does_not_show_is_malformed() -> None:
    changed = copy.deepcopy(REQUEST)
    del changed["children"][POD.key]
    with pytest.raises(MalformedRequest, match=POD.key):
        parse_request(changed)
