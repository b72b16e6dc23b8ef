"""What Metacontroller does: the same tests against the model and, where there is a cluster, the real one.

Where the two differ, the model is wrong. Lines of writes are `verb plural name code`.
"""

from __future__ import annotations

from itertools import chain, repeat
from typing import TYPE_CHECKING, Any

import pytest

from tests.kube.hook_wire import HookAnswer
from tests.kube.objects import (
    annotations_of,
    controller_of,
    labels_of,
    name_of,
    owners_of,
    revision_of,
    uid_of,
)
from tests.kube.samples import (
    config_map,
    full_echo,
    last_applied_echo,
    observed_pods,
    of_kind,
    owned_by,
    pod,
    stub,
)
from tests.kube.three_way import LAST_APPLIED
from tests.kube.worlds import CHILD_RESOURCES, PARENT_API_VERSION, World

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.kube.connection import Call
    from tests.kube.objects import Object

    NewWorld = Callable[..., World]

FINALIZER = "metacontroller.io/compositecontroller-"


def echo(request: Object) -> list[Object]:
    return [last_applied_echo(observed) for observed in observed_pods(request)]


def template_then(
    later: Callable[[Object], Object], template: Callable[[], Object] = pod
) -> Callable[[Object], list[Object]]:
    """The template while no pod is there, and `later` of each pod that is observed."""
    return lambda request: [later(it) for it in observed_pods(request)] or [template()]


def retire(request: Object) -> list[Object]:
    """Every pod that no session has claimed."""
    echoed = echo(request)
    for it, observed in zip(echoed, observed_pods(request), strict=True):
        if "session-id" not in labels_of(observed):
            it["metadata"].setdefault("labels", {})["state"] = "retiring"
    return echoed


def once(lines: list[str]) -> list[str]:
    """Without the repetitions of a sync that failed and was tried again."""
    return list(dict.fromkeys(lines))


# --- requests and answers ---------------------------------------------------------------------------------


def test_a_request_has_every_declared_kind_and_keys_of_namespace_and_name(new_world: NewWorld) -> None:
    world = new_world()
    world.hooks.desired = lambda _: [config_map()]
    world.parent()
    world.run()
    request = world.hooks.requests[-1]
    assert request.keys() == {"controller", "parent", "children", "related", "finalizing"}
    assert len(request["children"]) == len(CHILD_RESOURCES)
    assert list(request["children"]["ConfigMap.v1"]) == [f"{world.namespace}/c"]
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
    "resync of a wrong type": HookAnswer(200, b'{"children":[],"resyncAfterSeconds":"1"}'),
}


@pytest.mark.parametrize("answer", REFUSED_ANSWERS.values(), ids=REFUSED_ANSWERS)
def test_a_bad_answer_writes_nothing_and_leaves_the_status(new_world: NewWorld, answer: HookAnswer) -> None:
    world = new_world()
    world.hooks.desired = lambda _: [config_map()]
    world.parent()
    world.settle()
    status = world.stored("Widget", "a")["status"]
    world.hooks.raw = answer
    world.touch()
    assert world.settle() == []
    assert world.stored("Widget", "a")["status"] == status


@pytest.mark.parametrize("answer", [{}, None, {"children": None}])
def test_an_answer_without_children_deletes_all_children(new_world: NewWorld, answer: Any) -> None:
    world = new_world()
    world.hooks.desired = lambda _: [config_map(), pod()]
    world.parent()
    world.run()
    world.hooks.answer = lambda _: answer
    world.touch()
    assert world.run() == ["delete configmaps c 200", "delete pods p 200"]
    assert world.stored("Widget", "a")["status"] == {"observedGeneration": 1}


# --- order ------------------------------------------------------------------------------------------------


def test_deletions_come_first_then_kinds_by_group_so_pods_come_before_secrets_and_policies(
    new_world: NewWorld,
) -> None:
    world = new_world()
    world.hooks.desired = lambda _: [of_kind(kind, "old") for kind in ("RoleBinding", "Secret")]
    world.parent()
    world.run()
    kinds = ["ConfigMap", "Pod", "Secret", "Service", "ServiceAccount", "Deployment", "NetworkPolicy", "Role"]
    world.hooks.desired = lambda _: [of_kind(kind, "new") for kind in ("RoleBinding", *reversed(kinds))]
    world.touch()
    writes = world.run()
    assert writes[:2] == ["delete secrets old 200", "delete rolebindings old 200"]
    assert writes[2:] == [f"create {plural} new 201" for _, plural in CHILD_RESOURCES]


