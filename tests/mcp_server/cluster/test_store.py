"""Pods of sessions, read and written in an API server in memory."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest
from lightkube.config.kubeconfig import KubeConfig

from cli_mcp import names
from mcp_server.cluster import writes
from mcp_server.cluster.cache import PodCache
from mcp_server.cluster.kubernetes import KubernetesApi, Refused
from mcp_server.cluster.pods import read_pod
from mcp_server.cluster.store import PodStore
from tests.hooks.world import NAMESPACE
from tests.kube.deletion import DeleteOptions
from tests.mcp_server.cluster.harness import cluster, session

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from mcp_server.cluster.pods import SandboxPod
    from tests.mcp_server.cluster.harness import Cluster


@dataclass
class Stored:
    demo: Cluster
    api: KubernetesApi
    cache: PodCache = field(default_factory=lambda: PodCache(on_gone=lambda uid: None))
    events: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        instance = names.InstanceNames("demo")
        self.store = PodStore(self.api, instance, NAMESPACE, self.cache, self.events.append)

    def warm(self) -> list[SandboxPod]:
        return [read_pod(pod) for pod in self.demo.world.pods().values()]

    async def claimed(self, pod: SandboxPod, id_: str = "s") -> SandboxPod:
        body = writes.claim(pod, session(id_), self.demo.world.clock())
        written = await self.store.patch(pod, body, "claimed")
        assert written is not None
        return written


@pytest.fixture
async def stored() -> AsyncIterator[Stored]:
    async with (
        cluster(pool=2) as demo,
        KubernetesApi.connected(KubeConfig.from_server(demo.url).get()) as api,
    ):
        yield Stored(demo, api)


async def test_a_list_shows_the_pods_of_one_session_or_of_all_that_have_one(stored: Stored) -> None:
    one, two = stored.warm()
    assert await stored.store.list(None) == []
    await stored.claimed(one, "s")
    await stored.claimed(two, "t")
    assert [pod.uid for pod in await stored.store.list("s")] == [one.uid]
    assert {pod.uid for pod in await stored.store.list(None)} == {one.uid, two.uid}


async def test_an_answer_is_in_the_cache_before_the_watch_shows_it(stored: Stored) -> None:
    claimed = await stored.claimed(stored.warm()[0])
    assert claimed.state == names.STATE_CLAIMING
    assert stored.cache.get(claimed.uid) == claimed
    assert stored.events == ["claimed"]


async def test_a_write_to_a_pod_that_has_changed_or_gone_is_lost_without_a_trace(stored: Stored) -> None:
    stale = stored.warm()[0]
    claimed = await stored.claimed(stale)
    again = writes.claim(stale, session("t"), stored.demo.world.clock())
    assert await stored.store.patch(stale, again, "claimed") is None
    stored.demo.world.api.delete("pods", NAMESPACE, stale.name, DeleteOptions(grace_seconds=0))
    assert await stored.store.patch(claimed, writes.retire(claimed), "retired") is None
    assert stored.events == ["claimed"]
    assert stored.cache.get(stale.uid) == claimed


async def test_a_delete_is_of_that_very_pod_and_may_come_twice(stored: Stored) -> None:
    pod = stored.warm()[0]
    await stored.store.delete(pod)
    await stored.store.delete(pod)
    assert stored.demo.world.get("pods", pod.name)["metadata"]["deletionTimestamp"]


async def test_what_the_api_server_refuses_to_make_is_no_event(stored: Stored) -> None:
    pod = stored.demo.world.get("pods", stored.warm()[0].name)
    with pytest.raises(Refused, match="already exists"):
        await stored.store.create({**pod, "metadata": {"name": pod["metadata"]["name"]}})
    assert stored.events == []
