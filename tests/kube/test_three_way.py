"""The merge, case by case."""

from __future__ import annotations

from typing import Any

import pytest

from tests.kube.objects import same_json
from tests.kube.three_way import (
    LAST_APPLIED,
    MergeError,
    apply_update,
    go_json,
    guess_key,
    merge,
    with_last_applied,
)

MERGES: dict[str, tuple[Any, Any, Any, Any]] = {
    # observed, last applied, desired, merged
    "a desired field is set": ({"a": 1}, {}, {"b": 2}, {"a": 1, "b": 2}),
    "a field that is no longer desired goes": ({"a": 1, "b": 2}, {"b": 2}, {}, {"a": 1}),
    "a foreign field stays": ({"a": 1, "x": 9}, {"a": 1}, {"a": 2}, {"a": 2, "x": 9}),
    "a field that is gone stays gone": ({}, {"a": 1}, {}, {}),
    "nested objects are merged": (
        {"a": {"x": 1, "y": 2}},
        {"a": {"y": 2}},
        {"a": {"z": 3}},
        {"a": {"x": 1, "z": 3}},
    ),
    "null is written as null": ({}, {}, {"a": None}, {"a": None}),
    "null for an object empties nothing": ({"a": {"x": 1}}, {}, {"a": None}, {"a": {"x": 1}}),
    "a scalar for an object takes what was applied": ({"a": {"x": 1}}, {"a": {"x": 1}}, {"a": 5}, {"a": {}}),
    "lists without a key are replaced": ([1, 2], [], [3], [3]),
    "lists of objects without a known key are replaced": ([{"key": "a"}], [], [{"key": "b"}], [{"key": "b"}]),
    "lists with names are merged": (
        [{"name": "a", "x": 1}, {"name": "b"}],
        [{"name": "b"}],
        [{"name": "a", "y": 2}, {"name": "c"}],
        [{"name": "a", "x": 1, "y": 2}, {"name": "c"}],
    ),
    "observed order stays": (
        [{"name": "b"}, {"name": "a"}],
        [],
        [{"name": "a"}, {"name": "b"}],
        [{"name": "b"}, {"name": "a"}],
    ),
    "one item without the key makes it a plain list": (
        [{"name": "a"}, {"x": 1}],
        [],
        [{"name": "c"}],
        [{"name": "c"}],
    ),
    "the same port for two protocols becomes one twice": (
        [{"port": 53, "protocol": "UDP"}, {"port": 53, "protocol": "TCP"}],
        [],
        [{"port": 53, "protocol": "UDP"}, {"port": 53, "protocol": "TCP"}],
        [{"port": 53, "protocol": "TCP"}, {"port": 53, "protocol": "TCP"}],
    ),
    "an empty list that was applied takes its items": ([{"name": "a"}], [{"name": "a"}], [], []),
}


@pytest.mark.parametrize(("observed", "applied", "desired", "merged"), MERGES.values(), ids=MERGES)
def test_merge(observed: Any, applied: Any, desired: Any, merged: Any) -> None:
    assert same_json(merge(observed, applied, desired), merged)


@pytest.mark.parametrize(
    ("items", "key"),
    [
        ([{"name": "a", "containerPort": 1}], "containerPort"),
        ([{"name": "a", "containerPort": 1}, {"name": "b"}], "name"),
        ([{"mountPath": "/a", "name": "v"}], "mountPath"),
        ([{"uid": "1"}], "uid"),
        ([{"other": 1}], None),
        ([], None),
        (["a"], None),
    ],
)
def test_the_key_is_the_first_known_one_that_all_items_share(items: list[Any], key: str | None) -> None:
    assert guess_key(items, [], items) == key


def observed(**fields: Any) -> dict[str, Any]:
    return {
        "kind": "ConfigMap",
        "metadata": {"name": "c", "uid": "u", "resourceVersion": "7", "generation": 1},
        **fields,
    }


def test_system_metadata_and_status_are_never_changed() -> None:
    stored = observed(status={"x": 1})
    desired = {
        "kind": "ConfigMap",
        "metadata": {"name": "c", "uid": "other", "creationTimestamp": None},
        "status": {},
    }
    updated = apply_update(stored, desired)
    assert updated["status"] == {"x": 1}
    assert updated["metadata"]["uid"] == "u"
    assert "creationTimestamp" not in updated["metadata"]


def test_repeating_what_was_applied_is_no_change() -> None:
    desired = {"kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"a": "b"}}
    stored = with_last_applied(observed(data={"a": "b"}), desired)
    assert same_json(apply_update(stored, desired), stored)


def test_the_annotation_does_not_nest() -> None:
    desired = with_last_applied({"metadata": {"name": "c"}}, {"metadata": {"name": "c"}})
    updated = apply_update(observed(), desired)
    assert updated["metadata"]["annotations"][LAST_APPLIED] == '{"metadata":{"annotations":{},"name":"c"}}'


def test_an_unreadable_annotation_is_an_error() -> None:
    stored = observed()
    stored["metadata"]["annotations"] = {LAST_APPLIED: "{"}
    with pytest.raises(MergeError):
        apply_update(stored, {"metadata": {"name": "c"}})


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"b": 1, "a": [1.0, 1.5, None, True]}, '{"a":[1,1.5,null,true],"b":1}'),
        ({"a": {"b": 2.0}, "c": -3.0, "d": 1e16}, '{"a":{"b":2},"c":-3,"d":10000000000000000}'),
        ("<a & b>", '"\\u003ca \\u0026 b\\u003e"'),
        ("ä\u2028", '"ä\\u2028"'),
    ],
)
def test_json_is_written_as_go_writes_it(value: Any, text: str) -> None:
    assert go_json(value) == text