def test_one_refused_child_does_not_keep_the_others_or_the_status_from_being_written(
    new_world: NewWorld,
) -> None:
    world = new_world()
    world.hooks.answer = lambda _: {"status": {"n": 1}, "children": [config_map("Not_A_Name"), pod()]}
    world.parent()
    assert once(world.run())[:2] == ["create configmaps Not_A_Name 422", "create pods p 201"]
    assert world.stored("Widget", "a")["status"] == {"n": 1, "observedGeneration": 1}


def test_a_pod_is_refused_until_its_service_account_exists(new_world: NewWorld) -> None:
    world = new_world()
    lonely = pod()
    lonely["spec"]["serviceAccountName"] = "s"
    world.hooks.desired = lambda _: [lonely, of_kind("ServiceAccount", "s")]
    world.parent()
    assert once(world.run())[:3] == ["create pods p 403", "create serviceaccounts s 201", "create pods p 201"]


def test_an_unknown_kind_fails_the_sync_but_other_children_are_applied(new_world: NewWorld) -> None:
    world = new_world()
    odd = {"apiVersion": "v9", "kind": "Odd", "metadata": {"name": "o"}}
    world.hooks.desired = lambda _: [odd, config_map()]
    world.parent()
    assert world.run() == ["create configmaps c 201"]


def test_a_wrong_controller_uid_on_one_child_refuses_the_whole_sync(new_world: NewWorld) -> None:
    world = new_world()
    world.hooks.desired = lambda _: [config_map(), pod(labels={"controller-uid": "other"})]
    world.parent()
    assert world.run() == []


def test_of_two_children_with_the_same_name_the_last_wins(new_world: NewWorld) -> None:
    world = new_world()
    world.hooks.desired = lambda _: [config_map(k="first"), config_map(k="last")]
    world.parent()
    assert world.run() == ["create configmaps c 201"]
    assert world.stored("ConfigMap", "c")["data"] == {"k": "last"}


# --- creation, and the merge in place ---------------------------------------------------------------------


def test_a_created_child_carries_the_uid_label_the_owner_and_what_was_applied(new_world: NewWorld) -> None:
    world = new_world()
    world.hooks.desired = lambda _: [config_map(k="<ä & b>")]
    uid = uid_of(world.parent())
    world.run()
    child = world.stored("ConfigMap", "c")
    assert labels_of(child) == {"controller-uid": uid}
    assert controller_of(child) == {
        "apiVersion": PARENT_API_VERSION,
        "kind": "Widget",
        "name": "a",
        "uid": uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }
    assert annotations_of(child)[LAST_APPLIED] == (
        '{"apiVersion":"v1","data":{"k":"\\u003cä \\u0026 b\\u003e"},"kind":"ConfigMap","metadata":'
        f'{{"labels":{{"controller-uid":"{uid}"}},"name":"c","namespace":"{world.namespace}"}}}}'
    )


def test_a_full_echo_is_written_after_creation_binding_and_foreign_labels_but_not_a_status(
    new_world: NewWorld,
) -> None:
    world = new_world()
    world.hooks.desired = template_then(full_echo)
    world.parent()
    assert world.run() == ["create pods p 201", "update pods p 200"]
    world.bind("p")
    assert world.run() == ["update pods p 200"]
    world.label("p", foreign="1")
    assert world.run() == ["update pods p 200"]
    world.patch("Pod", "p", {"status": {"phase": "Running"}}, "status")
    assert world.run() == []


def test_a_last_applied_echo_writes_nothing_after_creation_binding_status_and_foreign_labels(
    new_world: NewWorld,
) -> None:
    world = new_world()
    world.hooks.desired = template_then(last_applied_echo, lambda: pod(labels={"state": "idle"}))
    world.parent()
    assert world.run() == ["create pods p 201"]
    world.bind("p")
    world.patch("Pod", "p", {"status": {"phase": "Running"}}, "status")
    world.patch("Pod", "p", {"metadata": {"labels": {"x": "1"}, "annotations": {"y": "2"}}})
    assert world.run() == []
    world.label("p", state="warm")  # this label is part of what was applied, so the annotation follows
    assert world.run() == ["update pods p 200"]


def test_a_stub_for_a_pod_that_the_hook_created_is_refused_for_ever(new_world: NewWorld) -> None:
    world = new_world()
    world.hooks.desired = template_then(stub)
    world.parent()
    assert once(world.run()) == ["create pods p 201", "update pods p 422"]


