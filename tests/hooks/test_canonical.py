"""Values in the form in which the API server stores them."""

import pytest

from hooks.canonical import canonical_quantity, canonical_resources, canonical_tolerations

NOT_READY = {
    "effect": "NoExecute",
    "key": "node.kubernetes.io/not-ready",
    "operator": "Exists",
    "tolerationSeconds": 300,
}
UNREACHABLE = {**NOT_READY, "key": "node.kubernetes.io/unreachable"}


@pytest.mark.parametrize(
    ("written", "stored"),
    [
        ("0", "0"),
        ("0Gi", "0"),
        ("1", "1"),
        ("1000m", "1"),
        ("0.5", "500m"),
        (".5", "500m"),
        ("1.", "1"),
        ("100m", "100m"),
        ("1500", "1500"),
        ("2000", "2k"),
        ("1024Mi", "1Gi"),
        ("1.5Gi", "1536Mi"),
        ("1000Mi", "1000Mi"),
        ("512", "512"),
        ("0.5Ki", "512"),
        ("0.1Gi", "107374182400m"),
        ("1000M", "1G"),
        ("1e3", "1e3"),
        ("1E3", "1e3"),
        ("1000e0", "1e3"),
        ("12e-1", "1200e-3"),
        ("2E", "2E"),
        ("0.0000000001", "1n"),
    ],
)
def test_a_quantity_is_written_as_the_api_server_prints_it(written: str, stored: str) -> None:
    assert canonical_quantity(written) == stored
    assert canonical_quantity(stored) == stored


def test_resources_that_are_empty_are_left_out() -> None:
    assert canonical_resources({"limits": {"memory": "1024Mi"}, "requests": {}}) == {
        "limits": {"memory": "1Gi"}
    }


@pytest.mark.parametrize(
    ("given", "stored"),
    [
        ([], []),
        (
            [{"key": "gpu", "operator": "Exists", "value": "", "effect": ""}],
            [{"key": "gpu", "operator": "Exists"}, NOT_READY, UNREACHABLE],
        ),
        ([{"operator": "Exists"}], [{"operator": "Exists"}]),
        (
            [{"operator": "Exists", "effect": "NoSchedule"}],
            [{"operator": "Exists", "effect": "NoSchedule"}, NOT_READY, UNREACHABLE],
        ),
        ([UNREACHABLE], [UNREACHABLE, NOT_READY]),
    ],
    ids=["none", "some", "everything is tolerated", "all keys of one effect", "one of the two"],
)
def test_tolerations_are_those_that_admission_would_leave(
    given: list[dict[str, object]], stored: list[dict[str, object]]
) -> None:
    assert canonical_tolerations(given) == stored
