"""sync against the models of Metacontroller and the API server: whole lives of an instance."""

import base64
import json
from datetime import timedelta
from typing import Any

import pytest
import yaml

from cli_mcp import names
from cli_mcp.session_keys import PUBLICATION
from hooks.generated import decoded_data
from hooks.reconcile import sync
from hooks.wire import CHILD_KINDS, MalformedRequest
from tests.hooks.world import (
    ALLOWLIST,
    KUBECONFIG,
    KUBERNETES,
    NAMESPACE,
    ROOT,
    SETTINGS,
    CountingKeys,
    World,
)
from tests.kube.deletion import DeleteOptions
from tests.kube.errors import ApiError
from tests.kube.objects import Object

POOL = "cli-mcp-demo-pool-"
BOTH = {"targets": [*KUBERNETES["targets"], *ALLOWLIST["targets"]]}
RICH: dict[str, Any] = {
    "replicas": 3,
    "sandbox": {
        "image": "registry.example.com/tools:2",
        "warmPoolSize": 2,
        "imagePullPolicy": "Always",
        "resources": {"requests": {"cpu": "0.5"}, "limits": {"cpu": "1000m", "memory": "1024Mi"}},
        "env": [
            {"name": "EMPTY", "value": ""},
            {"name": "HOME", "value": "/tmp"},
            {"name": "FROM", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k", "optional": False}}},
        ],
        "nodeSelector": {"disk": "ssd"},
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
        "imagePullSecrets": [{"name": "pull"}],
        "hostUsers": False,
        "dns": "cluster",
        "maxLifetime": "48h",
        "workspace": {"persistent": True, "size": "1024Mi"},
    },
    "serverContainer": {"resources": {"limits": {"memory": "2048Mi"}}},
    "proxy": BOTH,
    "ssh": {
        "routes": [
            {"username": "ann", "authorizedKeysSecret": "keys"},
            {"usernamePattern": "^agent-[a-z]+$", "authorizedKeysSecret": "keys"},
        ],
        "service": {"type": "NodePort", "nodePort": 32022},
    },
}


@pytest.fixture
def world() -> World:
    world = World()
    world.admin_secrets()
    return world


def settled(world: World, spec: Object) -> World:
    world.apply(spec)
    world.run()
    return world


def pod_template(deployment: Object) -> Object:
    template: Object = deployment["spec"]["template"]
    return template


@pytest.mark.parametrize(
    "spec",
    [{"proxy": ALLOWLIST}, {"sandbox": {"warmPoolSize": 2}, "proxy": KUBERNETES}, RICH],
    ids=["allowlist", "kubernetes with a pool", "everything"],
)
def test_an_instance_becomes_ready_and_then_nothing_is_written(world: World, spec: Object) -> None:
    settled(world, spec)
    assert world.condition()["status"] == "True", world.condition()
    assert len(world.pods()) == spec.get("sandbox", {}).get("warmPoolSize", 0)
    assert world.sandbox_config()["gate"] == {"open": True, "reason": ""}
    assert world.writes_at_rest() == []
    world.restart()
    world.run()
    assert world.writes_at_rest() == [], "also with a new Metacontroller"


def test_no_sandbox_is_made_before_the_gate_opens(world: World) -> None:
    settled(world, {"sandbox": {"warmPoolSize": 3}, "proxy": BOTH})
    journal = [(entry.resource, entry.name) for entry in world.api.journal if entry.verb == "create"]
    first_pod = next(index for index, (resource, _) in enumerate(journal) if resource == "pods")
    before = {f"{resource} {name}" for resource, name in journal[:first_pod]}
    assert {
        "networkpolicies.networking.k8s.io cli-mcp-demo-sandbox",
        "networkpolicies.networking.k8s.io cli-mcp-demo-proxy",
        "configmaps cli-mcp-demo-proxy",
        "configmaps cli-mcp-demo-session-keys",
        "secrets cli-mcp-demo-proxy-ca",
        "services cli-mcp-demo-proxy",
    } <= before


def test_a_generated_secret_survives_a_cache_that_lags(world: World) -> None:
    world.apply({"proxy": ALLOWLIST})
    world.controller.informer("secrets").held = True
    for _ in range(30):
        world.poke()
        world.controller.run()
        world.clock.advance(1)
    stored = world.get("secrets", "cli-mcp-demo-session-key")["data"]
    assert world.keys.made > 2, "later syncs made keys of their own"
    world.controller.informer("secrets").held = False
    world.run()
    assert world.get("secrets", "cli-mcp-demo-session-key")["data"] == stored
    published = world.get("configmaps", "cli-mcp-demo-session-keys")["data"]
    assert list(published) == ["0000000000000002.pem"], "what is published is what is stored"


def test_a_claim_is_refilled_and_flaps_no_condition(world: World) -> None:
    settled(world, {"sandbox": {"warmPoolSize": 2}, "proxy": ALLOWLIST})
    before = world.condition()
    world.claim(POOL + "0", "s1")
    world.controller.run()
    assert world.condition() == before
    assert world.condition("WarmPoolReady")["reason"] == "WarmPoolNotReady"
    world.run()
    assert sorted(world.pods()) == [POOL + "0", POOL + "1", POOL + "2"]
    assert world.condition() == before
    assert world.status()["warmPoolReady"] == 2
    assert world.writes_at_rest() == []


def test_a_pool_that_does_not_refill_within_five_minutes_takes_ready_away(world: World) -> None:
    settled(world, {"sandbox": {"warmPoolSize": 1}, "proxy": ALLOWLIST})
    world.claim(POOL + "0", "s1")
    world.run(pods_ready=False)
    assert world.condition()["status"] == "True"
    world.clock.advance(280)
    world.controller.deliver()
    world.run(pods_ready=False)
    assert world.condition()["status"] == "True"
    world.clock.advance(20)
    world.controller.deliver()
    world.controller.run()
    assert world.condition()["status"] == "False"
    assert world.condition()["reason"] in ("WarmPoolNotReady", "WarmPoolUnhealthy")


def test_an_idle_session_is_retired_in_two_steps_and_its_slot_refilled(world: World) -> None:
    settled(world, {"sandbox": {"warmPoolSize": 1, "idleTimeout": "10m"}, "proxy": ALLOWLIST})
    world.claim(POOL + "0", "s1")
    world.run()
    world.clock.advance(timedelta(minutes=12).total_seconds())
    world.controller.deliver()
    start = len(world.api.journal)
    world.run()
    writes = [
        (it.verb, it.name, it.code)
        for it in world.api.journal[start:]
        if it.resource == "pods" and it.is_write
    ]
    mine = [write for write in writes if write[1] == POOL + "0"]
    assert mine[0] == ("update", POOL + "0", 200), "marked"
    assert mine[1] == ("delete", POOL + "0", 200), "and deleted, by another sync"
    assert sorted(world.pods()) == [POOL + "1"]


def test_a_claim_that_beats_the_mark_keeps_its_pod(world: World) -> None:
    settled(world, {"sandbox": {"warmPoolSize": 2}, "proxy": ALLOWLIST})
    world.apply({"sandbox": {"warmPoolSize": 1}, "proxy": ALLOWLIST})
    world.controller.informer("pods").held = True
    surplus = POOL + "1"
    world.claim(surplus, "s1")
    world.controller.run()  # sees the pod as it was before the claim
    assert ("update", surplus, 409) in [(it.verb, it.name, it.code) for it in world.api.journal]
    world.controller.informer("pods").held = False
    world.run()
    assert sorted(world.pods()) == [POOL + "0", surplus]
    assert world.pods()[surplus]["metadata"]["labels"][names.LABEL_STATE] == "active"


def test_a_mark_that_beats_the_claim_leaves_the_claim_a_conflict(world: World) -> None:
    settled(world, {"sandbox": {"warmPoolSize": 2}, "proxy": ALLOWLIST})
    world.apply({"sandbox": {"warmPoolSize": 1}, "proxy": ALLOWLIST})
    read = world.pods()[POOL + "1"]["metadata"]
    world.controller.deliver()
    world.controller.sync_next()
    body = {
        "metadata": {"resourceVersion": read["resourceVersion"], "labels": {names.LABEL_SESSION_ID: "s1"}}
    }
    with pytest.raises(ApiError) as refused:
        world.api.patch("pods", NAMESPACE, POOL + "1", body)
    assert refused.value.reason == "Conflict"


def test_a_lagging_cache_makes_no_pod_too_many(world: World) -> None:
    settled(world, {"proxy": ALLOWLIST})
    world.apply({"sandbox": {"warmPoolSize": 5}, "proxy": ALLOWLIST})
    world.controller.informer("pods").held = True
    for _ in range(5):
        world.poke()
        world.controller.run()
    assert len(world.pods()) == 5


def test_what_sandboxes_reach_is_told_and_rolls_no_sandbox(world: World) -> None:
    settled(world, {"sandbox": {"warmPoolSize": 1}, "proxy": BOTH})
    before = world.sandbox_config()
    assert before["reach"] == [
        "api.example.com:6443 (Kubernetes; the credential is put in)",
        "pypi.org:443",
        "registry.example.com:5000",
    ]
    pods = world.pods().keys()
    settled(world, {"sandbox": {"warmPoolSize": 1}, "proxy": KUBERNETES})
    after = world.sandbox_config()
    assert after["reach"] == before["reach"][:1]
    assert after["poolHash"] == before["poolHash"]
    assert world.pods().keys() == pods


def test_a_pod_from_the_server_costs_no_write(world: World) -> None:
    settled(world, {"proxy": ALLOWLIST})
    config = world.sandbox_config()
    template = config["template"]
    applied = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "labels": {"controller-uid": config["ownerReference"]["uid"]},
            "name": "cli-mcp-demo-s-abc-0",
            "namespace": NAMESPACE,
        },
    }
    annotation = json.dumps(applied, sort_keys=True, separators=(",", ":"))
    stamp = "2026-01-01T00:00:30Z"
    world.api.create(
        {
            **template,
            "metadata": {
                **template["metadata"],
                "name": "cli-mcp-demo-s-abc-0",
                "labels": template["metadata"]["labels"]
                | {names.LABEL_SESSION_ID: "abc", names.LABEL_STATE: "claiming"},
                "annotations": {
                    names.ANNOTATION_LAST_APPLIED: annotation,
                    names.ANNOTATION_LAST_ACTIVITY: stamp,
                },
                "ownerReferences": [config["ownerReference"]],
            },
        }
    )
    world.controller.run()
    assert world.writes_at_rest() == []
    assert list(world.pods()) == ["cli-mcp-demo-s-abc-0"]


