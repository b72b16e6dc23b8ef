"""The hooks on a real API server, driven by the real Metacontroller with the rights of the installation.

KUBECONFIG, E2E_IMAGE and E2E_SANDBOX_IMAGE (known to the cluster) say where and of what; METACONTROLLER (its
binary) and METACONTROLLER_CRDS (a folder) name the real one, without which the model takes its place.
"""

from __future__ import annotations

import json
import os
import random
import threading
import time
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
import requests
import yaml

from cli_mcp import names
from tests.e2e.cluster import ALL_CHILDREN, Cluster, new_cluster, prepare
from tests.e2e.conftest import in_cluster
from tests.e2e.operator import (
    CRD_FILE,
    NEEDS_AN_OPERATOR,
    Object,
    Operator,
    apply,
    eventually,
    get,
    installed,
    kubectl,
    objects,
)
from tests.hooks.test_reconcile import RICH, ROLLS
from tests.hooks.world import ALLOWLIST, KUBERNETES

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = NEEDS_AN_OPERATOR

# Longer than Metacontroller's own resync.
REST_SECONDS = int(os.environ.get("E2E_REST_SECONDS", "125"))
RACE_ROUNDS = int(os.environ.get("E2E_RACE_ROUNDS", "1000"))
POOL = "cli-mcp-demo-pool-"


@pytest.fixture(scope="module")
def operator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operator]:
    with installed(tmp_path_factory.mktemp("operator")) as running:
        yield running
        assert " cannot " not in running.log("metacontroller"), "the rights of the installation are enough"
        assert "Traceback" not in running.log("hooks")


@pytest.fixture
def cluster(operator: Operator) -> Iterator[Cluster]:
    with new_cluster() as cluster:
        yield cluster


# What this cluster has, in place of the classes, labels and registries that the unit tests invent.
RICH_HERE: dict[str, Any] = {
    **RICH,
    "replicas": 2,
    "sandbox": {
        key: value
        for key, value in RICH["sandbox"].items()
        if key not in ("image", "nodeSelector", "imagePullPolicy", "hostUsers", "env")
    },
}
SAMPLES: dict[str, Any] = {
    "allowlist": {"proxy": ALLOWLIST},
    "kubernetes with a pool": {"sandbox": {"warmPoolSize": 2}, "proxy": KUBERNETES},
    "everything": RICH_HERE,
}


@pytest.mark.parametrize("spec", SAMPLES.values(), ids=SAMPLES)
def test_an_instance_becomes_ready_and_then_nothing_is_written(cluster: Cluster, spec: Object) -> None:
    cluster.apply(spec)
    cluster.wait_for("Ready")
    assert len(cluster.pods()) == spec.get("sandbox", {}).get("warmPoolSize", 0)
    time.sleep(3)  # the last status of a Deployment
    before = cluster.revisions()
    time.sleep(REST_SECONDS)
    assert cluster.revisions() == before


@pytest.mark.slow
def test_every_field_rolls_what_it_should_and_a_claimed_session_keeps_its_pod(cluster: Cluster) -> None:
    base: dict[str, Any] = {"sandbox": {"warmPoolSize": 1}, "proxy": KUBERNETES}
    for path, (value, server_rolls, proxy_rolls, sandboxes_roll) in ROLLS.items():
        # Pods that the cluster cannot run are looked at as they were made.
        cluster.apply(base)
        cluster.wait_for("Ready")
        eventually(cluster.has_only_current_pods)
        before = templates(cluster)
        spec = json.loads(json.dumps(base))
        *above, last = path.split(".")
        place = spec
        for part in above:
            place = place[part]
        place[last] = value
        uids = {it["metadata"]["uid"] for it in cluster.pods().values()}
        cluster.apply(spec)

        def settled(uids: set[str] = uids, rolls: bool = sandboxes_roll) -> bool:
            found = cluster.instance()
            if found["status"].get("observedGeneration") != found["metadata"]["generation"]:
                return False
            now = {it["metadata"]["uid"] for it in cluster.pods().values()}
            return not rolls or not uids & now

        try:
            eventually(settled, 60)
        except AssertionError:
            raise AssertionError(f"{path} does not settle: {cluster.condition()}") from None
        after = templates(cluster)
        assert (before["server"] != after["server"], before["proxy"] != after["proxy"]) == (
            server_rolls,
            proxy_rolls,
        ), path
        if not sandboxes_roll:
            assert uids <= {it["metadata"]["uid"] for it in cluster.pods().values()}, path


