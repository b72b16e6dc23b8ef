"""Any order of syncs, claims, deletes, failures, edits, restarts and lagging caches keeps what must hold.

What must hold of each answer is asked of each answer, since by chance few lives run into what a wrong one
leads to. The same lives every time; `make fuzz` lives other and many more.
"""

from __future__ import annotations

import os
from datetime import timedelta
from typing import TYPE_CHECKING

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from cli_mcp import names
from hooks.generated import decoded_data, parse_session_keys
from hooks.reconcile import sync
from tests.hooks.world import (
    ALLOWLIST,
    KUBERNETES,
    NAMESPACE,
    SETTINGS,
    CountingKeys,
    Exchange,
    World,
)
from tests.kube import controllers, garbage
from tests.kube.deletion import DeleteOptions
from tests.kube.errors import ApiError

if TYPE_CHECKING:
    from datetime import datetime

    from tests.kube.objects import Object

INSTANCES = "climcpinstances.cli-mcp.redhat.com"
CACHES = (
    "pods",
    "secrets",
    "configmaps",
    "networkpolicies.networking.k8s.io",
    "services",
    "deployments.apps",
)
CHILDREN = (
    ("deployments.apps", "cli-mcp-demo"),
    ("deployments.apps", "cli-mcp-demo-proxy"),
    ("services", "cli-mcp-demo-proxy"),
    ("networkpolicies.networking.k8s.io", "cli-mcp-demo-sandbox"),
    ("networkpolicies.networking.k8s.io", "cli-mcp-demo-proxy"),
    ("configmaps", "cli-mcp-demo"),
    ("configmaps", "cli-mcp-demo-proxy"),
    ("configmaps", "cli-mcp-demo-session-keys"),
    ("secrets", "cli-mcp-demo-proxy-ca"),
    ("serviceaccounts", "cli-mcp-demo-sandbox"),
)
POLICY = "NetworkPolicy.networking.k8s.io/v1"
# What no sandbox may be without, and which parts of it have to be as desired.
GUARDS = (
    (POLICY, "cli-mcp-demo-sandbox", ("spec",)),
    (POLICY, "cli-mcp-demo-proxy", ("spec",)),
    ("ConfigMap.v1", "cli-mcp-demo-proxy", ("data",)),
    ("Secret.v1", "cli-mcp-demo-proxy-ca", ()),
)
IMAGES = st.sampled_from(["", "registry.example.com/tools:1"])
IDLE = timedelta(minutes=10)


def spec(pool: int, image: str, target: Object) -> Object:
    return {"sandbox": {"warmPoolSize": pool, "idleTimeout": "10m", "image": image}, "proxy": target}