SSH = {"routes": [{"username": "ann", "authorizedKeysSecret": "keys"}]}
ROLLS = {
    # path: (value, server rolls, proxy rolls, unclaimed sandboxes roll)
    "replicas": (2, False, False, False),
    "tools": (["bash", "files"], False, False, False),
    "serverContainer": ({"imagePullPolicy": "Always"}, True, False, False),
    "proxy.targets": (ALLOWLIST["targets"], False, True, True),
    "proxy.upstream": ({"httpProxy": "http://proxy.example.com:3128"}, False, False, False),
    "ssh": (SSH, False, False, False),
    "sandbox.image": ("registry.example.com/other:1", False, False, True),
    "sandbox.idleTimeout": ("1h", False, False, False),
    "sandbox.warmPoolSize": (3, False, False, False),
    "sandbox.resources": ({"limits": {"cpu": "2"}}, False, False, True),
    "sandbox.env": ([{"name": "A", "value": "b"}], False, False, True),
    "sandbox.imagePullPolicy": ("Always", False, False, True),
    "sandbox.runtimeClassName": ("gvisor", False, False, True),
    "sandbox.nodeSelector": ({"a": "b"}, False, False, True),
    "sandbox.tolerations": ([{"key": "a", "operator": "Exists"}], False, False, True),
    "sandbox.priorityClassName": ("high", False, False, True),
    "sandbox.imagePullSecrets": ([{"name": "pull"}], False, False, True),
    "sandbox.hostUsers": (False, False, False, True),
    "sandbox.maxSessions": (5, False, False, False),
    "sandbox.maxSessionsPerOwner": (5, False, False, False),
    "sandbox.maxLifetime": ("24h", False, False, False),
    "sandbox.commandTimeout": ({"default": "30s"}, False, False, False),
    "sandbox.outputLimit": ("20k", False, False, False),
    "sandbox.dns": ("cluster", False, False, True),
    "sandbox.isolationTest": (False, False, False, True),
    "sandbox.workspace": ({"persistent": True}, False, False, True),
    "defaultSession": ("refuse", False, False, False),
}