def templates(cluster: Cluster) -> dict[str, Object]:
    return {
        "server": cluster.child("deployment", "cli-mcp-demo")["spec"]["template"],
        "proxy": cluster.child("deployment", "cli-mcp-demo-proxy")["spec"]["template"],
    }


def test_deleted_children_come_back_and_a_claimed_session_lives_on(cluster: Cluster) -> None:
    cluster.apply({"sandbox": {"warmPoolSize": 1}, "proxy": KUBERNETES})
    cluster.wait_for("Ready")
    cluster.claim(POOL + "0", "s1")
    claimed = cluster.pods()[POOL + "0"]["metadata"]["uid"]
    for child in objects(cluster.namespace, ALL_CHILDREN, names.LABEL_CONTROLLER_UID):
        kind, metadata = child["kind"], child["metadata"]
        if kind == "Pod":
            continue
        kubectl("-n", cluster.namespace, "delete", kind, metadata["name"], "--wait=false")
        eventually(
            lambda kind=kind, metadata=metadata: (  # type: ignore[misc]
                (get(cluster.namespace, kind, metadata["name"]) or {"metadata": metadata})["metadata"]["uid"]
                != metadata["uid"]
            )
        )
    cluster.wait_for("Ready")
    assert cluster.pods()[POOL + "0"]["metadata"]["uid"] == claimed


def test_secrets_rotate_in_place(cluster: Cluster) -> None:
    cluster.apply({"sandbox": {"warmPoolSize": 1}, "proxy": KUBERNETES})
    cluster.wait_for("Ready")
    before = templates(cluster), {it["metadata"]["uid"] for it in cluster.pods().values()}
    for annotation, secret in (
        (names.ANNOTATION_ROTATE_PROXY_CA, "cli-mcp-demo-proxy-ca"),
        (names.ANNOTATION_ROTATE_SESSION_KEY, "cli-mcp-demo-session-key"),
    ):
        data = cluster.child("secret", secret)["data"]
        kubectl("-n", cluster.namespace, "annotate", "climcpinstance", "demo", f"{annotation}=now")
        eventually(lambda secret=secret, data=data: cluster.child("secret", secret)["data"] != data)  # type: ignore[misc]
    eventually(lambda: len(cluster.child("configmap", "cli-mcp-demo-session-keys")["data"]) == 2)
    revision = cluster.child("secret", "cli-mcp-demo-tls")["metadata"]["resourceVersion"]
    prepare(cluster.namespace, "demo")  # another certificate, another token
    assert cluster.child("secret", "cli-mcp-demo-tls")["metadata"]["resourceVersion"] != revision
    time.sleep(5)
    cluster.wait_for("Ready")
    assert before == (templates(cluster), {it["metadata"]["uid"] for it in cluster.pods().values()})


def test_deleting_during_a_rollout_ends(cluster: Cluster) -> None:
    cluster.apply({"sandbox": {"warmPoolSize": 3}, "proxy": ALLOWLIST})
    cluster.wait_for("Ready")
    cluster.apply({"sandbox": {"warmPoolSize": 3, "env": [{"name": "A", "value": "b"}]}, "proxy": ALLOWLIST})
    kubectl("-n", cluster.namespace, "delete", "climcpinstance", "demo", "--timeout=150s")
    assert cluster.pods() == {}


def test_a_spec_that_is_refused_later_keeps_everything_and_can_be_deleted(cluster: Cluster) -> None:
    cluster.apply({"sandbox": {"warmPoolSize": 1}, "proxy": ALLOWLIST})
    cluster.wait_for("Ready")
    before = {key: value for key, value in cluster.revisions().items() if not key.startswith(names.KIND)}
    cluster.apply({"sandbox": {"warmPoolSize": 1, "idleTimeout": "soon"}, "proxy": ALLOWLIST})
    cluster.wait_for("SpecInvalid")
    time.sleep(3)
    assert {
        key: value for key, value in cluster.revisions().items() if not key.startswith(names.KIND)
    } == before
    kubectl("-n", cluster.namespace, "delete", "climcpinstance", "demo", "--timeout=150s")