def test_a_stub_for_a_pod_that_somebody_else_made_costs_one_write_and_keeps_its_labels(
    new_world: NewWorld,
) -> None:
    world = new_world()
    world.hooks.desired = lambda request: [stub(it) for it in observed_pods(request)]
    parent = world.parent()
    world.run()
    world.create(owned_by(parent, pod(labels={"x": "1"})))
    assert world.run() == ["update pods p 200"]
    assert labels_of(world.stored("Pod", "p"))["x"] == "1"
    world.label("p", **{"session-id": "s"})
    assert world.run() == []


def test_an_external_pod_that_carries_the_annotation_from_birth_costs_no_write(new_world: NewWorld) -> None:
    world = new_world()
    world.hooks.desired = echo
    parent = world.parent()
    world.run()
    applied = (
        f'{{"apiVersion":"v1","kind":"Pod","metadata":{{"labels":{{"controller-uid":"{uid_of(parent)}"}},'
        f'"name":"p","namespace":"{world.namespace}"}}}}'
    )
    world.create(owned_by(parent, pod(labels={"session-id": "s"}, annotations={LAST_APPLIED: applied})))
    assert world.run() == []
    assert observed_pods(world.hooks.requests[-1])


def test_a_stub_wipes_the_data_of_a_secret_in_place(new_world: NewWorld) -> None:
    world = new_world()
    empty: Object = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}}
    world.hooks.desired = lambda request: [
        empty if request["children"]["Secret.v1"] else of_kind("Secret", "s")
    ]
    world.parent()
    assert world.run() == ["create secrets s 201", "update secrets s 200"]
    assert "data" not in world.stored("Secret", "s")


def test_a_changed_image_is_patched_into_the_running_pod_and_a_changed_env_is_refused(
    new_world: NewWorld,
) -> None:
    world = new_world()
    changing = pod()
    world.hooks.desired = lambda _: [changing]
    world.parent()
    world.run()
    changing["spec"]["containers"][0]["image"] = "pause:4"
    world.touch()
    assert world.run() == ["update pods p 200"]
    changing["spec"]["containers"][0]["env"] = [{"name": "A", "value": "b"}]
    world.touch()
    assert once(world.run()) == ["update pods p 422"]


RESTLESS: dict[str, Callable[[Object], None]] = {
    "tolerations": lambda spec: spec.update(tolerations=[{"key": "k", "operator": "Exists"}]),
    "1000m": lambda spec: spec["containers"][0].update(resources={"requests": {"cpu": "1000m"}}),
    "an empty env value": lambda spec: spec["containers"][0].update(env=[{"name": "A", "value": ""}]),
    "empty args": lambda spec: spec["containers"][0].update(args=[]),
    "null": lambda spec: spec.update(nodeSelector=None),
    "a projected token": lambda spec: spec.update(
        volumes=[{"name": "t", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}}]
    ),
}


@pytest.mark.parametrize("change", RESTLESS.values(), ids=RESTLESS)
def test_a_template_that_does_not_survive_the_store_is_put_on_every_sync_without_effect(
    new_world: NewWorld, change: Callable[[Object], None]
) -> None:
    world = new_world()
    restless = pod()
    change(restless["spec"])
    world.hooks.desired = lambda _: [restless]
    world.parent()
    world.run()
    before = revision_of(world.stored("Pod", "p"))
    world.touch()
    assert world.run() == ["update pods p 200"]
    assert revision_of(world.stored("Pod", "p")) == before


def policy(*ports: Object) -> Object:
    spec = {"podSelector": {}, "policyTypes": ["Egress"], "egress": [{"ports": list(ports)}]}
    return of_kind("NetworkPolicy", spec=spec)


RESTING = {
    "Secret.stringData": (of_kind("Secret", stringData={"a": "b"}), False),
    "Secret.data": (of_kind("Secret"), True),
    "ConfigMap.data {}": (of_kind("ConfigMap", data={}), False),
    "Role.rules []": (of_kind("Role", rules=[]), False),
    "Role.rules": (of_kind("Role"), True),
    "policy without a protocol": (policy({"port": 53}), False),
    "policy with UDP and TCP": (
        policy({"port": 53, "protocol": "UDP"}, {"port": 53, "protocol": "TCP"}),
        True,
    ),
    "Deployment": (of_kind("Deployment"), True),
    "Service": (of_kind("Service"), True),
    "RoleBinding": (of_kind("RoleBinding"), True),
}


@pytest.mark.parametrize(("template", "rests"), RESTING.values(), ids=RESTING)
def test_which_templates_are_written_again_on_every_sync(
    new_world: NewWorld, template: Object, rests: bool
) -> None:
    world = new_world()
    world.hooks.desired = lambda _: [template]
    world.parent()
    world.run()
    world.touch()
    assert len(world.run()) == (0 if rests else 1)


