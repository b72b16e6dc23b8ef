"""The last-applied echo."""

import json
from typing import Any

import pytest

from cli_mcp.names import ANNOTATION_LAST_APPLIED
from hooks.echo import UnreadableLastApplied, kept, last_applied_echo, with_label

APPLIED: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "p", "namespace": "ns", "labels": {"a": "1", "b": "2"}},
    "spec": {"containers": [{"name": "sandbox", "image": "i"}]},
}


def observed(applied: object = APPLIED, **metadata: Any) -> dict[str, Any]:
    """The pod as a cluster shows it: bound, defaulted, with the annotation `applied` (None for none)."""
    text = applied if isinstance(applied, str) else json.dumps(applied)
    annotations = {} if applied is None else {ANNOTATION_LAST_APPLIED: text}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "p",
            "namespace": "ns",
            "labels": {"a": "1", "b": "2"},
            "annotations": annotations | metadata.pop("annotations", {}),
            "uid": "u",
            "resourceVersion": "7",
            **metadata,
        },
        "spec": {"containers": [{"name": "sandbox", "image": "i", "stdin": True}], "nodeName": "n"},
        "status": {"phase": "Running"},
    }


def test_a_child_is_returned_as_it_was_applied_and_not_as_it_is() -> None:
    assert last_applied_echo(observed()) == APPLIED


def test_labels_are_returned_as_they_are_now() -> None:
    echo = last_applied_echo(observed(labels={"a": "changed", "session-id": "s"}))
    assert echo["metadata"]["labels"] == {"a": "changed"}, "changed kept, gone dropped, foreign left alone"


def test_the_annotation_is_never_nested_in_itself() -> None:
    applied = {**APPLIED, "metadata": {**APPLIED["metadata"], "annotations": {ANNOTATION_LAST_APPLIED: "{}"}}}
    assert last_applied_echo(observed(applied))["metadata"]["annotations"] == {}


def test_a_child_that_metacontroller_did_not_make_is_a_stub() -> None:
    assert last_applied_echo(observed(None)) == {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", "namespace": "ns"},
    }


@pytest.mark.parametrize(
    "annotation",
    [
        "no json",
        "[]",
        "null",
        "{}",
        {**APPLIED, "kind": "Secret"},
        {**APPLIED, "metadata": {"name": "other", "namespace": "ns"}},
        {**APPLIED, "metadata": {"name": "p", "namespace": "other"}},
        {**APPLIED, "metadata": {"name": "p", "namespace": "ns", "labels": ["a"]}},
        {**APPLIED, "metadata": {"name": "p", "namespace": "ns", "generateName": "p-"}},
        {**APPLIED, "spec": {"containers": [None]}},
        {**APPLIED, "spec": {"priority": 1.0}},
        json.dumps(APPLIED).replace('"i"', "1e3"),
        json.dumps(APPLIED).replace('"i"', "[2.0 ]"),
    ],
)
def test_a_forged_annotation_is_not_echoed(annotation: object) -> None:
    with pytest.raises(UnreadableLastApplied):
        last_applied_echo(observed(annotation))


def test_a_child_that_must_stay_is_returned_whole_when_its_annotation_is_forged() -> None:
    assert kept(observed("no json", annotations={"x": "y"})) == {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "p",
            "namespace": "ns",
            "labels": {"a": "1", "b": "2"},
            "annotations": {"x": "y"},
        },
        "spec": observed()["spec"],
    }


def test_the_data_of_a_secret_is_kept_as_it_is_now() -> None:
    identity = {"name": "s", "namespace": "ns"}
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": identity}
    annotation = {ANNOTATION_LAST_APPLIED: json.dumps({**secret, "data": {"key": "b2xk"}})}
    stored = {**secret, "metadata": identity | {"annotations": annotation}, "data": {"key": "bmV3"}}
    assert kept(stored) == {**secret, "data": {"key": "bmV3"}}


def test_a_null_or_a_float_in_a_text_is_no_reason_to_distrust() -> None:
    applied = {**APPLIED, "spec": {"a": "null", "b": "x:1.0,", "c": 0.5}}
    assert last_applied_echo(observed(applied)) == applied


def test_nulls_of_the_api_server_are_not_returned() -> None:
    template = {"metadata": {"creationTimestamp": None}, "spec": {"containers": []}}
    deployment = {**observed("no json"), "spec": {"template": template, "list": [None]}}
    echo = kept(deployment)
    assert echo is not None
    assert echo["spec"] == {"template": {"metadata": {}, "spec": {"containers": []}}, "list": []}


def test_a_secret_without_data_has_nothing_to_keep() -> None:
    assert kept({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s", "namespace": "ns"}}) is None


def test_a_label_is_added_to_a_copy() -> None:
    echo = last_applied_echo(observed())
    marked = with_label(echo, "state", "retiring")
    assert marked["metadata"]["labels"] == {"a": "1", "b": "2", "state": "retiring"}
    assert echo == APPLIED