@pytest.mark.parametrize("path", ROLLS)
def test_what_a_spec_change_rolls_and_what_a_claimed_session_keeps(world: World, path: str) -> None:
    value, server_rolls, proxy_rolls, sandboxes_roll = ROLLS[path]
    spec: dict[str, Any] = {"sandbox": {"warmPoolSize": 2}, "proxy": dict(KUBERNETES)}
    settled(world, spec)
    world.claim(POOL + "0", "s1")
    world.run()
    claimed = world.pods()[POOL + "0"]
    uids = {pod["metadata"]["uid"] for name, pod in world.pods().items() if name != POOL + "0"}
    server, proxy = (
        world.get("deployments.apps", "cli-mcp-demo"),
        world.get("deployments.apps", "cli-mcp-demo-proxy"),
    )

    *above, field = path.split(".")
    place = spec
    for part in above:
        place = place[part]
    place[field] = value
    settled(world, spec)

    assert (
        pod_template(world.get("deployments.apps", "cli-mcp-demo")) != pod_template(server)
    ) is server_rolls
    assert (
        pod_template(world.get("deployments.apps", "cli-mcp-demo-proxy")) != pod_template(proxy)
    ) is proxy_rolls
    assert world.pods()[POOL + "0"]["spec"] == claimed["spec"], "a claimed session keeps what it started with"
    remaining = {pod["metadata"]["uid"] for pod in world.pods().values()}
    assert (uids & remaining == set()) is sandboxes_roll
    assert world.condition()["status"] == "True", world.condition()
    assert world.writes_at_rest() == []


