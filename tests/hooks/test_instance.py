"""Stored specs, also those from a time with other rules."""

from typing import Any

import pytest

from hooks.instance import InvalidSpec, read_spec
from hooks.wire import Parent


def parent(spec: Any, name: str = "demo") -> Parent:
    return Parent({"metadata": {}, "spec": spec}, name, "ns", "u", 1)


def test_a_spec_gets_its_defaults() -> None:
    assert read_spec(parent({})).replicas == 1
    assert read_spec(parent(None)).sandbox.warm_pool_size == 0


@pytest.mark.parametrize(
    ("spec", "path"),
    [
        ({"replicas": 0}, "spec.replicas: must be at least 1"),
        ({"sandbox": {"idleTimeout": "soon"}}, "spec.sandbox.idleTimeout: "),
        ({"gone": 1}, "spec.gone: is not a field"),
        ({"proxy": {"targets": [{"type": "ftp"}]}}, "spec.proxy.targets[0].type: "),
        ("text", "spec: "),
        ([1], "spec: "),
    ],
)
def test_what_is_wrong_is_named_by_its_path(spec: Any, path: str) -> None:
    with pytest.raises(InvalidSpec) as refused:
        read_spec(parent(spec))
    assert str(refused.value).startswith(path)


def test_a_name_that_is_too_long_is_refused() -> None:
    with pytest.raises(InvalidSpec, match=r"metadata\.name: must be 1 to 44"):
        read_spec(parent({}, "a" * 45))
