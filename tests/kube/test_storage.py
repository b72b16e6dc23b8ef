"""Revisions, the log of changes, compaction, and what watchers and informers make of it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.kube.errors import ApiError
from tests.kube.informer import Informer
from tests.kube.resources import Registry
from tests.kube.selectors import Selection, parse_labels
from tests.kube.storage import Key, Storage
from tests.kube.watch import events

PODS = ("", "pods")


def put(storage: Storage, name: str, namespace: str = "a", **labels: str) -> dict[str, Any]:
    obj = {"metadata": {"name": name, "namespace": namespace, "labels": labels}}
    return storage.put(Key(PODS, namespace, name), obj)


def names(objects: list[dict[str, Any]]) -> list[str]:
    return [obj["metadata"]["name"] for obj in objects]


def test_each_write_has_a_revision_of_its_own() -> None:
    storage = Storage()
    revisions = [int(put(storage, name)["metadata"]["resourceVersion"]) for name in ("x", "y", "x")]
    assert revisions == sorted(set(revisions))
    assert revisions[-1] == storage.revision


def test_an_earlier_revision_can_be_listed() -> None:
    storage = Storage()
    put(storage, "x", v="1")
    put(storage, "y")
    then = storage.revision
    put(storage, "x", v="2")
    put(storage, "z")
    storage.remove(Key(PODS, "a", "y"), {"metadata": {"name": "y"}})
    assert names(storage.items(PODS)) == ["x", "z"]
    assert names(storage.items(PODS, at=then)) == ["x", "y"]
    assert storage.items(PODS, at=then)[0]["metadata"]["labels"] == {"v": "1"}


def test_what_is_compacted_is_410() -> None:
    storage = Storage()
    put(storage, "x")
    then = storage.revision
    put(storage, "x")
    storage.compact(then)
    assert len(storage.since(then)) == 1
    with pytest.raises(ApiError) as refused:
        storage.since(then - 1)
    assert refused.value.code == 410


def test_the_log_has_a_limit() -> None:
    storage = Storage(log_limit=10)
    for _ in range(100):
        put(storage, "x")
    assert len(storage.since(storage.compacted)) <= 10
    assert storage.compacted > 50


def test_a_selector_turns_changes_into_appearance_and_disappearance() -> None:
    storage = Storage()
    start = storage.revision
    for value in ("1", "2", "1", "1"):
        put(storage, "x", n=value)
    storage.remove(Key(PODS, "a", "x"), {"metadata": {"name": "x", "labels": {"n": "1"}}})
    put(storage, "y", namespace="b", n="1")
    seen = events(storage.since(start), PODS, "a", Selection(parse_labels("n=1")))
    assert [event.type for event in seen] == ["ADDED", "DELETED", "ADDED", "MODIFIED", "DELETED"]


def test_an_informer_is_late_and_never_wrong() -> None:
    storage = Storage()
    informer = Informer(storage, Registry().by_name("pods"))
    put(storage, "x", v="1")
    assert [event.type for event in informer.start()] == ["ADDED"]
    informer.held = True
    put(storage, "x", v="2")
    put(storage, "y")
    assert informer.deliver() == []
    assert names(informer.objects()) == ["x"]
    informer.held = False
    assert [event.type for event in informer.deliver(limit=1)] == ["MODIFIED"]
    assert names(informer.objects()) == ["x"]
    assert [event.type for event in informer.deliver()] == ["ADDED"]
    assert names(informer.objects()) == ["x", "y"]