def test_one_port_for_udp_and_tcp_is_refused_in_pods_and_services_and_lost_in_deployments(
    new_world: NewWorld,
) -> None:
    def both(key: str) -> list[Object]:
        return [{key: 53, "protocol": "UDP", "name": "u"}, {key: 53, "protocol": "TCP", "name": "t"}]

    twice = pod()
    twice["spec"]["containers"][0]["ports"] = both("containerPort")
    service = of_kind("Service", "s", spec={"ports": both("port")})
    deployment = of_kind("Deployment", "d")
    unnamed = [{"containerPort": 53, "protocol": protocol} for protocol in ("UDP", "TCP")]
    deployment["spec"]["template"]["spec"]["containers"][0]["ports"] = unnamed
    world = new_world()
    world.hooks.desired = lambda _: [twice, service, deployment]
    world.parent()
    assert set(world.run()) >= {"update pods p 422", "update services s 422", "update deployments d 200"}
    container = world.stored("Deployment", "d")["spec"]["template"]["spec"]["containers"][0]
    assert [port["protocol"] for port in container["ports"]] == ["TCP", "TCP"]


def test_a_binding_of_one_account_name_in_two_namespaces_has_one_of_them_twice(new_world: NewWorld) -> None:
    world = new_world()
    subjects = [{"kind": "ServiceAccount", "name": "s", "namespace": it} for it in ("one", "two")]
    world.hooks.desired = lambda _: [of_kind("RoleBinding", "b", subjects=subjects)]
    world.parent()
    world.run()
    found = world.stored("RoleBinding", "b")["subjects"]
    assert [subject["namespace"] for subject in found] == ["two", "two"]


# --- update strategies ------------------------------------------------------------------------------------


def test_on_delete_never_writes_again_whatever_the_answer(new_world: NewWorld) -> None:
    world = new_world("OnDelete")
    world.hooks.desired = template_then(stub)
    world.parent()
    assert world.run() == ["create pods p 201"]
    for value in ("1", "2"):
        world.label("p", x=value)
        assert world.run() == []


@pytest.mark.parametrize("method", ["OnDelete", "InPlace"])
def test_a_stub_for_a_pod_that_is_not_there_is_posted_and_refused(new_world: NewWorld, method: str) -> None:
    world = new_world(method)
    world.hooks.desired = lambda _: [{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}}]
    world.parent()
    assert once(world.run()) == ["create pods p 422"]


def test_recreate_deletes_on_a_difference_and_creates_on_the_next_sync(new_world: NewWorld) -> None:
    world = new_world("Recreate")
    changing = config_map(k="1")
    world.hooks.desired = lambda _: [changing]
    world.parent()
    world.run()
    changing["data"] = {"k": "2"}
    world.touch()
    assert world.run() == ["delete configmaps c 200", "create configmaps c 201"]


# --- retirement and the claim race ------------------------------------------------------------------------


def test_retiring_is_one_put(new_world: NewWorld) -> None:
    world = new_world()
    world.hooks.desired = template_then(last_applied_echo)
    world.parent()
    world.run()
    world.hooks.desired = retire
    world.touch()
    assert world.run() == ["update pods p 200"]
    assert labels_of(world.stored("Pod", "p"))["state"] == "retiring"


def just_before(world: World, verb: str, resource: str, act: Callable[[], object]) -> None:
    """Do something once, between what Metacontroller observed and what it then asks for."""

    def watch(call: Call) -> None:
        if (call.verb, call.resource) == (verb, resource):
            world.before(None)
            act()

    world.before(watch)


def test_a_claim_between_observation_and_put_makes_it_a_409_that_is_swallowed(new_world: NewWorld) -> None:
    world = new_world()
    world.hooks.desired = template_then(last_applied_echo)
    world.parent()
    world.run()
    world.hooks.desired = retire
    just_before(world, "update", "pods", lambda: world.label("p", **{"session-id": "s1"}))
    world.touch()
    assert world.run() == ["update pods p 409"]
    labels = labels_of(world.stored("Pod", "p"))
    assert labels["session-id"] == "s1"
    assert "state" not in labels


def test_a_delete_has_only_a_uid_precondition_so_a_pod_claimed_meanwhile_dies(new_world: NewWorld) -> None:
    world = new_world()
    world.hooks.desired = template_then(last_applied_echo)
    world.parent()
    world.run()
    world.hooks.desired = lambda _: []
    just_before(world, "delete", "pods", lambda: world.label("p", **{"session-id": "s1"}))
    world.touch()
    assert world.run() == ["delete pods p 200"]