class Lives(RuleBasedStateMachine):
    """`sessions` maps the uid of each claimed pod to when its session was last active."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.world.admin_secrets()
        self.sessions: dict[str, datetime] = {}
        self.ended: set[str] = set()
        self.count = 0
        self.pool = 0
        self.seen: dict[str, Object] = {}
        self.journal_position = 0
        self.exchanges: list[Exchange] = []
        self.world.on_sync = self.exchanges.append

    @initialize(pool=st.integers(0, 3), settled=st.sampled_from([True, True, True, False]))
    def apply(self, pool: int, settled: bool) -> None:
        """Most lives begin with a full pool: by chance few would ever come so far."""
        self.pool = pool
        self.world.apply(spec(pool, "", ALLOWLIST))
        if settled:
            self.world.run()

    # --- Metacontroller and the cluster ---

    @rule(events=st.integers(1, 5) | st.none())
    def caches_catch_up(self, events: int | None) -> None:
        self.world.controller.deliver(events)

    @rule()
    def one_sync(self) -> None:
        self.world.controller.sync_next()

    @rule()
    def sync_without_a_reason(self) -> None:
        self.world.poke()
        self.world.controller.sync_next()

    @rule(cache=st.sampled_from(CACHES), held=st.booleans())
    def a_cache_lags_or_recovers(self, cache: str, held: bool) -> None:
        self.world.controller.informer(cache).held = held

    @rule(down=st.booleans())
    def hooks_go_down_or_come_back(self, down: bool) -> None:
        self.world.hooks_are_down = down

    @rule()
    def metacontroller_restarts(self) -> None:
        self.world.restart()

    @rule(ready=st.booleans())
    def kubelet_works(self, ready: bool) -> None:
        api = self.world.api
        controllers.schedule_pods(api)
        controllers.start_pods(api, lambda pod: ready)
        controllers.end_terminating_pods(api)
        garbage.step(api)

    @rule(available=st.booleans())
    def deployments_roll_out(self, available: bool) -> None:
        controllers.roll_out_deployments(self.world.api, lambda deployment: available)

    @rule(seconds=st.sampled_from([1, 20, 90, 330, 700, 4000]))
    def time_passes(self, seconds: int) -> None:
        self.world.clock.advance(seconds)

    # --- the server ---

    def _unclaimed(self) -> list[Object]:
        return [
            pod
            for pod in self.world.pods().values()
            if names.LABEL_STATE not in pod["metadata"]["labels"]
            and "deletionTimestamp" not in pod["metadata"]
        ]

    @rule(choice=st.integers(0, 9), stale=st.booleans())
    def the_server_claims(self, choice: int, stale: bool) -> None:
        """From what it sees now, or from what it saw at its last look: then the claim may be refused."""
        if not stale:
            self.seen = {pod["metadata"]["uid"]: pod for pod in self._unclaimed()}
        candidates = list(self.seen.values())
        if candidates:
            self._claim(candidates[choice % len(candidates)]["metadata"])

    @rule(choice=st.integers(0, 9), pool=st.integers(0, 3))
    def a_claim_comes_while_a_sync_decides_to_retire(self, choice: int, pool: int) -> None:
        """The sync has looked before the claim and acts after it."""
        self._give_every_pod_up(pool)
        self.world.controller.deliver()
        self.the_server_claims(choice, stale=False)
        self.world.controller.sync_next()

    @rule(choice=st.integers(0, 9), pool=st.integers(0, 3))
    def a_claim_comes_between_the_two_steps_of_retiring(self, choice: int, pool: int) -> None:
        """The server has looked before the first step and claims before the second one, which knows of no
        claim."""
        self._give_every_pod_up(pool)
        self.world.controller.deliver()
        self.seen = {pod["metadata"]["uid"]: pod for pod in self._unclaimed()}
        self.world.controller.sync_next()
        self.world.controller.deliver()
        self.the_server_claims(choice, stale=True)
        self.world.controller.sync_next()

    def _give_every_pod_up(self, pool: int) -> None:
        self.count += 1
        self.the_admin_edits(pool, f"registry.example.com/tools:{self.count}", ALLOWLIST)

    def _claim(self, metadata: Object) -> None:
        self.count += 1
        body = {
            "metadata": {
                "uid": metadata["uid"],
                "resourceVersion": metadata["resourceVersion"],
                "labels": {names.LABEL_SESSION_ID: f"s{self.count}", names.LABEL_STATE: names.STATE_ACTIVE},
                "annotations": dict.fromkeys(
                    (names.ANNOTATION_CLAIMED_AT, names.ANNOTATION_LAST_ACTIVITY), self._now()
                ),
            }
        }
        try:
            self.world.api.patch("pods", NAMESPACE, metadata["name"], body)
        except ApiError as error:
            assert error.code in (404, 409)
            return
        self.sessions[metadata["uid"]] = self.world.clock()

    @rule()
    def the_server_stamps(self) -> None:
        for pod in self.world.pods().values():
            metadata = pod["metadata"]
            if metadata["uid"] in self.sessions and metadata["labels"].get(names.LABEL_STATE) == "active":
                body = {
                    "metadata": {
                        "resourceVersion": metadata["resourceVersion"],
                        "annotations": {names.ANNOTATION_LAST_ACTIVITY: self._now()},
                    }
                }
                self.world.api.patch("pods", NAMESPACE, metadata["name"], body)
                self.sessions[metadata["uid"]] = self.world.clock()

    @rule(choice=st.integers(0, 9))
    def the_server_makes_a_pod(self, choice: int) -> None:
        config = self.world.find("configmaps", "cli-mcp-demo")
        if config is None:
            return
        sandbox = self.world.sandbox_config()
        if not sandbox["gate"]["open"]:
            return
        self.count += 1
        template = sandbox["template"]
        labels = {names.LABEL_SESSION_ID: f"s{self.count}", names.LABEL_STATE: names.STATE_ACTIVE}
        try:
            made = self.world.api.create(
                {
                    **template,
                    "metadata": {
                        **template["metadata"],
                        "name": f"cli-mcp-demo-s-x-{self.count}",
                        "labels": template["metadata"]["labels"] | labels,
                        "annotations": {names.ANNOTATION_LAST_ACTIVITY: self._now()},
                        "ownerReferences": [sandbox["ownerReference"]],
                    },
                }
            )
        except ApiError as error:  # its ServiceAccount may have been deleted a moment ago
            assert error.code in (403, 404)
            return
        self.sessions[made["metadata"]["uid"]] = self.world.clock()

    # --- people ---

    @rule(
        pool=st.integers(0, 3),
        image=IMAGES,
        routes=st.sampled_from([ALLOWLIST, KUBERNETES]),
    )
    def the_admin_edits(self, pool: int, image: str, routes: Object) -> None:
        self.pool = pool
        self.world.apply(spec(pool, image, routes))

    @rule(child=st.sampled_from(CHILDREN))
    def somebody_deletes_a_child(self, child: tuple[str, str]) -> None:
        kind, name = child
        if self.world.find(kind, name) is not None:
            self.world.api.delete(kind, NAMESPACE, name)

    @rule(choice=st.integers(0, 9), at_once=st.booleans())
    def somebody_deletes_a_pod(self, choice: int, at_once: bool) -> None:
        pods = list(self.world.pods().values())
        if not pods:
            return
        metadata = pods[choice % len(pods)]["metadata"]
        self.ended.add(metadata["uid"])
        self.world.api.delete(
            "pods", NAMESPACE, metadata["name"], DeleteOptions(grace_seconds=0 if at_once else None)
        )

    @rule(choice=st.integers(0, 9))
    def a_pod_fails(self, choice: int) -> None:
        pods = [pod for pod in self.world.pods().values() if pod["spec"].get("nodeName")]
        if pods:
            metadata = pods[choice % len(pods)]["metadata"]
            self.ended.add(metadata["uid"])
            controllers.fail_pod(self.world.api, NAMESPACE, metadata["name"])

    @rule(which=st.sampled_from([names.ANNOTATION_ROTATE_PROXY_CA, names.ANNOTATION_ROTATE_SESSION_KEY]))
    def the_admin_rotates(self, which: str) -> None:
        self.count += 1
        self.world.annotate(which, str(self.count))

    # --- what must hold ---

    @invariant()
    def no_live_session_has_lost_its_pod(self) -> None:
        alive = {pod["metadata"]["uid"] for pod in self.world.pods().values() if not _is_going(pod)}
        for uid, active in list(self.sessions.items()):
            if uid in alive:
                continue
            idle = self.world.clock() - active
            assert uid in self.ended or idle >= IDLE, f"lost after {idle}"
            del self.sessions[uid]

    @invariant()
    def every_answer_is_one_that_the_hooks_may_give(self) -> None:
        for exchange in self.exchanges:
            check_retiring_in_two_steps(exchange)
            check_other_children_are_kept(exchange)
            check_guards_of_new_pods(exchange)
            check_repeatable(exchange)
        self.exchanges.clear()

    @invariant()
    def nothing_was_refused_by_the_api_server(self) -> None:
        """But conflicts, names that exist, and what is gone, which are what concurrency looks like."""
        new = self.world.api.journal[self.journal_position :]
        self.journal_position = len(self.world.api.journal)
        for entry in new:
            if entry.is_write and entry.code >= 400:
                missing_account = entry.verb == "create" and entry.code == 403
                assert entry.code in (404, 409) or missing_account, entry

    @invariant()
    def every_sync_had_an_answer(self) -> None:
        failures = [error for error in self.world.failing() if "remote error" in str(error)]
        assert not failures

    def teardown(self) -> None:
        """When it stops the pool converges to the last template, nothing is written at rest, and a deletion
        ends."""
        if not self.world.api.objects(INSTANCES, NAMESPACE):
            return
        world = self.world
        world.hooks_are_down = False
        world.restart()  # a new queue, so that no backoff has to be waited for, and no cache lags
        self._give_every_pod_up(self.pool)
        world.run(rounds=100)
        self.no_live_session_has_lost_its_pod()
        self.every_answer_is_one_that_the_hooks_may_give()
        assert world.condition()["status"] == "True", world.condition()
        unclaimed = self._unclaimed()
        assert len(unclaimed) == self.pool
        current = world.sandbox_config()["poolHash"]
        assert {pod["metadata"]["labels"][names.LABEL_POOL_HASH] for pod in unclaimed} <= {current}
        sessions = [pod["metadata"]["labels"].get(names.LABEL_SESSION_ID) for pod in world.pods().values()]
        named = [session for session in sessions if session]
        assert len(named) == len(set(named)), "two pods for one session"
        keys = parse_session_keys(decoded_data(world.get("secrets", "cli-mcp-demo-session-key")))
        assert keys is not None
        published = world.get("configmaps", "cli-mcp-demo-session-keys")["data"]
        assert sorted(published) == sorted(f"{key.kid}.pem" for key in keys.keys)
        assert world.writes_at_rest() == []
        world.api.delete(INSTANCES, NAMESPACE, "demo")
        world.run(rounds=100)
        assert world.api.objects(INSTANCES, NAMESPACE) == []
        assert world.pods() == {}

    def _now(self) -> str:
        return self.world.clock().strftime("%Y-%m-%dT%H:%M:%SZ")


def _is_going(pod: Object) -> bool:
    return "deletionTimestamp" in pod["metadata"] or pod["status"]["phase"] == "Failed"


def check_retiring_in_two_steps(exchange: Exchange) -> None:
    """What is not in the answer is deleted, although it may have been claimed since: only what nobody can
    claim any more may be missing."""
    for name, pod in exchange.observed("Pod.v1").items():
        claimable = (
            "deletionTimestamp" not in pod["metadata"]
            and pod["metadata"]["labels"].get(names.LABEL_STATE) != names.STATE_RETIRING
        )
        assert not claimable or name in exchange.desired("Pod"), f"{name} goes in one step"


def check_other_children_are_kept(exchange: Exchange) -> None:
    """No edit in these lives makes anything but pods superfluous."""
    for key in exchange.request["children"].keys() - {"Pod.v1"}:
        dropped = exchange.observed(key).keys() - exchange.desired(key.partition(".")[0]).keys()
        assert not dropped, f"{key} {dropped} would be deleted"


def check_guards_of_new_pods(exchange: Exchange) -> None:
    """A new sandbox is wanted only when all that holds it back has been seen in the cluster, as desired."""
    new = exchange.desired("Pod").keys() - exchange.observed("Pod.v1").keys()
    if not new:
        return
    for kind, name, parts in GUARDS:
        observed = exchange.observed(kind).get(name)
        assert observed is not None, f"{new} before {kind} {name}"
        desired = exchange.desired(kind.partition(".")[0])[name]
        for part in parts:
            assert observed[part] == desired[part], f"{new} before {kind} {name} is right"
    slices = exchange.request["related"]["EndpointSlice.discovery.k8s.io/v1"].values()
    endpoints = [endpoint for each in slices for endpoint in each.get("endpoints") or ()]
    assert any(it["conditions"]["ready"] for it in endpoints), f"{new} before the proxy is ready"


def check_repeatable(exchange: Exchange) -> None:
    """A lost answer and its repetition want the same pods, or there would be one too many."""
    answer = sync(exchange.request, SETTINGS, exchange.now, CountingKeys())
    repeated = Exchange(exchange.request, exchange.now, answer)
    assert repeated.desired("Pod").keys() == exchange.desired("Pod").keys()


TestLives = Lives.TestCase
TestLives.settings = settings(
    max_examples=int(os.environ.get("LIVES", "40")),
    derandomize="LIVES" not in os.environ,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