@contextmanager
def crd_that_accepts_anything() -> Iterator[None]:
    """The specs of an older release were checked by other rules."""
    crd = yaml.safe_load(CRD_FILE.read_text())
    schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    schema["properties"]["spec"] = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    apply(crd)
    try:
        yield
    finally:
        kubectl("apply", "--server-side", "--force-conflicts", "-f", str(CRD_FILE))


def is_accepted(cluster: Cluster, spec: Object) -> bool:
    instance = {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "metadata": {"name": "another", "namespace": cluster.namespace},
        "spec": spec,
    }
    return bool(kubectl("create", "--dry-run=server", "-f", "-", given=yaml.safe_dump(instance), check=False))


def test_a_stored_spec_that_the_api_server_refuses_by_now_keeps_everything_too(cluster: Cluster) -> None:
    cluster.apply({"sandbox": {"warmPoolSize": 1}, "proxy": ALLOWLIST})
    cluster.wait_for("Ready")
    before = {key: value for key, value in cluster.revisions().items() if not key.startswith(names.KIND)}
    spec: Object = {"proxy": {"targets": [{"type": "allowlist", "domains": ["*.example.com"]}]}}
    with crd_that_accepts_anything():
        eventually(lambda: is_accepted(cluster, spec))
        kubectl(
            *("-n", cluster.namespace, "patch", "climcpinstance", "demo", "--type=merge"),
            *("-p", json.dumps({"spec": spec})),
        )
    eventually(lambda: not is_accepted(cluster, spec))
    cluster.wait_for("SpecInvalid")
    assert "spec.proxy.targets[0].domains[0]" in cluster.condition()["message"]
    time.sleep(3)
    assert {
        key: value for key, value in cluster.revisions().items() if not key.startswith(names.KIND)
    } == before
    kubectl("-n", cluster.namespace, "delete", "climcpinstance", "demo", "--timeout=150s")
    assert cluster.pods() == {}


@pytest.mark.slow
def test_a_namespace_with_two_instances_goes(cluster: Cluster) -> None:
    prepare(cluster.namespace, "other")
    other = Cluster(cluster.namespace, "other")
    for instance in (cluster, other):
        instance.apply({"sandbox": {"warmPoolSize": 1}, "proxy": ALLOWLIST})
    for instance in (cluster, other):
        instance.wait_for("Ready")
    kubectl("delete", "namespace", cluster.namespace, "--wait=false")
    # The namespace controller looks again after half of the longest grace period that it saw, here 330 s.
    eventually(lambda: not kubectl("get", "namespace", cluster.namespace, "--ignore-not-found"), 400)


def test_a_foreign_object_with_a_childs_name_is_said(cluster: Cluster) -> None:
    kubectl("-n", cluster.namespace, "create", "serviceaccount", "cli-mcp-demo-sandbox")
    cluster.apply({"sandbox": {"warmPoolSize": 1}, "proxy": ALLOWLIST})
    cluster.wait_for("NameTaken")
    assert "ServiceAccount cli-mcp-demo-sandbox" in cluster.condition()["message"]
    assert cluster.pods() == {}
    kubectl("-n", cluster.namespace, "delete", "serviceaccount", "cli-mcp-demo-sandbox")
    cluster.wait_for("Ready")


def test_without_hooks_nothing_is_deleted_and_they_catch_up(cluster: Cluster, operator: Operator) -> None:
    cluster.apply({"sandbox": {"warmPoolSize": 1}, "proxy": ALLOWLIST})
    cluster.wait_for("Ready")
    before = cluster.revisions()
    operator.stop("hooks")
    cluster.apply({"sandbox": {"warmPoolSize": 2}, "proxy": ALLOWLIST})
    time.sleep(10)
    after = cluster.revisions()
    assert before.keys() == after.keys()
    operator.start_hooks()
    eventually(lambda: len(cluster.pods()) == 2)