def test_every_field_of_the_spec_is_in_the_table() -> None:
    crd = yaml.safe_load((ROOT / "config/crd/climcpinstances.yaml").read_text())
    spec = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    paths = {f"{group}.{field}" for group in ("proxy", "sandbox") for field in spec[group]["properties"]}
    assert set(ROLLS) == paths | set(spec) - {"proxy", "sandbox"}


def test_replicas_bring_disruption_budgets_and_take_them_away(world: World) -> None:
    settled(world, {"replicas": 2, "proxy": ALLOWLIST})
    for name in ("cli-mcp-demo", "cli-mcp-demo-proxy"):
        assert world.get("poddisruptionbudgets.policy", name)["spec"]["maxUnavailable"] == 1
        deployment = world.get("deployments.apps", name)
        assert deployment["spec"]["replicas"] == 2
    settled(world, {"replicas": 1, "proxy": ALLOWLIST})
    assert world.find("poddisruptionbudgets.policy", "cli-mcp-demo") is None


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("deployments.apps", "cli-mcp-demo"),
        ("services", "cli-mcp-demo-proxy"),
        ("networkpolicies.networking.k8s.io", "cli-mcp-demo-sandbox"),
        ("configmaps", "cli-mcp-demo-proxy"),
        ("configmaps", "cli-mcp-demo"),
        ("roles.rbac.authorization.k8s.io", "cli-mcp-demo"),
        ("secrets", "cli-mcp-demo-proxy-ca"),
        ("serviceaccounts", "cli-mcp-demo-sandbox"),
    ],
)
def test_a_deleted_child_comes_back_and_takes_no_sandbox_with_it(world: World, kind: str, name: str) -> None:
    settled(world, {"sandbox": {"warmPoolSize": 1}, "proxy": KUBERNETES})
    world.claim(POOL + "0", "s1")
    world.run()
    before = world.pods()[POOL + "0"]["metadata"]["uid"]
    world.api.delete(kind, NAMESPACE, name)
    world.run()
    assert world.find(kind, name) is not None
    assert world.pods()[POOL + "0"]["metadata"]["uid"] == before
    assert world.condition()["status"] == "True"
    assert world.writes_at_rest() == []


def test_a_policy_that_was_tampered_with_closes_the_gate_until_it_is_mended(world: World) -> None:
    settled(world, {"sandbox": {"warmPoolSize": 1}, "proxy": ALLOWLIST})
    body: Object = {"spec": {"egress": [{}]}}
    world.api.patch("networkpolicies.networking.k8s.io", NAMESPACE, "cli-mcp-demo-sandbox", body)
    world.controller.deliver()
    world.controller.sync_next()
    gate = world.sandbox_config()["gate"]
    assert gate == {
        "open": False,
        "reason": "NetworkPolicy cli-mcp-demo-sandbox is not what it should be yet",
    }
    assert len(world.pods()) == 1
    world.run()
    assert world.sandbox_config()["gate"]["open"]


def test_a_name_that_somebody_else_has_is_said(world: World) -> None:
    world.api.create(
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "cli-mcp-demo-proxy", "namespace": NAMESPACE},
        }
    )
    settled(world, {"sandbox": {"warmPoolSize": 1}, "proxy": ALLOWLIST})
    ready = world.condition()
    assert (ready["status"], ready["reason"]) == ("False", "NameTaken")
    assert "ConfigMap cli-mcp-demo-proxy exists and belongs to somebody else" in ready["message"]
    assert world.pods() == {}
    assert set(world.writes_at_rest()) == {"create configmaps cli-mcp-demo-proxy 409"}
    world.api.delete("configmaps", NAMESPACE, "cli-mcp-demo-proxy")
    world.run()
    assert world.condition()["status"] == "True"


