"""The admission policies on a real API server: what a server that has been taken over asks for, and gets.

Each rule has its attacks, and each attack passes once its rule is dropped: nothing else would have stopped
it.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING

import pytest

from cli_mcp import names
from mcp_server.cluster import writes
from mcp_server.cluster.pods import SandboxPod, read_pod
from tests.e2e.admission_attacks import (
    ATTACKS,
    FIRST_RULES,
    SEVERAL_RULES,
    Attack,
    creating_pod,
    creating_workspace,
    deleting,
    limits,
    meta,
    patching,
    variable,
    workspace_volume,
)
from tests.e2e.admission_world import (
    NOW,
    RUN,
    WHO,
    Object,
    Translator,
    World,
    definition,
    elsewhere,
    for_the_test,
    foreign_pod,
    furnished,
    of_kind,
    policies,
    refusal,
)
from tests.e2e.conftest import in_cluster, skip_without
from tests.e2e.kube_client import KubeClient, eventually
from tests.e2e.operator import apply, get, kubectl

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CASES = [
    pytest.param(rule, attack, name not in SEVERAL_RULES, id=f"{rule[:50]}: {name}")
    for rule, attacks in ATTACKS.items()
    for name, attack in attacks.items()
]


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    skip_without(("KUBECONFIG",))
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": RUN}}
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
            world = furnished(Translator(api.url, RUN))
            # Policies take effect a moment after they were stored, each at its own time.
            for rule in FIRST_RULES:
                (attack, *_) = ATTACKS[rule].values()
                eventually(partial(is_refused, world, attack))
            yield world
    finally:
        for it in reversed(made):
            kubectl("delete", it["kind"], it["metadata"]["name"], "--wait=false", check=False)


def is_refused(world: World, attack: Attack) -> bool:
    return attack(world)(world.server()).code == 403


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
# To new pods, before the policies see them: by limit ranges, and by OpenShift's constraints.
ADDED_BY_ADMISSION = {
    "kubernetes.io/limit-ranger": "LimitRanger plugin set: cpu request for container sandbox",
    "openshift.io/scc": "restricted-v2",
    "seccomp.security.alpha.kubernetes.io/pod": "runtime/default",
    "security.openshift.io/validated-scc-subject-type": "user",
}


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
        creating_pod(meta(annotations=ADDED_BY_ADMISSION)),
    ],
    ids=["create", "workspace", "resume", "unapplied", "delete", "less", "added-to"],
)
def test_what_a_server_and_a_gateway_do_passes(world: World, account: str, request_: Attack) -> None:
    assert refusal(request_(world)(world.server(account))) == ""


@pytest.mark.parametrize("field", ["labels", "annotations"])
def test_what_admission_of_the_cluster_adds_is_named_with_the_remedy(world: World, field: str) -> None:
    added = creating_pod(meta(**{field: {"example.com/a": "x", "example.com/b": "y"}}))
    said = refusal(added(world)(world.server()))
    # The order of a map's keys is nobody's.
    assert re.search("others: (example.com/a, example.com/b|example.com/b, example.com/a); ", said), said
    assert said.endswith(
        "what your cluster adds to every pod belongs into ValidatingAdmissionPolicy cli-mcp-sandboxes"
    )


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
