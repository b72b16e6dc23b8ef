"""The cache of pods, when news of the watch and answers to our own writes come in any order."""

from __future__ import annotations

import pytest

from cli_mcp.names import STATE_ACTIVE, STATE_CLAIMING, STATE_RETIRING
from mcp_server.cluster.cache import PodCache
from mcp_server.cluster.pods import SandboxPod


def pod(revision: int, state: str = STATE_ACTIVE, uid: str = "u", session: str = "s") -> SandboxPod:
    return SandboxPod(f"name-{uid}", uid, str(revision), state=state, session_id=session)


@pytest.fixture
def gone() -> list[str]:
    return []


@pytest.fixture
def cache(gone: list[str]) -> PodCache:
    return PodCache(on_gone=gone.append)


def test_only_an_active_pod_is_found_by_its_session(cache: PodCache) -> None:
    cache.watched(pod(1, STATE_CLAIMING))
    assert cache.usable("s") is None
    cache.watched(pod(2))
    assert cache.usable("s") == pod(2)
    cache.watched(pod(3, STATE_RETIRING))
    assert cache.usable("s") is None


def test_an_answer_that_the_watch_has_overtaken_changes_nothing(cache: PodCache) -> None:
    cache.watched(pod(5, STATE_RETIRING))
    cache.written(pod(4))
    assert cache.get("u") == pod(5, STATE_RETIRING)


def test_an_answer_comes_before_the_watch(cache: PodCache) -> None:
    cache.watched(pod(1, STATE_CLAIMING))
    cache.written(pod(2))
    cache.watched(pod(1, STATE_CLAIMING))
    assert cache.usable("s") == pod(2)


def test_a_pod_that_was_deleted_does_not_come_back_by_an_old_answer(cache: PodCache, gone: list[str]) -> None:
    cache.watched(pod(1))
    cache.deleted(pod(3))
    cache.written(pod(2))
    assert len(cache) == 0
    assert gone == ["u"]


def test_a_list_forgets_what_it_does_not_show_but_newer_answers(cache: PodCache, gone: list[str]) -> None:
    cache.watched(pod(1, uid="old"))
    cache.written(pod(9, uid="made just now", session="t"))
    cache.replace([pod(4, uid="there")], "5")
    assert {it.uid for it in cache} == {"made just now", "there"}
    assert gone == ["old"]
    assert cache.usable("t") is not None


def test_who_waits_for_a_pod_hears_of_its_changes_and_of_its_end(cache: PodCache) -> None:
    cache.watched(pod(1))
    with cache.changes("u") as changed:
        cache.watched(pod(2, uid="another"))
        assert not changed.is_set()
        cache.watched(pod(3))
        assert changed.is_set()
        changed.clear()
        cache.deleted(pod(4))
        assert changed.is_set()
    assert cache._watchers == {}