def test_a_missing_secret_is_said_and_appears_without_a_poke() -> None:
    world = settled(World(), {"sandbox": {"warmPoolSize": 1}, "proxy": KUBERNETES})
    assert world.condition()["reason"] == "SecretsNotFound"
    assert "cli-mcp-demo-kubeconfig is missing" in world.condition()["message"]
    assert "cli-mcp-demo-tls is missing" in world.condition()["message"]
    assert world.pods() == {}
    world.admin_secrets()
    world.run()
    assert world.condition()["status"] == "True"
    assert len(world.pods()) == 1


def test_a_kubeconfig_that_goes_bad_takes_nothing_away(world: World) -> None:
    settled(world, {"sandbox": {"warmPoolSize": 1}, "proxy": KUBERNETES})
    routes = world.get("configmaps", "cli-mcp-demo-proxy")["data"]
    uids = {pod["metadata"]["uid"] for pod in world.pods().values()}
    world.secret("cli-mcp-demo-kubeconfig", {"kubeconfig": "clusters: ["})
    world.run()
    assert world.condition()["reason"] == "KubeconfigInvalid"
    assert world.get("configmaps", "cli-mcp-demo-proxy")["data"] == routes
    assert {pod["metadata"]["uid"] for pod in world.pods().values()} == uids
    assert world.sandbox_config()["gate"]["open"]


def test_a_new_token_rolls_nothing(world: World) -> None:
    settled(world, {"sandbox": {"warmPoolSize": 1}, "proxy": KUBERNETES})
    start = len(world.api.journal)
    users = [{"name": "robot", "user": {"token": "another-token"}}]
    world.secret("cli-mcp-demo-kubeconfig", {"kubeconfig": json.dumps(KUBECONFIG | {"users": users})})
    world.run()
    assert world.writes_since(start) == ["update secrets cli-mcp-demo-kubeconfig 200"]


def test_a_changed_allowlist_reaches_the_proxys_files_and_rolls_nothing(world: World) -> None:
    def spec(*domains: str) -> dict[str, Any]:
        return {"proxy": {"targets": [*KUBERNETES["targets"], {"type": "allowlist", "domains": [*domains]}]}}

    settled(world, spec("one.example.com", "two.example.com"))
    names = ("cli-mcp-demo", "cli-mcp-demo-proxy")
    before = [pod_template(world.get("deployments.apps", name)) for name in names]
    settled(world, spec("two.example.com", "three.example.com"))
    assert [pod_template(world.get("deployments.apps", name)) for name in names] == before
    config = json.loads(world.get("configmaps", "cli-mcp-demo-proxy")["data"]["proxy-config.json"])
    assert [route["host"] for route in config["allowlist"]] == ["two.example.com", "three.example.com"]


def test_no_credential_reaches_a_child(world: World) -> None:
    settled(world, {"sandbox": {"warmPoolSize": 1}, "proxy": KUBERNETES})
    for kind in CHILD_KINDS:
        for child in world.api.objects(f"{kind.resource}.{kind.group}".rstrip("."), NAMESPACE):
            if child["metadata"]["name"] == "cli-mcp-demo-kubeconfig":
                continue
            assert "the-real-token" not in json.dumps(child)
            assert "dGhlLXJlYWwt" not in json.dumps(child)


def test_the_session_key_rotates_by_annotation_and_the_old_one_goes_with_its_last_session(
    world: World,
) -> None:
    settled(world, {"sandbox": {"warmPoolSize": 1}, "proxy": ALLOWLIST})
    world.claim(POOL + "0", "s1")
    world.run()
    world.annotate(names.ANNOTATION_ROTATE_SESSION_KEY, "2026-01-01")
    world.run()
    published = world.get("configmaps", "cli-mcp-demo-session-keys")["data"]
    assert len(published) == 2
    world.clock.advance(600)
    world.poke()
    world.run()
    assert len(world.get("configmaps", "cli-mcp-demo-session-keys")["data"]) == 2, "old sandboxes live"
    assert world.writes_at_rest() == []
    for name in list(world.pods()):
        world.api.delete("pods", NAMESPACE, name)
    world.run()
    remaining = world.get("configmaps", "cli-mcp-demo-session-keys")["data"]
    assert len(remaining) == 1
    assert set(remaining) < set(published)


def test_the_ca_rotates_by_annotation_and_keeps_the_previous_one_without_rolling(world: World) -> None:
    settled(world, {"sandbox": {"warmPoolSize": 1}, "proxy": ALLOWLIST})
    before = world.get("secrets", "cli-mcp-demo-proxy-ca")["data"]["ca.crt"]
    start = len(world.api.journal)
    for value in ("one", "two"):
        world.annotate(names.ANNOTATION_ROTATE_PROXY_CA, value)
        world.run()
    after = world.get("secrets", "cli-mcp-demo-proxy-ca")["data"]["ca.crt"]
    assert after != before
    assert set(world.writes_since(start)) == {
        "patch climcpinstances.cli-mcp.redhat.com demo 200",
        "update secrets cli-mcp-demo-proxy-ca 200",
        "update configmaps cli-mcp-demo-proxy-ca 200",
    }
    assert world.writes_at_rest() == []