def test_terminating_pods_are_shown_and_never_updated_or_deleted_again(new_world: NewWorld) -> None:
    world = new_world()
    answer = [pod()]
    world.hooks.desired = lambda _: answer
    world.parent()
    world.run()
    world.bind("p")
    world.delete("Pod", "p")
    world.run()
    newer = pod()
    newer["spec"]["containers"][0]["image"] = "pause:4"
    for answer in ([newer], []):  # noqa: B007 - the hook reads it
        world.touch()
        assert world.run() == []
        assert observed_pods(world.hooks.requests[-1])
    answer = [newer]
    world.delete("Pod", "p", gracePeriodSeconds=0)
    assert world.run() == ["create pods p 201"]


# --- ownership --------------------------------------------------------------------------------------------


def test_a_pod_with_label_and_owner_is_in_the_children_of_the_next_sync_without_a_write(
    new_world: NewWorld,
) -> None:
    world = new_world("OnDelete")
    world.hooks.desired = echo
    parent = world.parent()
    world.run()
    world.create(owned_by(parent, pod()))
    assert world.run() == []
    assert observed_pods(world.hooks.requests[-1])


def test_an_orphan_with_the_label_is_adopted_before_the_hook_which_sees_it_without_owner(
    new_world: NewWorld,
) -> None:
    world = new_world()
    world.hooks.desired = lambda request: [stub(it) for it in observed_pods(request)]
    parent = world.parent()
    world.run()
    world.create(owned_by(parent, pod(), referenced=False))
    # Adopted; the same sync writes the annotation from its stale copy; the next one succeeds.
    assert world.run() == ["update pods p 200", "update pods p 409", "update pods p 200"]
    first = next(it for it in world.hooks.requests if observed_pods(it))
    assert owners_of(observed_pods(first)[0]) == []
    assert controller_of(world.stored("Pod", "p")) is not None


def test_an_orphan_that_the_hook_does_not_list_is_adopted_and_deleted_in_the_same_sync(
    new_world: NewWorld,
) -> None:
    world = new_world()
    parent = world.parent()
    world.run()
    world.create(owned_by(parent, pod(), referenced=False))
    assert world.run() == ["update pods p 200", "delete pods p 200"]


def test_an_owner_without_the_label_is_taken_off_and_the_pod_never_shown(new_world: NewWorld) -> None:
    world = new_world()
    parent = world.parent()
    world.run()
    world.create(owned_by(parent, pod(), labelled=False))
    assert world.run() == ["update pods p 200"]
    assert owners_of(world.stored("Pod", "p")) == []
    assert not any(observed_pods(request) for request in world.hooks.requests)


def test_a_label_taken_off_a_child_releases_it_and_its_name_stays_taken(new_world: NewWorld) -> None:
    world = new_world()
    world.hooks.desired = lambda _: [pod()]
    world.parent()
    world.run()
    world.label("p", **{"controller-uid": None})
    writes = world.run()
    assert writes[:2] == ["update pods p 200", "create pods p 409"]
    assert set(writes[2:]) <= {"create pods p 409"}
    assert owners_of(world.stored("Pod", "p")) == []


def test_a_pod_of_another_controller_is_ignored(new_world: NewWorld) -> None:
    world = new_world()
    parent = world.parent()
    other = world.create(world.placed(config_map("other")))
    world.run()
    foreign = owned_by(other, pod(labels={"controller-uid": uid_of(parent)}), labelled=False)
    world.create(foreign)
    assert world.run() == []
    assert not any(observed_pods(request) for request in world.hooks.requests)


def test_a_name_that_a_foreign_object_has_taken_is_a_silent_409(new_world: NewWorld) -> None:
    world = new_world()
    world.create(world.placed(config_map(k="foreign")))
    world.hooks.desired = lambda _: [config_map()]
    world.parent()
    assert once(world.run()) == ["create configmaps c 409"]
    assert world.stored("ConfigMap", "c")["data"] == {"k": "foreign"}


def test_an_undeclared_kind_is_created_once_then_409_and_never_deleted(new_world: NewWorld) -> None:
    world = new_world()
    claim: Object = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "v"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    }
    desired = [claim]
    world.hooks.desired = lambda _: desired
    world.parent()
    assert once(world.run())[0] == "create persistentvolumeclaims v 201"
    world.touch()
    assert once(world.run()) == ["create persistentvolumeclaims v 409"]
    desired = []
    world.touch()
    assert world.run() == []
    assert world.get("PersistentVolumeClaim", "v") is not None


