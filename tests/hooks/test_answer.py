"""The check of an answer: one line for each way to do harm."""

from typing import Any

import pytest

from hooks.answer import UnsafeAnswer, checked
from hooks.wire import Parent

PARENT = Parent({"metadata": {}}, "demo", "ns", "uid-1", 1)
METADATA = {"name": "a", "namespace": "ns", "labels": {"controller-uid": "uid-1"}}
CONFIG_MAP: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "metadata": METADATA,
    "data": {"a": "null"},
}


def with_metadata(**metadata: Any) -> dict[str, Any]:
    return {**CONFIG_MAP, "metadata": {**METADATA, **metadata}}


def test_a_sound_answer_passes_unchanged() -> None:
    answer = {"status": {"ready": 1, "ratio": 0.5}, "children": [CONFIG_MAP]}
    assert checked(answer, PARENT) is answer


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"children": None},
        {"children": {}},
        {"children": [None]},
        {"children": [{}]},
        {"children": [{**CONFIG_MAP, "kind": "Node"}]},
        {"children": [with_metadata(name="")]},
        {"children": [with_metadata(generateName="a-")]},
        {"children": [with_metadata(namespace="other")]},
        {"children": [with_metadata(namespace=None)]},
        {"children": [with_metadata(labels={"controller-uid": "uid-2"})]},
        {"children": [CONFIG_MAP, dict(CONFIG_MAP)]},
        {"children": [{**CONFIG_MAP, "data": {"a": None}}]},
        {"children": [{**CONFIG_MAP, "data": [[{"a": 2.0}]]}]},
        {"children": [{**CONFIG_MAP, "kind": "Secret", "data": {}}]},
        {"children": [], "status": {"a": None}},
        {"children": [], "status": {"a": 1.0}},
    ],
)
def test_an_answer_that_would_do_harm_fails(answer: dict[str, Any]) -> None:
    with pytest.raises(UnsafeAnswer):
        checked(answer, PARENT)