def ca(world: World) -> tuple[str, str]:
    """The certificates in the Secret and in the ConfigMap."""
    secret = decoded_data(world.get("secrets", "cli-mcp-demo-proxy-ca"))["ca.crt"]
    published = world.get("configmaps", "cli-mcp-demo-proxy-ca")["data"]["ca.crt"]
    return secret, published


@pytest.mark.parametrize("how", ["deleted", "emptied"])
def test_an_authority_that_is_made_again_has_the_one_before_in_its_bundle(world: World, how: str) -> None:
    settled(world, {"sandbox": {"warmPoolSize": 1}, "proxy": ALLOWLIST})
    before, published = ca(world)
    assert before == published
    for _ in range(2):
        if how == "deleted":
            world.api.delete("secrets", NAMESPACE, "cli-mcp-demo-proxy-ca")
        else:
            world.api.update({**world.get("secrets", "cli-mcp-demo-proxy-ca"), "data": {}})
        world.run()
        after, published = ca(world)
        assert after == published
        newest = before.split("-----END CERTIFICATE-----")[0]
        assert newest in after
        assert not after.startswith(newest)
        assert after.count("END CERTIFICATE") == 2
        before = after
    assert decoded_data(world.get("secrets", "cli-mcp-demo-proxy-ca"))["ca.key"].count("END PRIVATE KEY") == 1
    assert world.writes_at_rest() == []


def test_a_secret_that_an_admin_changed_by_hand_is_not_turned_back(world: World) -> None:
    settled(world, {"proxy": ALLOWLIST})
    world.api.patch("secrets", NAMESPACE, "cli-mcp-demo-proxy-ca", {"data": {"ca.crt": "bmV3"}})
    world.run()
    assert world.get("secrets", "cli-mcp-demo-proxy-ca")["data"]["ca.crt"] == "bmV3"
    assert world.writes_at_rest() == []


def test_a_spec_that_todays_rules_refuse_keeps_everything_and_says_so(world: World) -> None:
    settled(world, {"sandbox": {"warmPoolSize": 1}, "proxy": ALLOWLIST})
    world.claim(POOL + "0", "s1")
    world.run()
    pods = set(world.pods())
    stored = world.get("climcpinstances.cli-mcp.redhat.com", "demo")
    start = len(world.api.journal)
    world.api.update({**stored, "spec": {**stored["spec"], "sandbox": {"idleTimeout": "soon"}}})
    world.run()
    ready = world.condition()
    assert (ready["status"], ready["reason"]) == ("False", "SpecInvalid")
    assert "spec.sandbox.idleTimeout" in ready["message"]
    assert set(world.pods()) == pods
    assert world.writes_since(start) == [
        "update climcpinstances.cli-mcp.redhat.com demo 200",
        "update climcpinstances.cli-mcp.redhat.com/status demo 200",
    ]
    assert world.writes_at_rest() == []
    world.api.delete("climcpinstances.cli-mcp.redhat.com", NAMESPACE, "demo")
    world.run()
    assert world.find("climcpinstances.cli-mcp.redhat.com", "demo") is None


def test_two_instances_share_nothing(world: World) -> None:
    world.admin_secrets("other")
    for name in ("demo", "other"):
        world.apply({"sandbox": {"warmPoolSize": 1}, "proxy": ALLOWLIST}, name=name)
    world.run()
    assert world.condition(name="demo")["status"] == world.condition(name="other")["status"] == "True"
    world.api.delete("climcpinstances.cli-mcp.redhat.com", NAMESPACE, "demo")
    world.run()
    assert world.pods("demo") == {}
    assert len(world.pods("other")) == 1
    assert world.condition(name="other")["status"] == "True"
    assert world.writes_at_rest() == []


def test_a_policy_of_somebody_else_that_lets_sandboxes_out_is_said(world: World) -> None:
    world.api.create(
        {
            "apiVersion": "networking.k8s.io/v1",
            "kind": "NetworkPolicy",
            "metadata": {"name": "allow-all", "namespace": NAMESPACE},
            "spec": {"podSelector": {}, "policyTypes": ["Egress"], "egress": [{}]},
        }
    )
    settled(world, {"proxy": ALLOWLIST})
    assert world.condition()["reason"] == "PolicyWidened"
    assert "allow-all" in world.condition()["message"]
    world.api.delete("networkpolicies.networking.k8s.io", NAMESPACE, "allow-all")
    world.run()
    assert world.condition()["status"] == "True"


