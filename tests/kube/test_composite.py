"""The model of Metacontroller's loop, fact by fact as the real one was measured."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.kube import garbage
from tests.kube.api import Api
from tests.kube.composite import CompositeController, Settings
from tests.kube.connection import Call
from tests.kube.deletion import DeleteOptions
from tests.kube.errors import ApiError
from tests.kube.hook_wire import ControllerCrashed, HookAnswer, in_process
from tests.kube.objects import (
    annotations_of,
    controller_of,
    labels_of,
    name_of,
    owners_of,
    revision_of,
    uid_of,
)
from tests.kube.three_way import LAST_APPLIED

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.kube.children import Method
    from tests.kube.clock import Clock
    from tests.kube.objects import Object

NAMESPACE = "default"
WIDGETS = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "widgets.example.com"},
    "spec": {
        "group": "example.com",
        "scope": "Namespaced",
        "names": {"plural": "widgets", "kind": "Widget"},
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
                            "spec": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                            "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                        },
                    }
                },
            }
        ],
    },
}
KINDS = (
    "ConfigMap",
    "Pod",
    "Secret",
    "Service",
    "ServiceAccount",
    "Deployment",
    "NetworkPolicy",
    "Role",
    "RoleBinding",
)
PLURALS = (
    ("v1", "configmaps"),
    ("v1", "pods"),
    ("v1", "secrets"),
    ("v1", "services"),
    ("v1", "serviceaccounts"),
    ("apps/v1", "deployments"),
    ("networking.k8s.io/v1", "networkpolicies"),
    ("rbac.authorization.k8s.io/v1", "roles"),
    ("rbac.authorization.k8s.io/v1", "rolebindings"),
)


class World:
    """A store, a hook that a test replaces at will, and the controller that calls it."""

    def __init__(self, method: Method = "InPlace", **settings: Any) -> None:
        self.api = Api()
        self.api.create(WIDGETS)
        self.requests: list[Object] = []
        self.finalizing: list[Object] = []
        self.desired: Callable[[Object], list[Object]] = lambda request: []
        self.answer: Callable[[Object], Any] = lambda request: {
            "status": {},
            "children": self.desired(request),
        }
        self.finalize: Callable[[Object], Any] = lambda request: {"children": [], "finalized": True}
        self.related: list[Object] = []
        settings = {"ignores_status_changes": True, **settings}
        self.settings = Settings(
            "w", ("example.com/v1", "widgets"), tuple((*kind, method) for kind in PLURALS), **settings
        )
        self.controller = self.restart()

    def restart(self) -> CompositeController:
        def sync(request: Object) -> Any:
            self.requests.append(request)
            return self.answer(request)

        def finalize(request: Object) -> Any:
            self.finalizing.append(request)
            return self.finalize(request)

        hooks = in_process(
            sync=sync, finalize=finalize, customize=lambda _: {"relatedResources": self.related}
        )
        self.controller = CompositeController(self.api, self.settings, hooks)
        return self.controller

    @property
    def clock(self) -> Clock:
        return self.api.clock  # type: ignore[return-value]

    def parent(self, name: str = "a", **metadata: Any) -> Object:
        return self.api.create(
            {
                "apiVersion": "example.com/v1",
                "kind": "Widget",
                "metadata": {"name": name, "namespace": NAMESPACE, **metadata},
            }
        )

    def run(self) -> list[str]:
        """Run until nothing is ready; the write requests on children as `verb kind name code`."""
        start = len(self.api.journal)
        self.controller.run()
        return self.writes_since(start)

    def writes_since(self, start: int) -> list[str]:
        return [
            f"{it.verb} {it.resource} {it.name} {it.code}"
            for it in self.api.journal[start:]
            if it.is_write and not it.resource.startswith("widgets")
        ]

    def stored(self, kind: str, name: str) -> Object:
        return self.api.get(kind, NAMESPACE, name)

    def label(self, name: str, **labels: str | None) -> None:
        self.api.patch("pods", NAMESPACE, name, {"metadata": {"labels": labels}})


def pod(name: str = "p", **metadata: Any) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, **metadata},
        "spec": {"containers": [{"name": "main", "image": "pause:3.9", "ports": [{"containerPort": 8080}]}]},
    }


def config_map(name: str = "c", **data: str) -> Object:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data or {"k": "v"}}


def echo(request: Object) -> list[Object]:
    """Each pod as the content of its own last-applied annotation, with labels at the value observed now."""
    return [last_applied_echo(it) for it in request["children"]["Pod.v1"].values()]


def last_applied_echo(observed: Object) -> Object:
    text = annotations_of(observed).get(LAST_APPLIED)
    if text is None:
        return stub(observed)
    applied: Object = json.loads(text)
    for field, now in (("labels", labels_of(observed)), ("annotations", annotations_of(observed))):
        if field in applied["metadata"]:
            applied["metadata"][field] = {key: now[key] for key in applied["metadata"][field] if key in now}
    return applied


def full_echo(observed: Object) -> Object:
    """The pod as observed, without what only the API server writes."""
    fields = ("name", "namespace", "labels", "annotations")
    metadata = {key: observed["metadata"][key] for key in fields if key in observed["metadata"]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": observed["spec"]}


def stub(observed: Object) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name_of(observed), "namespace": NAMESPACE},
    }


def template_then(
    later: Callable[[Object], list[Object]], template: Callable[[], Object] = pod
) -> Callable[[Object], list[Object]]:
    """The template for a pod that is not there, and `later` once it is observed."""
    return lambda request: later(request) if request["children"]["Pod.v1"] else [template()]


# --- requests and answers -----------------------------------------------------------------------------------


def test_a_request_has_every_declared_kind_and_keys_of_namespace_and_name() -> None:
    world = World()
    world.parent()
    world.desired = lambda _: [config_map()]
    world.run()
    request = world.requests[-1]
    assert request.keys() == {"controller", "parent", "children", "related", "finalizing"}
    assert len(request["children"]) == len(PLURALS)
    assert list(request["children"]["ConfigMap.v1"]) == ["default/c"]
    assert request["children"]["Role.rbac.authorization.k8s.io/v1"] == {}
    assert request["related"] == {}
    assert request["finalizing"] is False


REFUSED_ANSWERS = {
    "500": HookAnswer(500, b"{}"),
    "404": HookAnswer(404, b'{"children":[]}'),
    "204": HookAnswer(204, b""),
    "302": HookAnswer(302, b""),
    "html": HookAnswer(200, b"<html>"),
    "empty body": HookAnswer(200, b""),
    "malformed": HookAnswer(200, b'{"children":['),
    "unknown key": HookAnswer(200, b'{"children":[],"extra":1}'),
    "duplicate key": HookAnswer(200, b'{"children":[],"children":[]}'),
    "upper case": HookAnswer(200, b'{"Children":[]}'),
    "child without kind": HookAnswer(200, b'{"children":[{"apiVersion":"v1"}]}'),
    "children of a wrong type": HookAnswer(200, b'{"children":{}}'),
    "status of a wrong type": HookAnswer(200, b'{"status":[],"children":[]}'),
    "finalized of a wrong type": HookAnswer(200, b'{"children":[],"finalized":"yes"}'),
}


@pytest.mark.parametrize("answer", REFUSED_ANSWERS.values(), ids=REFUSED_ANSWERS.keys())
def test_a_bad_answer_writes_nothing_and_backs_off(answer: HookAnswer) -> None:
    world = World()
    world.parent()
    world.desired = lambda _: [config_map()]
    world.run()
    before = world.stored("widgets.example.com", "a")
    controller = CompositeController(world.api, world.settings, lambda name, body: answer)
    start = len(world.api.journal)
    controller.run()
    assert [len(sync.errors) for sync in controller.syncs] == [1]
    assert not [it for it in world.api.journal[start:] if it.is_write]
    assert world.stored("widgets.example.com", "a") == before
    assert controller.queue.seconds_to_next() == pytest.approx(0.005)


def test_backoff_doubles_from_5_ms_to_1000_s_and_any_event_syncs_at_once() -> None:
    world = World()
    world.parent()
    world.answer = lambda _: 1 / 0
    delays = []
    for _ in range(20):
        world.run()
        delay = world.controller.queue.seconds_to_next()
        assert delay is not None
        delays.append(delay)
        world.clock.advance(delay)
    assert delays[:4] == pytest.approx([0.005, 0.01, 0.02, 0.04])
    assert delays[-1] == 1000
    world.run()
    world.api.patch("widgets.example.com", NAMESPACE, "a", {"metadata": {"labels": {"x": "y"}}})
    syncs = len(world.controller.syncs)
    world.run()
    assert len(world.controller.syncs) == syncs + 1


def test_429_is_tried_again_after_retry_after_without_backoff() -> None:
    world = World()
    world.parent()
    controller = CompositeController(world.api, world.settings, lambda name, body: HookAnswer(429, b"", 2))
    controller.run()
    assert controller.queue.seconds_to_next() == 2.0


@pytest.mark.parametrize("answer", [{}, None, {"children": None}])
def test_an_answer_without_children_deletes_all_children(answer: Any) -> None:
    world = World()
    world.parent()
    world.desired = lambda _: [config_map(), pod()]
    world.run()
    world.answer = lambda _: answer
    world.restart()
    assert world.run() == ["delete configmaps c 200", "delete pods p 200"]
    assert world.stored("widgets.example.com", "a")["status"] == {"observedGeneration": 1}


def test_a_null_among_the_children_ends_the_process() -> None:
    world = World()
    world.parent()
    world.answer = lambda _: {"children": [None]}
    with pytest.raises(ControllerCrashed):
        world.run()


# --- order ---------------------------------------------------------------------------------------------------


def of_kind(kind: str, name: str) -> Object:
    group = "rbac.authorization.k8s.io"
    contents: dict[str, Object] = {
        "Pod": pod(),
        "Service": {"spec": {"ports": [{"port": 80}]}},
        "Deployment": {
            "apiVersion": "apps/v1",
            "spec": {
                "selector": {"matchLabels": {"a": "b"}},
                "template": {
                    "metadata": {"labels": {"a": "b"}},
                    "spec": {"containers": [{"name": "c", "image": "i:1"}]},
                },
            },
        },
        "NetworkPolicy": {"apiVersion": "networking.k8s.io/v1", "spec": {"podSelector": {}}},
        "Role": {
            "apiVersion": f"{group}/v1",
            "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}],
        },
        "RoleBinding": {
            "apiVersion": f"{group}/v1",
            "roleRef": {"apiGroup": group, "kind": "Role", "name": "x"},
            "subjects": [{"kind": "ServiceAccount", "name": "s", "namespace": "default"}],
        },
    }
    return {"apiVersion": "v1", "kind": kind, **contents.get(kind, {}), "metadata": {"name": name}}


def test_deletions_come_first_then_kinds_by_group_so_pods_come_before_secrets_and_policies() -> None:
    world = World()
    world.parent()
    world.desired = lambda _: [of_kind(kind, "old") for kind in ("RoleBinding", "Secret")]
    world.run()
    world.desired = lambda _: [of_kind(kind, "new") for kind in reversed(KINDS)]
    world.restart()
    writes = [line.split()[:2] for line in world.run()]
    assert writes[:2] == [["delete", "secrets"], ["delete", "rolebindings.rbac.authorization.k8s.io"]]
    created = [kind.partition(".")[0] for verb, kind in writes if verb == "create"]
    assert created == [plural for _, plural in PLURALS]


def test_one_refused_child_does_not_keep_the_others_or_the_status_from_being_written() -> None:
    world = World()
    world.parent()
    bad = config_map("Not_A_Name")
    world.answer = lambda _: {"status": {"n": 1}, "children": [bad, pod()]}
    assert world.run()[:2] == ["create configmaps Not_A_Name 422", "create pods p 201"]
    assert world.stored("widgets.example.com", "a")["status"] == {"n": 1, "observedGeneration": 1}
    assert world.controller.syncs[-1].errors


def test_a_pod_is_refused_until_its_service_account_exists() -> None:
    world = World()
    world.parent()
    lonely = pod()
    lonely["spec"]["serviceAccountName"] = "s"
    world.desired = lambda _: [lonely, of_kind("ServiceAccount", "s")]
    assert world.run() == ["create pods p 403", "create serviceaccounts s 201", "create pods p 201"]


def test_an_unknown_kind_fails_the_sync_but_other_children_are_applied() -> None:
    world = World()
    world.parent()
    world.desired = lambda _: [{"apiVersion": "v9", "kind": "Odd", "metadata": {"name": "o"}}, config_map()]
    assert world.run() == ["create configmaps c 201"]
    assert world.controller.syncs[-1].errors


def test_a_wrong_controller_uid_on_one_child_refuses_the_whole_sync() -> None:
    world = World()
    world.parent()
    world.desired = lambda _: [config_map(), pod(labels={"controller-uid": "other"})]
    assert world.run() == []
    assert world.controller.syncs[-1].errors


def test_of_two_children_with_the_same_name_the_last_wins() -> None:
    world = World()
    world.parent()
    world.desired = lambda _: [config_map(k="first"), config_map(k="last")]
    world.run()
    assert world.stored("configmaps", "c")["data"] == {"k": "last"}


# --- creation, and the merge in place --------------------------------------------------------------------------


def test_a_created_child_carries_the_uid_label_the_owner_and_what_was_applied() -> None:
    world = World()
    parent = world.parent()
    world.desired = lambda _: [config_map()]
    world.run()
    child = world.stored("configmaps", "c")
    assert labels_of(child) == {"controller-uid": uid_of(parent)}
    assert controller_of(child) == {
        "apiVersion": "example.com/v1",
        "kind": "Widget",
        "name": "a",
        "uid": uid_of(parent),
        "controller": True,
        "blockOwnerDeletion": True,
    }
    assert annotations_of(child)[LAST_APPLIED] == (
        '{"apiVersion":"v1","data":{"k":"v"},"kind":"ConfigMap","metadata":{"labels":{"controller-uid":"'
        + uid_of(parent)
        + '"},"name":"c","namespace":"default"}}'
    )


def test_a_full_echo_is_written_after_creation_binding_and_foreign_labels_but_not_a_status() -> None:
    world = World()
    world.parent()
    world.desired = template_then(
        lambda request: [full_echo(it) for it in request["children"]["Pod.v1"].values()]
    )
    assert world.run() == ["create pods p 201", "update pods p 200"]
    world.api.bind(NAMESPACE, "p", "node-1")
    assert world.run() == ["update pods p 200"]
    world.label("p", foreign="1")
    assert world.run() == ["update pods p 200"]
    world.api.patch("pods", NAMESPACE, "p", {"status": {"phase": "Running"}}, subresource="status")
    assert world.run() == []


def test_a_last_applied_echo_writes_nothing_after_creation_binding_status_and_foreign_labels() -> None:
    world = World()
    world.parent()
    world.desired = template_then(echo, lambda: pod(labels={"state": "idle"}))
    assert world.run() == ["create pods p 201"]
    world.api.bind(NAMESPACE, "p", "node-1")
    world.api.patch("pods", NAMESPACE, "p", {"status": {"phase": "Running"}}, subresource="status")
    world.api.patch("pods", NAMESPACE, "p", {"metadata": {"labels": {"x": "1"}, "annotations": {"y": "2"}}})
    assert world.run() == []
    world.label("p", state="warm")  # a label that is part of what was applied: the annotation follows, once
    assert world.run() == ["update pods p 200"]
    assert world.run() == []


def test_a_stub_for_a_pod_that_was_created_by_the_hook_is_refused_for_ever() -> None:
    world = World()
    world.parent()
    world.desired = template_then(lambda request: [stub(it) for it in request["children"]["Pod.v1"].values()])
    writes = world.run()
    assert writes[-1] == "update pods p 422"
    assert "containers" in str(world.controller.syncs[-1].errors[0])


def test_a_stub_for_a_pod_that_somebody_else_made_costs_one_write_and_keeps_its_labels() -> None:
    world = World()
    parent = world.parent()
    world.desired = echo
    world.run()
    world.api.create(
        {**pod(), **in_default(pod(labels={"controller-uid": uid_of(parent), "x": "1"}), owner=parent)}
    )
    assert world.run() == ["update pods p 200"]
    assert labels_of(world.stored("pods", "p"))["x"] == "1"
    world.label("p", **{"session-id": "s"})
    assert world.run() == []


def test_an_external_pod_that_carries_the_annotation_from_birth_costs_no_write() -> None:
    world = World()
    parent = world.parent()
    world.desired = echo
    world.run()
    uid = uid_of(parent)
    applied = (
        f'{{"apiVersion":"v1","kind":"Pod","metadata":{{"labels":{{"controller-uid":"{uid}"}},'
        f'"name":"p","namespace":"default"}}}}'
    )
    external = pod(labels={"controller-uid": uid, "session-id": "s"}, annotations={LAST_APPLIED: applied})
    world.api.create(in_default(external, owner=parent))
    assert world.run() == []


def in_default(obj: Object, owner: Object | None = None) -> Object:
    metadata = {**obj["metadata"], "namespace": NAMESPACE}
    if owner is not None:
        metadata["ownerReferences"] = [
            {
                "apiVersion": "example.com/v1",
                "kind": "Widget",
                "name": name_of(owner),
                "uid": uid_of(owner),
                "controller": True,
            }
        ]
    return {**obj, "metadata": metadata}


def test_a_stub_wipes_the_data_of_a_secret_in_place() -> None:
    world = World()
    world.parent()
    secret: Object = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}}
    world.desired = lambda request: [
        secret if request["children"]["Secret.v1"] else {**secret, "data": {"k": "dg=="}}
    ]
    assert world.run() == ["create secrets s 201", "update secrets s 200"]
    assert "data" not in world.stored("secrets", "s")


def test_a_changed_image_is_patched_into_the_running_pod_and_a_changed_env_is_refused() -> None:
    world = World()
    world.parent()
    world.desired = lambda _: [pod()]
    world.run()
    newer = pod()
    newer["spec"]["containers"][0]["image"] = "pause:4"
    world.desired = lambda _: [newer]
    world.restart()
    assert world.run() == ["update pods p 200"]
    newer["spec"]["containers"][0]["env"] = [{"name": "A", "value": "b"}]
    world.restart()
    assert world.run() == ["update pods p 422"]


RESTLESS: dict[str, Callable[[Object], None]] = {
    "tolerations": lambda spec: spec.update(tolerations=[{"key": "k", "operator": "Exists"}]),
    "1000m": lambda spec: spec["containers"][0].update(resources={"requests": {"cpu": "1000m"}}),
    "an empty env value": lambda spec: spec["containers"][0].update(env=[{"name": "A", "value": ""}]),
    "empty args": lambda spec: spec["containers"][0].update(args=[]),
    "null": lambda spec: spec.update(nodeSelector=None),
}


@pytest.mark.parametrize("change", RESTLESS.values(), ids=RESTLESS.keys())
def test_a_template_that_does_not_survive_the_store_is_put_on_every_sync_without_effect(
    change: Callable[[Object], None],
) -> None:
    world = World()
    world.parent()
    restless = pod()
    change(restless["spec"])
    world.desired = lambda _: [restless]
    world.run()
    before = revision_of(world.stored("pods", "p"))
    world.restart()
    assert world.run() == ["update pods p 200"]
    assert revision_of(world.stored("pods", "p")) == before


AT_REST = {
    "Secret.stringData": ({"kind": "Secret", "stringData": {"a": "b"}}, False),
    "Secret.data": ({"kind": "Secret", "data": {"a": "Yg=="}}, True),
    "ConfigMap.data {}": ({"kind": "ConfigMap", "data": {}}, False),
    "Role.rules []": ({"kind": "Role", "apiVersion": "rbac.authorization.k8s.io/v1", "rules": []}, False),
    "policy without a protocol": (
        {
            "kind": "NetworkPolicy",
            "apiVersion": "networking.k8s.io/v1",
            "spec": {"podSelector": {}, "policyTypes": ["Egress"], "egress": [{"ports": [{"port": 53}]}]},
        },
        False,
    ),
    "policy with UDP and TCP 53": (
        {
            "kind": "NetworkPolicy",
            "apiVersion": "networking.k8s.io/v1",
            "spec": {
                "podSelector": {},
                "policyTypes": ["Egress"],
                "egress": [{"ports": [{"port": 53, "protocol": "UDP"}, {"port": 53, "protocol": "TCP"}]}],
            },
        },
        True,
    ),
}


@pytest.mark.parametrize(("content", "rests"), AT_REST.values(), ids=AT_REST.keys())
def test_which_templates_are_written_again_on_every_sync(content: Object, rests: bool) -> None:
    world = World()
    world.parent()
    world.desired = lambda _: [{"apiVersion": "v1", "metadata": {"name": "x"}, **content}]
    assert len(world.run()) == (1 if rests else 2)
    world.restart()
    assert len(world.run()) == (0 if rests else 1)


def test_one_port_for_udp_and_tcp_is_refused_in_pods_and_services_and_lost_in_deployments() -> None:
    def ports(key: str) -> list[Object]:
        return [{key: 53, "protocol": "UDP", "name": "u"}, {key: 53, "protocol": "TCP", "name": "t"}]

    twice = pod()
    twice["spec"]["containers"][0]["ports"] = ports("containerPort")
    service = of_kind("Service", "s")
    service["spec"] = {"ports": ports("port")}
    deployment = of_kind("Deployment", "d")
    unnamed = [{"containerPort": 53, "protocol": it} for it in ("UDP", "TCP")]
    deployment["spec"]["template"]["spec"]["containers"][0]["ports"] = unnamed
    world = World()
    world.parent()
    world.desired = lambda _: [twice, service, deployment]
    writes = world.run()
    assert [line for line in writes if line.startswith("update")][:3] == [
        "update pods p 422",
        "update services s 422",
        "update deployments.apps d 200",
    ]
    container = world.stored("deployments.apps", "d")["spec"]["template"]["spec"]["containers"][0]
    assert [port["protocol"] for port in container["ports"]] == ["TCP", "TCP"]


def test_a_binding_of_one_account_name_in_two_namespaces_has_one_of_them_twice() -> None:
    world = World()
    world.parent()
    binding = of_kind("RoleBinding", "b")
    binding["subjects"] = [{"kind": "ServiceAccount", "name": "s", "namespace": it} for it in ("one", "two")]
    world.desired = lambda _: [binding]
    world.run()
    found = world.stored("rolebindings.rbac.authorization.k8s.io", "b")["subjects"]
    assert [subject["namespace"] for subject in found] == ["two", "two"]


# --- update strategies -----------------------------------------------------------------------------------------


def test_on_delete_never_writes_again_whatever_the_answer() -> None:
    world = World("OnDelete")
    world.parent()
    world.desired = template_then(lambda request: [stub(it) for it in request["children"]["Pod.v1"].values()])
    assert world.run() == ["create pods p 201"]
    for value in ("1", "2", "3"):
        world.label("p", x=value)
        assert world.run() == []


@pytest.mark.parametrize("method", ["OnDelete", "InPlace"])
def test_a_stub_for_a_pod_that_is_not_there_is_posted_and_refused(method: Method) -> None:
    world = World(method)
    world.parent()
    world.desired = lambda _: [{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}}]
    assert world.run() == ["create pods p 422"]


def test_recreate_deletes_on_a_difference_and_creates_on_the_next_sync() -> None:
    world = World("Recreate")
    world.parent()
    world.desired = lambda _: [config_map(k="1")]
    world.run()
    world.desired = lambda _: [config_map(k="2")]
    world.restart()
    assert world.run() == ["delete configmaps c 200", "create configmaps c 201"]


# --- retirement and the claim race -------------------------------------------------------------------------------


def test_retiring_is_one_put_that_carries_the_observed_revision() -> None:
    world = World()
    world.parent()
    world.desired = template_then(echo)
    world.run()

    def retire(request: Object) -> list[Object]:
        echoed = echo(request)
        for it in echoed:
            it["metadata"]["labels"]["state"] = "retiring"
        return echoed

    world.desired = retire
    world.restart()
    assert world.run() == ["update pods p 200"]
    assert labels_of(world.stored("pods", "p"))["state"] == "retiring"
    assert world.run() == []


def test_a_claim_between_observation_and_put_makes_it_a_409_that_is_swallowed() -> None:
    world = World()
    world.parent()
    world.desired = template_then(echo)
    world.run()

    def retire(request: Object) -> list[Object]:
        echoed = echo(request)
        for it in echoed:
            observed = request["children"]["Pod.v1"][f"default/{name_of(it)}"]
            if "session-id" not in labels_of(observed):
                it["metadata"]["labels"]["state"] = "retiring"
        return echoed

    def claim(call: Call) -> None:
        if call.verb == "update" and call.resource == "pods":
            world.controller.connection.before = None
            world.label("p", **{"session-id": "s1"})

    world.desired = retire
    world.restart()
    world.controller.connection.before = claim
    assert world.run() == ["patch pods p 200", "update pods p 409"]
    assert all(not sync.errors for sync in world.controller.syncs)
    labels = labels_of(world.stored("pods", "p"))
    assert labels["session-id"] == "s1"
    assert "state" not in labels


def test_a_delete_has_only_a_uid_precondition_so_a_pod_claimed_meanwhile_dies() -> None:
    world = World()
    world.parent()
    world.desired = template_then(echo)
    world.run()
    world.desired = lambda _: []

    def claim(call: Call) -> None:
        if call.verb == "delete":
            world.label("p", **{"session-id": "s1"})

    world.restart()
    world.controller.connection.before = claim
    assert world.run() == ["patch pods p 200", "delete pods p 200"]


def test_terminating_pods_are_shown_and_never_updated_or_deleted_again() -> None:
    world = World()
    world.parent()
    world.desired = lambda _: [pod()]
    world.run()
    world.api.bind(NAMESPACE, "p", "node-1")
    world.api.delete("pods", NAMESPACE, "p")
    newer = pod()
    newer["spec"]["containers"][0]["image"] = "pause:4"
    answers: list[list[Object]] = [[newer], []]
    for answer in answers:
        world.answer = lambda _, answer=answer: {"children": answer}  # type: ignore[misc]
        world.restart()
        assert world.run() == []
        assert "default/p" in world.requests[-1]["children"]["Pod.v1"]
    world.api.delete("pods", NAMESPACE, "p", DeleteOptions(grace_seconds=0))
    world.answer = lambda _: {"children": [newer]}
    assert world.run() == ["create pods p 201"]


# --- ownership ---------------------------------------------------------------------------------------------------


def test_a_pod_with_label_and_owner_is_in_the_children_of_the_next_sync_without_a_write() -> None:
    world = World("OnDelete")
    parent = world.parent()
    world.desired = echo
    world.run()
    world.api.create(in_default(pod(labels={"controller-uid": uid_of(parent)}), owner=parent))
    assert world.run() == []
    assert "default/p" in world.requests[-1]["children"]["Pod.v1"]


def test_an_orphan_with_the_label_is_adopted_before_the_hook_which_sees_it_without_owner() -> None:
    world = World()
    parent = world.parent()
    world.desired = echo
    world.run()
    world.api.create(in_default(pod(labels={"controller-uid": uid_of(parent)})))
    writes = world.run()
    assert writes == [
        "update pods p 200",
        "update pods p 409",
        "update pods p 200",
    ]  # adopted; stale; annotated
    seen = [it["children"]["Pod.v1"] for it in world.requests if it["children"]["Pod.v1"]]
    assert owners_of(seen[0]["default/p"]) == []
    assert controller_of(world.stored("pods", "p")) is not None


def test_an_orphan_that_the_hook_does_not_list_is_adopted_and_deleted_in_the_same_sync() -> None:
    world = World()
    parent = world.parent()
    world.run()
    world.api.create(in_default(pod(labels={"controller-uid": uid_of(parent)})))
    syncs = len(world.controller.syncs)
    world.controller.deliver()
    start = len(world.api.journal)
    world.controller.sync_next()
    assert world.writes_since(start) == ["update pods p 200", "delete pods p 200"]
    assert len(world.controller.syncs) == syncs + 1


def test_an_owner_without_the_label_is_taken_off_and_the_pod_never_shown() -> None:
    world = World()
    parent = world.parent()
    world.run()
    world.api.create(in_default(pod(), owner=parent))
    assert world.run() == ["update pods p 200"]
    assert owners_of(world.stored("pods", "p")) == []
    assert all(not it["children"]["Pod.v1"] for it in world.requests)


def test_a_pod_of_another_controller_is_ignored() -> None:
    world = World()
    parent = world.parent()
    other = world.api.create(in_default(config_map("other")))
    world.run()
    foreign = in_default(pod(labels={"controller-uid": uid_of(parent)}))
    foreign["metadata"]["ownerReferences"] = [
        {"apiVersion": "v1", "kind": "ConfigMap", "name": "other", "uid": uid_of(other), "controller": True}
    ]
    world.api.create(foreign)
    assert world.run() == []


def test_a_name_that_a_foreign_object_has_taken_is_a_silent_409() -> None:
    world = World()
    world.api.create(in_default(config_map(k="foreign")))
    world.parent()
    world.desired = lambda _: [config_map()]
    assert world.run() == ["create configmaps c 409"]
    assert all(not sync.errors for sync in world.controller.syncs)
    assert world.stored("configmaps", "c")["data"] == {"k": "foreign"}


def test_a_child_in_another_namespace_is_collected_and_never_seen() -> None:
    world = World()
    world.parent()
    world.desired = lambda _: [{**config_map(), "metadata": {"name": "c", "namespace": "kube-system"}}]
    assert world.run() == ["create configmaps c 201"]
    garbage.settle(world.api)
    assert world.api.find("configmaps", "kube-system", "c") is None
    world.restart()
    assert world.run() == ["create configmaps c 201"]


def test_an_undeclared_kind_is_created_once_then_409_and_never_deleted() -> None:
    world = World()
    world.parent()
    claim: Object = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "v"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    }
    world.desired = lambda _: [claim]
    assert world.run() == ["create persistentvolumeclaims v 201"]
    world.restart()
    assert world.run() == ["create persistentvolumeclaims v 409"]
    world.desired = lambda _: []
    world.restart()
    assert world.run() == []


# --- caches that lag -----------------------------------------------------------------------------------------------


def test_with_a_late_watch_a_generated_secret_is_generated_again_and_the_first_value_stays() -> None:
    world = World("OnDelete")
    world.parent()
    generated: list[str] = []

    def secrets(request: Object) -> list[Object]:
        if request["children"]["Secret.v1"]:
            return [{"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}}]
        generated.append("abcd"[len(generated)] * 4)
        return [
            {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "data": {"v": generated[-1]}}
        ]

    world.desired = secrets
    world.controller.informer("secrets").held = True
    assert world.run() == ["create secrets s 201"]
    for value in ("1", "2"):
        world.api.patch("widgets.example.com", NAMESPACE, "a", {"metadata": {"labels": {"x": value}}})
        assert world.run() == ["create secrets s 409"]
    world.controller.informer("secrets").held = False
    assert world.run() == []
    assert world.stored("secrets", "s")["data"] == {"v": generated[0]}


@pytest.mark.parametrize(("slots", "created"), [(True, 5), (False, 15)])
def test_with_a_late_watch_names_that_follow_from_the_state_do_not_overshoot(
    slots: bool, created: int
) -> None:
    world = World()
    world.parent()
    numbers = iter(range(1000))

    def pool(request: Object) -> list[Object]:
        present = echo(request)
        names = (f"p{slot if slots else next(numbers)}" for slot in range(5 - len(present)))
        return [*present, *(pod(name) for name in names)]

    world.desired = pool
    world.controller.informer("pods").held = True
    for value in ("1", "2", "3"):
        world.api.patch("widgets.example.com", NAMESPACE, "a", {"metadata": {"labels": {"x": value}}})
        world.run()
    assert len(world.api.objects("pods")) == created


# --- finalize ------------------------------------------------------------------------------------------------------


def test_the_finalizer_is_added_before_the_first_hook_call() -> None:
    world = World()
    world.parent()
    world.run()
    assert world.requests[0]["parent"]["metadata"]["finalizers"] == [
        "metacontroller.io/compositecontroller-w"
    ]


def test_a_deleted_parent_is_finalized_its_answer_applied_until_finalized_says_so() -> None:
    world = World()
    parent = world.parent()
    world.desired = lambda _: [config_map(k="1"), pod()]
    world.run()
    world.finalize = lambda request: {
        "status": {"draining": True},
        "children": [config_map(k="2")],
        "finalized": False,
    }
    world.api.delete("widgets.example.com", NAMESPACE, "a")
    assert world.run() == ["delete pods p 200", "update configmaps c 200"]
    assert world.finalizing[-1]["finalizing"] is True
    assert world.stored("widgets.example.com", "a")["status"]["draining"] is True
    world.api.create(in_default(pod("late", labels={"controller-uid": uid_of(parent)}), owner=parent))
    assert world.run() == ["delete pods late 200"]
    world.api.create(in_default(pod("orphan", labels={"controller-uid": uid_of(parent)})))
    assert world.run() == []
    world.finalize = lambda request: {"children": [config_map("never")], "finalized": True}
    world.restart()
    assert world.run() == []
    assert world.api.find("widgets.example.com", NAMESPACE, "a") is None
    assert world.api.find("configmaps", NAMESPACE, "never") is None
    garbage.settle(world.api)
    assert world.api.find("configmaps", NAMESPACE, "c") is None


def test_while_the_hook_is_down_a_deleted_parent_stays_and_so_do_its_children() -> None:
    world = World()
    world.parent()
    world.desired = lambda _: [pod()]
    world.run()

    def down(request: Object) -> Any:
        raise OSError("connection refused")

    world.finalize = down
    world.api.delete("widgets.example.com", NAMESPACE, "a")
    world.run()
    garbage.settle(world.api)
    assert world.api.find("pods", NAMESPACE, "p") is not None
    world.finalize = lambda request: {"children": [], "finalized": True}
    world.clock.advance(1)
    world.run()
    assert world.api.find("widgets.example.com", NAMESPACE, "a") is None


def test_a_foreground_deletion_takes_the_children_and_what_the_hook_answers_is_ignored() -> None:
    world = World()
    world.parent()
    world.desired = lambda _: [pod()]
    world.run()
    world.finalize = lambda request: {
        "status": {"seen": True},
        "children": [config_map()],
        "finalized": False,
    }
    world.api.delete("widgets.example.com", NAMESPACE, "a", DeleteOptions(propagation="Foreground"))
    assert world.run() == []
    assert world.stored("widgets.example.com", "a")["status"]["seen"] is True
    garbage.settle(world.api)
    assert world.api.find("pods", NAMESPACE, "p") is None


def test_finalized_in_a_sync_answer_removes_and_adds_the_finalizer_for_ever() -> None:
    world = World(ignores_status_changes=False)
    world.parent()
    world.answer = lambda _: {"children": [], "finalized": True}
    with pytest.raises(AssertionError, match="no rest"):
        world.run()


def test_a_parent_that_leaves_the_label_selector_is_finalized_and_its_children_deleted() -> None:
    world = World(label_selector={"matchLabels": {"mode": "on"}})
    world.parent(labels={"mode": "on"})
    world.desired = lambda _: [pod()]
    world.run()
    world.finalize = lambda request: {"children": [], "finalized": not request["children"]["Pod.v1"]}
    world.api.patch("widgets.example.com", NAMESPACE, "a", {"metadata": {"labels": {"mode": "off"}}})
    assert world.run() == ["delete pods p 200"]
    parent = world.stored("widgets.example.com", "a")
    assert not parent["metadata"].get("finalizers")
    assert "deletionTimestamp" not in world.finalizing[0]["parent"]["metadata"]


# --- related objects -------------------------------------------------------------------------------------------------


def related_world(**rule: Any) -> World:
    world = World(has_customize=True)
    world.related = [{"apiVersion": "v1", "resource": "secrets", **rule}]
    for namespace, name in (("default", "wanted"), ("default", "other"), ("kube-system", "wanted")):
        world.api.create(
            {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": namespace}}
        )
    world.parent()
    world.run()
    world.clock.advance(1)  # the first use of a kind fails, since its cache has just been started
    world.run()
    return world


@pytest.mark.parametrize(
    ("rule", "seen"),
    [
        ({"namespace": "default", "names": ["wanted"]}, ["default/wanted"]),
        ({"names": ["wanted"]}, ["default/wanted", "kube-system/wanted"]),
        ({"namespace": "default", "names": []}, ["default/other", "default/wanted"]),
        ({"namespace": "default", "labelSelector": {"matchLabels": {"no": "such"}}}, []),
    ],
    ids=["names", "without a namespace from all of them", "empty names are all names", "labels"],
)
def test_which_objects_a_customize_rule_selects(rule: Object, seen: list[str]) -> None:
    world = related_world(**rule)
    assert sorted(world.requests[-1]["related"]["Secret.v1"]) == seen


def test_a_related_object_that_changes_appears_or_goes_makes_a_sync_and_others_do_not() -> None:
    world = related_world(namespace="default", names=["wanted", "later"])
    count = len(world.requests)
    world.api.patch("secrets", "default", "wanted", {"data": {"k": "dg=="}})
    world.run()
    assert len(world.requests) == (count := count + 1)
    world.api.create(
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "later", "namespace": "default"}}
    )
    world.run()
    assert len(world.requests) == (count := count + 1)
    world.api.delete("secrets", "default", "later")
    world.run()
    assert len(world.requests) == (count := count + 1)
    world.api.patch("secrets", "default", "other", {"data": {"k": "dg=="}})
    world.run()
    assert len(world.requests) == count


def test_a_customize_answer_is_kept_for_a_generation_and_its_failure_prevents_the_sync() -> None:
    world = related_world(namespace="default", names=["wanted"])
    world.related = [{"apiVersion": "v1", "resource": "secrets", "namespace": "default", "names": ["other"]}]
    world.api.patch("widgets.example.com", NAMESPACE, "a", {"metadata": {"labels": {"x": "y"}}})
    world.run()
    assert sorted(world.requests[-1]["related"]["Secret.v1"]) == ["default/wanted"]
    world.related = [{"names": ["x"], "labelSelector": {}}]
    count = len(world.requests)
    world.api.patch("widgets.example.com", NAMESPACE, "a", {"spec": {"x": 1}})
    world.run()
    assert len(world.requests) == count
    assert world.controller.syncs[-1].errors


# --- status and time ---------------------------------------------------------------------------------------------------


def parent_puts(world: World, start: int) -> list[str]:
    return [
        f"{it.verb} {it.code}"
        for it in world.api.journal[start:]
        if it.resource == "widgets.example.com/status"
    ]


def test_the_status_is_replaced_whole_and_written_only_when_it_differs() -> None:
    world = World()
    world.parent()
    world.answer = lambda _: {"status": {"n": 1, "observedGeneration": 77}, "children": []}
    world.run()
    world.api.patch(
        "widgets.example.com", NAMESPACE, "a", {"status": {"foreign": True}}, subresource="status"
    )
    world.restart()
    world.run()
    assert world.stored("widgets.example.com", "a")["status"] == {"n": 1, "observedGeneration": 1}
    start = len(world.api.journal)
    world.restart()
    world.run()
    assert parent_puts(world, start) == []


@pytest.mark.parametrize(
    ("value", "rests"),
    [(1.0, False), (1e3, False), (1.5, True), (2, True), (None, True), ([], True), ({}, True)],
)
def test_a_whole_number_float_in_the_status_is_put_on_every_sync(value: Any, rests: bool) -> None:
    world = World()
    world.parent()
    world.answer = lambda _: {"status": {"x": value}, "children": []}
    world.run()
    start = len(world.api.journal)
    world.restart()
    world.run()
    assert parent_puts(world, start) == ([] if rests else ["update 200"])


def test_a_status_that_changes_each_time_is_a_hot_loop_unless_status_changes_are_ignored() -> None:
    def counting(world: World) -> World:
        world.parent()
        world.answer = lambda _: {"status": {"count": len(world.requests)}, "children": []}
        return world

    with pytest.raises(AssertionError, match="no rest"):
        counting(World(ignores_status_changes=False)).run()
    counting(World()).run()


def test_a_conflict_on_the_status_is_read_and_written_again() -> None:
    world = World()
    world.parent()
    world.answer = lambda _: {"status": {"n": 1}, "children": []}

    def disturb(call: Call) -> None:
        if call == Call("update", "widgets.example.com/status", NAMESPACE, "a"):
            world.controller.connection.before = None
            world.api.patch("widgets.example.com", NAMESPACE, "a", {"metadata": {"labels": {"x": "y"}}})

    world.controller.connection.before = disturb
    start = len(world.api.journal)
    world.run()
    assert parent_puts(world, start) == ["update 409", "update 200"]


def test_of_two_resyncs_that_were_asked_for_the_earliest_counts() -> None:
    world = World()
    world.parent()
    wishes = iter((1.5, 30, 30))
    world.answer = lambda _: {"children": [], "resyncAfterSeconds": next(wishes)}
    world.run()
    world.api.patch("widgets.example.com", NAMESPACE, "a", {"metadata": {"labels": {"x": "y"}}})
    world.run()
    assert world.controller.queue.seconds_to_next() == 1.5


def test_the_resync_period_syncs_every_parent() -> None:
    world = World(resync_period_seconds=120)
    for name in ("a", "b"):
        world.parent(name)
    world.run()
    count = len(world.requests)
    world.clock.advance(119)
    world.run()
    assert len(world.requests) == count
    world.clock.advance(1)
    world.run()
    assert len(world.requests) == count + 2


def test_annotation_and_status_changes_of_a_child_make_a_sync_and_a_no_op_does_not() -> None:
    world = World()
    world.parent()
    world.desired = template_then(echo)
    world.run()
    for patch, subresource, calls in (
        ({"metadata": {"annotations": {"a": "1"}}}, "", 1),
        ({"status": {"phase": "Running"}}, "status", 1),
        ({"metadata": {"annotations": {"a": "1"}}}, "", 0),
    ):
        count = len(world.requests)
        world.api.patch("pods", NAMESPACE, "p", patch, subresource=subresource)
        world.run()
        assert len(world.requests) == count + calls


# --- lost requests -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_lost_request_or_answer_is_an_error_and_the_next_sync_makes_it_good(moment: str) -> None:
    world = World()
    world.parent()
    world.desired = lambda _: [config_map()]

    def lose(call: Call) -> None:
        if call.verb == "create":
            setattr(world.controller.connection, moment, None)
            raise OSError("connection reset")

    setattr(world.controller.connection, moment, lose)
    world.run()
    world.clock.advance(1)
    world.run()
    assert world.controller.syncs[-1].errors == ()
    assert world.api.find("configmaps", NAMESPACE, "c") is not None


def test_a_controller_without_rights_fails_with_403() -> None:
    world = World()
    world.parent()
    from tests.kube.rbac import User

    controller = CompositeController(world.api, world.settings, in_process(), User("nobody"))
    controller.run()
    (error,) = controller.syncs[-1].errors
    assert isinstance(error, ApiError)
    assert error.code == 403