# --- caches that lag --------------------------------------------------------------------------------------


def test_with_a_late_watch_a_generated_secret_is_generated_again_and_the_first_value_stays(
    new_world: NewWorld,
) -> None:
    world = new_world("OnDelete")
    values = chain(("Zmlyc3Q=",), repeat("b3RoZXI="))

    def secrets(request: Object) -> list[Object]:
        if request["children"]["Secret.v1"]:
            return [{"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}}]
        return [of_kind("Secret", "s", data={"v": next(values)})]

    world.parent()
    world.run()
    world.hold("secrets")
    world.hooks.desired = secrets
    world.touch()
    # A busy machine syncs once more than it was touched.
    first, *more = world.run()
    assert first == "create secrets s 201"
    world.touch()
    assert {*more, *world.run()} == {"create secrets s 409"}
    world.hold("secrets", held=False)
    assert world.run() == []
    assert world.stored("Secret", "s")["data"] == {"v": "Zmlyc3Q="}


@pytest.mark.parametrize("follows", [True, False], ids=["slots", "random names"])
def test_with_a_late_watch_only_names_that_follow_from_the_state_do_not_overshoot(
    new_world: NewWorld, follows: bool
) -> None:
    world = new_world()
    numbers = iter(range(1000))

    def pool(request: Object) -> list[Object]:
        present = [last_applied_echo(it) for it in observed_pods(request)]
        missing = range(5 - len(present))
        return [*present, *(pod(f"p{slot if follows else next(numbers)}") for slot in missing)]

    world.parent()
    world.run()
    world.hold("pods")
    world.hooks.desired = pool
    for _ in range(3):
        world.touch()
        world.run()
    world.hold("pods", held=False)
    world.run()
    assert (len(observed_pods(world.hooks.requests[-1])) == 5) == follows


# --- finalize ---------------------------------------------------------------------------------------------


def test_the_finalizer_is_added_before_the_first_hook_call(new_world: NewWorld) -> None:
    world = new_world()
    world.parent()
    world.run()
    assert world.hooks.requests[0]["parent"]["metadata"]["finalizers"] == [FINALIZER + world.namespace]


def test_a_deleted_parent_is_finalized_its_answer_applied_until_finalized_says_so(
    new_world: NewWorld,
) -> None:
    world = new_world()
    world.hooks.desired = lambda _: [config_map(k="1"), pod()]
    parent = world.parent()
    world.run()
    draining = {"status": {"draining": True}, "children": [config_map(k="2")], "finalized": False}
    world.hooks.finalize = lambda _: draining
    world.delete("Widget", "a")
    assert world.run() == ["delete pods p 200", "update configmaps c 200"]
    assert world.hooks.finalizing[-1]["finalizing"] is True
    assert world.stored("Widget", "a")["status"]["draining"] is True
    world.create(owned_by(parent, pod("late")))
    assert world.run() == ["delete pods late 200"]
    world.create(owned_by(parent, pod("orphan"), referenced=False))
    assert world.run() == []
    world.hooks.finalize = lambda _: {"children": [config_map("never")], "finalized": True}
    world.patch("Widget", "a", {"metadata": {"labels": {"touched": "yes"}}})
    assert world.run() == []
    assert world.get("Widget", "a") is None
    assert world.get("ConfigMap", "never") is None


def test_while_the_hook_fails_a_deleted_parent_stays_and_so_do_its_children(new_world: NewWorld) -> None:
    world = new_world()
    world.hooks.desired = lambda _: [pod()]
    world.parent()
    world.run()
    world.hooks.finalize = lambda _: 1 / 0
    world.delete("Widget", "a")
    assert world.run() == []
    world.collect_garbage()
    assert world.get("Pod", "p") is not None
    world.hooks.finalize = lambda _: {"children": [], "finalized": True}
    world.patch("Widget", "a", {"metadata": {"labels": {"touched": "yes"}}})
    world.run()
    assert world.get("Widget", "a") is None


def test_after_a_foreground_deletion_took_the_children_the_hook_may_still_make_new_ones(
    new_world: NewWorld,
) -> None:
    world = new_world()
    world.hooks.desired = lambda _: [pod()]
    world.parent()
    world.run()
    answer = {"status": {"seen": True}, "children": [config_map()], "finalized": False}
    world.hooks.finalize = lambda _: answer
    world.delete("Widget", "a", propagationPolicy="Foreground")
    writes = world.run()
    world.collect_garbage()
    # While the garbage collector's finalizer is on the parent, the answer's children are ignored. The news of
    # the pod's end may come before that of the parent's: then it is made once more, and deleted.
    rest = ["create configmaps c 201"]
    assert [*writes, *world.run()] in (rest, ["create pods p 201", "delete pods p 200", *rest])
    assert world.get("Pod", "p") is None
    assert world.stored("Widget", "a")["status"]["seen"] is True


def test_finalized_in_a_sync_answer_removes_and_adds_the_finalizer_for_ever(new_world: NewWorld) -> None:
    world = new_world(ignoreStatusChanges=False)
    world.hooks.answer = lambda _: {"children": [], "finalized": True}
    world.parent()
    assert world.stay_busy().count("update widgets a 200") > 10


def test_a_parent_that_leaves_the_label_selector_is_finalized_and_its_children_deleted(
    new_world: NewWorld,
) -> None:
    world = new_world()
    world.hooks.desired = lambda _: [pod()]
    world.parent()
    world.run()
    world.hooks.finalize = lambda request: {"children": [], "finalized": not observed_pods(request)}
    world.patch("Widget", "a", {"metadata": {"labels": {"world": "another"}}})
    assert world.run() == ["delete pods p 200"]
    assert "finalizers" not in world.stored("Widget", "a")["metadata"]
    assert "deletionTimestamp" not in world.hooks.finalizing[0]["parent"]["metadata"]


# --- related objects --------------------------------------------------------------------------------------


def secret(world: World, name: str, **labels: str) -> Object:
    return world.create(world.placed(of_kind("Secret", metadata={"name": name, "labels": labels})))


@pytest.mark.parametrize(
    ("rule", "seen"),
    [
        ({"names": ["wanted"]}, ["wanted"]),
        ({"names": []}, ["other", "wanted"]),
        ({"labelSelector": {"matchLabels": {"color": "red"}}}, ["other"]),
        ({"labelSelector": {"matchLabels": {"no": "such"}}}, []),
    ],
    ids=["names", "empty names are all names", "labels", "labels of none"],
)
def test_which_objects_a_customize_rule_selects(new_world: NewWorld, rule: Object, seen: list[str]) -> None:
    world = new_world(customizes=True)
    secret(world, "wanted")
    secret(world, "other", color="red")
    rules = [{"apiVersion": "v1", "resource": "secrets", "namespace": world.namespace, **rule}]
    world.hooks.related = rules
    world.parent()
    world.run()
    assert sorted(world.hooks.requests[-1]["related"]["Secret.v1"]) == [
        f"{world.namespace}/{it}" for it in seen
    ]


def test_a_customize_rule_without_a_namespace_selects_from_all_of_them(new_world: NewWorld) -> None:
    world = new_world(customizes=True)
    world.hooks.related = [{"apiVersion": "v1", "resource": "configmaps", "names": ["kube-root-ca.crt"]}]
    world.parent()
    world.run()
    related = world.hooks.requests[-1]["related"]["ConfigMap.v1"]
    assert {"default/kube-root-ca.crt", "kube-system/kube-root-ca.crt"} <= related.keys()


def test_a_related_object_that_changes_appears_or_goes_makes_a_sync_and_others_do_not(
    new_world: NewWorld,
) -> None:
    world = new_world(customizes=True)
    secret(world, "wanted")
    secret(world, "other")
    rule = {
        "apiVersion": "v1",
        "resource": "secrets",
        "namespace": world.namespace,
        "names": ["wanted", "later"],
    }
    world.hooks.related = [rule]
    world.parent()
    world.run()
    actions: list[tuple[Callable[[], object], int]] = [
        (lambda: world.patch("Secret", "wanted", {"data": {"k": "dw=="}}), 1),
        (lambda: secret(world, "later"), 1),
        (lambda: world.delete("Secret", "later"), 1),
        (lambda: world.patch("Secret", "other", {"data": {"k": "dw=="}}), 0),
    ]
    for act, syncs in actions:
        count = len(world.hooks.requests)
        act()
        world.run()
        assert len(world.hooks.requests) == count + syncs


def test_a_customize_answer_is_kept_for_a_generation_and_its_failure_prevents_the_sync(
    new_world: NewWorld,
) -> None:
    world = new_world(customizes=True)
    rule = {"apiVersion": "v1", "resource": "secrets", "namespace": world.namespace}
    secret(world, "wanted")
    secret(world, "other")
    world.hooks.related = [{**rule, "names": ["wanted"]}]
    world.parent()
    world.run()
    world.hooks.related = [{**rule, "names": ["other"]}]
    world.touch()
    world.run()
    assert list(world.hooks.requests[-1]["related"]["Secret.v1"]) == [f"{world.namespace}/wanted"]
    world.patch("Widget", "a", {"spec": {"size": 2}})
    world.run()
    assert list(world.hooks.requests[-1]["related"]["Secret.v1"]) == [f"{world.namespace}/other"]
    world.hooks.related = [{**rule, "names": ["x"], "labelSelector": {}}]
    count = len(world.hooks.requests)
    world.patch("Widget", "a", {"spec": {"size": 3}})
    world.run()
    assert len(world.hooks.requests) == count


# --- status -----------------------------------------------------------------------------------------------


def test_the_status_is_replaced_whole_and_written_only_when_it_differs(new_world: NewWorld) -> None:
    world = new_world()
    world.hooks.answer = lambda _: {"status": {"n": 1, "observedGeneration": 77}, "children": []}
    world.parent()
    world.run()
    world.patch("Widget", "a", {"status": {"foreign": True}}, "status")
    world.touch()
    assert world.run_for_parent() == ["update widgets/status a 200"]
    assert world.stored("Widget", "a")["status"] == {"n": 1, "observedGeneration": 1}
    world.touch()
    assert world.run_for_parent() == []


@pytest.mark.parametrize(
    ("value", "rests"),
    [(1.0, False), (1e3, False), (1.5, True), (2, True), (None, True), ([], True), ({}, True)],
    ids=["1.0", "1000.0", "1.5", "2", "null", "[]", "{}"],
)
def test_a_whole_number_float_in_the_status_is_put_on_every_sync(
    new_world: NewWorld, value: Any, rests: bool
) -> None:
    world = new_world()
    world.hooks.answer = lambda _: {"status": {"x": value}, "children": []}
    world.parent()
    world.run()
    world.touch()
    assert world.run_for_parent() == ([] if rests else ["update widgets/status a 200"])


def test_a_status_that_changes_each_time_is_a_hot_loop_unless_status_changes_are_ignored(
    new_world: NewWorld,
) -> None:
    for ignores, loops in ((False, True), (True, False)):
        world = new_world(ignoreStatusChanges=ignores)
        counted = world.hooks.requests
        world.hooks.answer = lambda _, counted=counted: {"status": {"n": len(counted)}, "children": []}
        world.parent()
        assert (world.stay_busy().count("update widgets/status a 200") > 10) == loops


def test_a_conflict_on_the_status_is_read_and_written_again(new_world: NewWorld) -> None:
    world = new_world()
    world.hooks.answer = lambda _: {"status": {"n": 1}, "children": []}
    just_before(world, "update", "widgets/status", world.touch)
    world.parent()
    status = [line for line in world.run_for_parent() if "status" in line]
    assert status == ["update widgets/status a 409", "update widgets/status a 200"]


def test_annotation_and_status_changes_of_a_child_make_a_sync_and_a_no_op_does_not(
    new_world: NewWorld,
) -> None:
    world = new_world()
    world.hooks.desired = template_then(last_applied_echo)
    world.parent()
    world.run()
    for body, subresource, syncs in (
        ({"metadata": {"annotations": {"a": "1"}}}, "", 1),
        ({"status": {"phase": "Running"}}, "status", 1),
        ({"metadata": {"annotations": {"a": "1"}}}, "", 0),
    ):
        count = len(world.hooks.requests)
        world.patch("Pod", "p", body, subresource)
        world.run()
        assert len(world.hooks.requests) == count + syncs


def test_resync_after_seconds_calls_the_hook_again(new_world: NewWorld) -> None:
    world = new_world()
    world.hooks.answer = lambda _: {"children": [], "resyncAfterSeconds": 0.005}
    world.parent()
    world.stay_busy()
    assert len(world.hooks.requests) > 1


def test_children_of_one_parent_are_not_shown_to_another(new_world: NewWorld) -> None:
    world = new_world()
    world.hooks.desired = lambda request: [config_map(f"of-{name_of(request['parent'])}")]
    world.parent("a")
    world.parent("b")
    assert sorted(world.run()) == ["create configmaps of-a 201", "create configmaps of-b 201"]
    for name in ("a", "b"):
        mine = [it for it in world.hooks.requests if name_of(it["parent"]) == name]
        assert list(mine[-1]["children"]["ConfigMap.v1"]) in ([], [f"{world.namespace}/of-{name}"])