def test_an_instance_without_a_proxy_has_no_sandboxes(world: World) -> None:
    settled(world, {"sandbox": {"warmPoolSize": 2}})
    assert world.pods() == {}
    assert "spec.proxy is missing" in world.sandbox_config()["gate"]["reason"]


def test_persistent_workspaces_come_with_their_slot_and_outlive_it(world: World) -> None:
    workspace = {"persistent": True, "size": "2Gi", "retain": "2h"}
    settled(
        world,
        {"sandbox": {"warmPoolSize": 1, "idleTimeout": "10m", "workspace": workspace}, "proxy": ALLOWLIST},
    )
    claim = world.get("persistentvolumeclaims", POOL + "0")
    assert claim["spec"]["resources"]["requests"]["storage"] == "2Gi"
    volumes = {it["name"]: it for it in world.pods()[POOL + "0"]["spec"]["volumes"]}
    assert volumes["workspace"]["persistentVolumeClaim"]["claimName"] == POOL + "0"
    used = world.clock().strftime("%Y-%m-%dT%H:%M:%SZ")
    body = {
        "metadata": {
            "labels": {names.LABEL_SESSION_ID: "s1"},
            "annotations": {names.ANNOTATION_LAST_USED: used},
        }
    }
    world.api.patch("persistentvolumeclaims", NAMESPACE, POOL + "0", body)
    world.claim(POOL + "0", "s1")
    world.run()
    world.clock.advance(timedelta(minutes=12).total_seconds())
    world.controller.deliver()
    world.run()
    assert sorted(world.pods()) == [POOL + "1"], "the name of a workspace that is kept is not free"
    assert world.find("persistentvolumeclaims", POOL + "0") is not None
    assert world.writes_at_rest() == []
    world.clock.advance(timedelta(hours=2).total_seconds())
    world.controller.deliver()
    world.run()
    assert world.find("persistentvolumeclaims", POOL + "0") is None


@pytest.mark.parametrize(
    "body",
    [
        None,
        [],
        {},
        {"parent": {}, "children": {}},
        {"parent": {"apiVersion": "v1", "kind": "Pod", "metadata": {}}, "children": {}},
    ],
)
def test_a_malformed_request_fails(body: object) -> None:
    with pytest.raises(MalformedRequest):
        sync(body, SETTINGS, World().clock(), CountingKeys())


@pytest.mark.parametrize("children", [None, [], {"Pod.v1": {}}, {kind.key: None for kind in CHILD_KINDS}])
def test_a_request_that_lacks_children_fails_instead_of_deleting_them(children: object) -> None:
    parent = {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "metadata": {"name": "demo", "namespace": "ns", "uid": "u"},
        "spec": {},
    }
    with pytest.raises(MalformedRequest):
        sync(
            {"parent": parent, "children": children, "related": {}}, SETTINGS, World().clock(), CountingKeys()
        )


def test_time_alone_changes_nothing(world: World) -> None:
    settled(world, {"sandbox": {"warmPoolSize": 2}, "proxy": BOTH})
    for _ in range(5):
        world.clock.advance(3600)
        assert world.writes_at_rest(1) == []


def test_deleting_a_pod_by_hand_is_made_good(world: World) -> None:
    settled(world, {"sandbox": {"warmPoolSize": 2}, "proxy": ALLOWLIST})
    options = DeleteOptions(grace_seconds=0)
    world.api.delete("pods", NAMESPACE, POOL + "0", options)
    world.run()
    assert sorted(world.pods()) == [POOL + "0", POOL + "1"]


HOSTILE = ["null", '{"a":null}', "{}", "[" * 5000]


@pytest.mark.parametrize("annotation", HOSTILE)
def test_whoever_may_patch_a_pod_stops_nothing_by_a_forged_annotation(world: World, annotation: str) -> None:
    settled(world, {"sandbox": {"warmPoolSize": 2}, "proxy": ALLOWLIST})
    uid = world.pods()[POOL + "0"]["metadata"]["uid"]
    body = {"metadata": {"annotations": {names.ANNOTATION_LAST_APPLIED: annotation}}}
    world.api.patch("pods", NAMESPACE, POOL + "0", body)
    world.run()
    assert world.condition()["status"] == "True"
    assert uid not in {pod["metadata"]["uid"] for pod in world.pods().values()}
    assert len(world.pods()) == 2


