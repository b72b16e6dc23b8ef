"""The time of an entry, which sessions without a readable stamp are counted from."""

from __future__ import annotations

from typing import Any

from tests.kube.api import Api
from tests.kube.clock import Clock
from tests.kube.samples import config_map


def entries(obj: dict[str, Any]) -> dict[str, tuple[str, set[str]]]:
    """By manager: the time, and the labels that it owns."""
    found = {}
    for entry in obj["metadata"]["managedFields"]:
        labels = entry["fieldsV1"].get("f:metadata", {}).get("f:labels", {})
        found[entry["manager"]] = (entry["time"], set(labels))
    return found


def test_an_entry_has_the_time_of_its_managers_last_change() -> None:
    clock = Clock()
    api = Api(clock)
    obj = config_map()
    obj["metadata"].update(namespace="default", labels={"a": "1"})
    api.create(obj, manager="maker")

    def label(manager: str, **labels: str) -> dict[str, Any]:
        clock.advance(60)
        return api.patch("configmaps", "default", "c", {"metadata": {"labels": labels}}, manager=manager)

    assert entries(label("claimer", session="s"))["claimer"] == ("2026-01-01T00:01:00Z", {"f:session"})
    untouched = entries(label("other", a="2"))
    assert untouched["claimer"] == ("2026-01-01T00:01:00Z", {"f:session"})
    assert untouched["maker"] == ("2026-01-01T00:00:00Z", set())
    assert entries(label("claimer", stamp="x"))["claimer"] == (
        "2026-01-01T00:03:00Z",
        {"f:session", "f:stamp"},
    )


def test_a_write_that_changes_nothing_leaves_the_time() -> None:
    clock = Clock()
    api = Api(clock)
    obj = config_map()
    obj["metadata"]["namespace"] = "default"
    api.create(obj, manager="maker")
    clock.advance(60)
    same = api.patch("configmaps", "default", "c", {"data": {"k": "v"}}, manager="maker")
    assert entries(same)["maker"][0] == "2026-01-01T00:00:00Z"