@pytest.mark.slow
def test_ten_instances_side_by_side(cluster: Cluster) -> None:
    instances = [Cluster(cluster.namespace, f"i{number}") for number in range(10)]
    for instance in instances:
        prepare(cluster.namespace, instance.name)
        instance.apply({"proxy": ALLOWLIST})
    for instance in instances:
        instance.wait_for("Ready")


@pytest.mark.slow
def test_no_claimed_pod_is_deleted_however_the_race_ends(cluster: Cluster) -> None:
    """Pods that no node takes can be claimed as well as any, and faster. Their template changes all the time,
    so that unclaimed ones retire, while a competitor claims at random moments."""
    spec: dict[str, Any] = {
        "sandbox": {"warmPoolSize": 30, "nodeSelector": {"no": "such-node"}},
        "proxy": ALLOWLIST,
    }
    cluster.apply(spec)
    eventually(lambda: len(cluster.pods()) >= 30)
    with in_cluster() as api:
        race = Race(f"{api.url}/api/v1/namespaces/{cluster.namespace}/pods")
        claimer = threading.Thread(target=race.run)
        claimer.start()
        edition = 0
        while claimer.is_alive():
            edition += 1
            spec["sandbox"]["env"] = [{"name": "EDITION", "value": str(edition)}]
            cluster.apply(spec)
            claimer.join(2)
    assert race.errors == []
    print(f"\n{race.won} claims won, {race.lost} lost, {edition} template changes")
    assert race.won + race.lost >= RACE_ROUNDS
    assert race.lost > 0, "there was no race"
    alive = {it["metadata"]["uid"] for it in objects(cluster.namespace, "pods")}
    assert race.claimed - race.ended <= alive


class Race:
    """Claims as the server does, by one patch bound to what was read; ends old sessions to make room."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._session = requests.Session()
        self._random = random.Random(5)
        self.won = self.lost = 0
        self.claimed: set[str] = set()
        self.ended: set[str] = set()
        self.errors: list[str] = []

    def run(self) -> None:
        while self.won + self.lost < RACE_ROUNDS and not self.errors:
            pods = self._session.get(self._url, timeout=30).json()["items"]
            open_pods = [
                it["metadata"]
                for it in pods
                if it["metadata"]["labels"].get(names.LABEL_COMPONENT) == "sandbox"
                and names.LABEL_STATE not in it["metadata"]["labels"]
                and "deletionTimestamp" not in it["metadata"]
            ]
            time.sleep(self._random.random() / 20)
            for metadata in self._random.sample(open_pods, min(5, len(open_pods))):
                self._claim(metadata)
            self._end_some([it["metadata"] for it in pods])

    def _claim(self, metadata: Object) -> None:
        stamp = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        body = {
            "metadata": {
                "uid": metadata["uid"],
                "resourceVersion": metadata["resourceVersion"],
                "labels": {
                    names.LABEL_SESSION_ID: f"s{self.won + self.lost}",
                    names.LABEL_STATE: names.STATE_ACTIVE,
                },
                "annotations": {names.ANNOTATION_LAST_ACTIVITY: stamp},
            }
        }
        headers = {"Content-Type": "application/merge-patch+json"}
        answer = self._session.patch(
            f"{self._url}/{metadata['name']}", json.dumps(body), headers=headers, timeout=30
        )
        if answer.status_code == 200:
            self.won += 1
            self.claimed.add(metadata["uid"])
        elif answer.status_code in (404, 409):
            self.lost += 1
        else:
            self.errors.append(answer.text)

    def _end_some(self, pods: list[Object]) -> None:
        present = {it["uid"] for it in pods}
        missing = self.claimed - self.ended - present
        # What was claimed since the list was made is not in it.
        if missing:
            now = {it["metadata"]["uid"] for it in self._session.get(self._url, timeout=30).json()["items"]}
            gone = missing - now
            if gone:
                self.errors.append(f"claimed and deleted: {sorted(gone)}")
        mine = [it for it in pods if it["uid"] in self.claimed - self.ended]
        for metadata in mine[40:]:
            self.ended.add(metadata["uid"])
            self._session.delete(f"{self._url}/{metadata['name']}", timeout=30)