def test_a_foreign_child_stops_nothing_either(world: World) -> None:
    settled(world, {"proxy": ALLOWLIST})
    uid = world.get("climcpinstances.cli-mcp.redhat.com", "demo")["metadata"]["uid"]
    metadata = {"namespace": NAMESPACE, "labels": {names.LABEL_CONTROLLER_UID: uid}}
    for kind, name in (("Secret", "empty"), ("ConfigMap", "foreign")):
        world.api.create({"apiVersion": "v1", "kind": kind, "metadata": {**metadata, "name": name}})
    world.controller.informer("secrets").held = True
    world.api.delete("climcpinstances.cli-mcp.redhat.com", NAMESPACE, "demo")
    world.controller.informer("secrets").held = False
    world.run()
    assert world.find("climcpinstances.cli-mcp.redhat.com", "demo") is None


def test_emptied_and_deleted_keys_are_made_again_and_sandboxes_keep_the_old_ones_meanwhile(
    world: World,
) -> None:
    settled(world, {"sandbox": {"warmPoolSize": 1}, "proxy": ALLOWLIST})
    before = world.get("configmaps", "cli-mcp-demo-session-keys")["data"]
    world.api.update({**world.get("secrets", "cli-mcp-demo-session-key"), "data": {}})
    world.controller.deliver()
    world.controller.sync_next()
    assert world.get("configmaps", "cli-mcp-demo-session-keys")["data"] == before
    world.run()
    both = world.get("configmaps", "cli-mcp-demo-session-keys")["data"]
    assert before.items() < both.items(), "servers sign with the old one until the new one has got around"
    assert world.condition()["status"] == "True"
    assert world.writes_at_rest() == []
    world.clock.advance(PUBLICATION.total_seconds())
    world.run()
    after = world.get("configmaps", "cli-mcp-demo-session-keys")["data"]
    assert (len(after), set(after).isdisjoint(before)) == (1, True)
    assert world.writes_at_rest() == []


def test_a_warning_does_not_hide_a_closed_gate(world: World) -> None:
    tomorrow = int((world.clock() + timedelta(days=1)).timestamp())
    claims = base64.urlsafe_b64encode(json.dumps({"exp": tomorrow}).encode()).decode().rstrip("=")
    users = [{"name": "robot", "user": {"token": f"e30.{claims}.c2ln"}}]
    world.secret("cli-mcp-demo-kubeconfig", {"kubeconfig": json.dumps(KUBECONFIG | {"users": users})})
    settled(world, {"proxy": KUBERNETES})
    assert (world.condition()["status"], world.condition()["reason"]) == ("True", "CredentialExpiring")
    body: Object = {"spec": {"egress": [{}]}}
    world.api.patch("networkpolicies.networking.k8s.io", NAMESPACE, "cli-mcp-demo-sandbox", body)
    world.controller.deliver()
    world.controller.sync_next()
    assert (world.condition()["status"], world.condition()["reason"]) == ("False", "Reconciling")


@pytest.mark.parametrize(
    ("available", "expected"),
    [
        (2, ("True", "Ready")),
        (1, ("True", "DeploymentDegraded")),
        (0, ("False", "DeploymentUnavailable")),
    ],
)
@pytest.mark.parametrize("deployment", ["cli-mcp-demo", "cli-mcp-demo-proxy"])
def test_one_pod_of_two_serves_and_is_said(
    world: World, deployment: str, available: int, expected: tuple[str, str]
) -> None:
    settled(world, {"replicas": 2, "proxy": KUBERNETES})
    found = world.get("deployments.apps", deployment)
    # With maxUnavailable 0 the Deployment's own condition Available is False as soon as one is missing.
    status = {**found["status"], "availableReplicas": available, "conditions": []}
    world.api.update({**found, "status": status}, "status")
    world.controller.deliver()
    world.controller.sync_next()
    condition = world.condition()
    assert (condition["status"], condition["reason"]) == expected
    assert (f"{available} of 2 pods of Deployment {deployment}" in condition["message"]) is (available == 1)


def test_fifty_instances_side_by_side_come_to_rest(world: World) -> None:
    instances = [f"i{number}" for number in range(50)]
    for name in instances:
        world.admin_secrets(name)
        world.apply({"sandbox": {"warmPoolSize": 1}, "proxy": KUBERNETES}, name=name)
    world.run(rounds=60, max_syncs=2000)
    for name in instances:
        assert world.condition(name=name)["status"] == "True", world.condition(name=name)
        assert len(world.pods(name)) == 1
    assert world.writes_at_rest(1) == []
